"""Seeds for what user code draws: by step and slot, and after the apply by step alone; never by rank."""

from __future__ import annotations

from hashlib import blake2b


def step_key(seed: int, step: int, slot: int | None) -> int:
    """A seed for the part that begins with this slot; None: for the user's code after the step, which must draw the
    same on every member."""
    text = f"{seed:x} {step:x} {'after' if slot is None else format(slot, 'x')}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8, person=b"pliant step 1").digest(), "little")
