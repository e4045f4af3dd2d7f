"""A Keras worker's membership in a job, from `pliant.keras.join()` to the end of the `with` block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pliant.errors import BadInput
from pliant.keras.callbacks import CallbackMemory
from pliant.keras.frame import KerasFrame, require_samples
from pliant.keras.run import KerasRun
from pliant.train.data.loader import OrderOfEpoch
from pliant.train.live.arguments import IGNORE
from pliant.train.live.arrays.job import ArrayJob, TrainArguments, as_dataset
from pliant.train.live.arrays.state import StatefulObject
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.job import STALL_S, prepare_join


def join() -> KerasJob:
    """Return this worker's job, for a `with` statement. Call it once.

    The environment names the coordinator; `pliant run` sets it. Without a coordinator this worker trains alone.
    """
    return KerasJob(*prepare_join(lambda: None))


class KerasJob(ArrayJob):
    """This worker's membership in a job. It ends with the `with` block."""

    def train(
        self,
        model: Any,
        dataset: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        max_steps: int | None = None,
        seed: int = 0,
        slots: int | None = None,
        part: int | None = None,
        order: str | OrderOfEpoch = "shuffled",
        samples_per_epoch: int | None = None,
        state: Mapping[str, StatefulObject] | None = None,
        clip_norm: float | None = None,
        nonfinite: Literal["raise", "skip", "ignore"] = "raise",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        stall_s: float = STALL_S,
        deterministic: bool = False,
        other_bits: bool = False,
        verify: int = 0,
        verify_slots: float = 0.0,
    ) -> KerasRun:
        """Join the job and return its run. Raises if a setting differs from that of the other members.

        `model` is built and compiled. `dataset` is a tuple of arrays, or anything with `__len__` and `__getitem__`
        whose samples are (x, y) or (x, y, sample_weight). `batch_size` is global, whatever the number of members.

        `part` is the largest number of samples of an item. Items have few sizes, whatever the world, and each is
        compiled before the worker joins: a change of the membership compiles nothing.
        """
        self._open_once()
        if state is not None and "callbacks" in state:
            raise BadInput('The name "callbacks" in state= is taken by the callbacks of run.fit. Choose another.')
        require_samples(dataset)
        frame, tools, memory = KerasFrame(model), ArrayTools(), CallbackMemory()
        frame.compile()
        given = TrainArguments(
            batch_size=batch_size,
            epochs=epochs,
            max_steps=max_steps,
            seed=seed,
            slots=slots,
            part=part,
            order=order,
            samples_per_epoch=samples_per_epoch,
            state={**(state or {}), "callbacks": memory},
            clip_norm=clip_norm,
            nonfinite=IGNORE if frame.scales_loss else nonfinite,
            checkpoint_dir=checkpoint_dir,
            collate_fn=collate_fn,
            stall_s=stall_s,
            deterministic=deterministic,
            other_bits=other_bits,
            verify=verify,
            verify_slots=verify_slots,
        )
        loop, engine = self._begin(frame, as_dataset(dataset), tools, given, frame.warm_up)
        return self._opened(KerasRun(loop, engine, tools, *self._evaluation, frame, memory))
