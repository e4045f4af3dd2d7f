"""Checks of the arguments of `job.train`. Every message names the argument, its value, and what to pass instead."""

from __future__ import annotations

import math
import operator
import os
from typing import Any

from pliant.errors import BadInput

RAISE, SKIP, IGNORE = "raise", "skip", "ignore"  # policies for a gradient that is not finite

LEAST = {
    "batch_size": 1,
    "epochs": 1,
    "num_workers": 0,
    "slots": 1,
    "micro_batch": 1,
    "samples_per_epoch": 1,
    "turns": 1,
    "samples": 1,
    "max_steps": 1,
}


def whole_numbers(**given: object) -> tuple[int, ...]:
    """Return arguments as ints. numpy's integers are accepted, floats and booleans are not."""
    return tuple(_whole_number(name, value) for name, value in given.items())


def optional_whole_numbers(**given: object) -> tuple[int | None, ...]:
    return tuple(None if value is None else _whole_number(name, value) for name, value in given.items())


def _whole_number(name: str, value: object) -> int:
    least = LEAST.get(name)
    expected = "a whole number" if least is None else f"a whole number of at least {least}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # any object
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise BadInput(f"{name} must be {expected}, got {value!r}.")
    if abs(number) >= 1 << 63:
        raise BadInput(f"{name} must be below 2**63, got {value!r}.")
    return number


def check_common(slots: int | None, batch_size: int, clip_norm: Any, nonfinite: Any, collate_fn: Any) -> None:
    """Check the arguments of every framework that are neither whole numbers nor flags."""
    if slots is not None and slots > batch_size:
        raise BadInput(
            f"slots={slots} is more than batch_size={batch_size}. A slot holds at least one sample: lower slots."
        )
    if clip_norm is not None and not (is_number(clip_norm) and 0 < clip_norm < math.inf):
        raise BadInput(f"clip_norm must be a number above 0, or None for no clipping, got {clip_norm!r}.")
    if nonfinite not in (RAISE, SKIP, IGNORE):
        raise BadInput(f'nonfinite must be "raise", "skip" or "ignore", got {nonfinite!r}.')
    if collate_fn is not None and not callable(collate_fn):
        raise BadInput(f"collate_fn must be a function that takes a list of samples, got {collate_fn!r}.")


def check_numbers(stall_s: Any, verify_slots: Any) -> None:
    if not (is_number(stall_s) and stall_s >= 0):
        raise BadInput(f"stall_s must be a number of seconds, or 0 for no limit, got {stall_s!r}.")
    if not is_number(verify_slots):
        raise BadInput(f"verify_slots must be a number, got {verify_slots!r}.")


def check_folder(checkpoint_dir: Any) -> str | None:
    if checkpoint_dir is None or (isinstance(checkpoint_dir, str | os.PathLike) and str(checkpoint_dir)):
        return None if checkpoint_dir is None else str(checkpoint_dir)
    raise BadInput(f"checkpoint_dir must be a folder or a URL, got {checkpoint_dir!r}.")


def check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise BadInput(f"{name} must be True or False, got {value!r}.")


def a(noun: str) -> str:
    """Return a noun with its article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def is_number(value: object) -> bool:
    """Return whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
