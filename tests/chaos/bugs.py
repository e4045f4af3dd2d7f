"""Loader bugs to plant in a worker: what is read is not what was dealt out.

Each is a change of Pliant's own functions in the worker's memory. None of them tells any member.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STEP = 40  # the first step that a bug may touch
PART_MIN = 2  # samples: less, and BatchNorm raises, which no member could overlook


def plant(name: str, folder: Path) -> None:
    """Call in a worker before it joins; an empty name plants nothing."""
    if name:
        PLANTS[name](folder / "bit")


def _skip_one(bit: Path) -> None:
    """The last sample of a part is not read."""

    def shorter(plan: Any) -> Any:
        return dataclasses.replace(plan, samples=plan.samples[:-1], sizes=(*plan.sizes[:-1], plan.sizes[-1] - 1))

    _change_plans(bit, shorter)


def _double_one(bit: Path) -> None:
    """The last sample of a part is not read; the one before it is read twice."""

    def doubled(plan: Any) -> Any:
        samples = plan.samples.copy()
        samples[-1] = samples[-2]
        return dataclasses.replace(plan, samples=samples)

    _change_plans(bit, doubled)


def _change_plans(bit: Path, change: Callable[[Any], Any]) -> None:
    from pliant.train.live.data.reader import DatasetReader

    read_each = DatasetReader._read_each

    def wrong(self: DatasetReader, plan: Any) -> Any:
        if plan.part.step == STEP and 0 in plan.part.slots and len(plan.samples) > PART_MIN:
            bit.touch()
            plan = change(plan)
        return read_each(self, plan)

    DatasetReader._read_each = wrong  # type: ignore[method-assign]


def _stale_prefetch(bit: Path) -> None:
    """Return what was read ahead for the slots of before a resize is served for those of after it."""
    from pliant.torch.data.workers import DataWorkerPool

    expect, take = DataWorkerPool.expect, DataWorkerPool.take
    stale: dict[int, Any] = {}

    def keeping(self: DataWorkerPool, parts: Sequence[Any]) -> None:
        self._collect(0)
        dropped = [found for part, found in self._ready.items() if part not in parts]
        stale.update({found.micro_batch.step: found for found in dropped})
        expect(self, parts)

    def serving(self: DataWorkerPool, part: Any) -> Any:
        found = take(self, part)
        old = stale.pop(part.step, None)
        if old is None or part.step < STEP or old.part == part:
            return found
        bit.touch()
        return dataclasses.replace(old, part=part)

    DataWorkerPool.expect = keeping  # type: ignore[method-assign]
    DataWorkerPool.take = serving  # type: ignore[method-assign]


def _victim_left_out(bit: Path) -> None:
    """Of the slots that a dead member leaves behind one is said to be done, and no member computes it."""
    from pliant.core.member.signals import Computed
    from pliant.train.live import loop
    from pliant.train.session import Session

    compute, react = loop.Loop._compute, Session._react
    forgotten: list[int] = []

    def forgetting(self: loop.Loop, order: Any) -> None:
        if self.session.machine.kept_gradients.slots and not order.idle and len(order.slots) > 1 and order.step >= STEP:
            bit.touch()
            forgotten.append(order.slots[-1])
            order = dataclasses.replace(order, slots=order.slots[:-1])
        compute(self, order)

    def claiming(self: Session, signal: Any) -> Any:
        if isinstance(signal, Computed) and forgotten:
            signal = dataclasses.replace(signal, slots=signal.slots | {forgotten.pop()})
        return react(self, signal)

    loop.Loop._compute = forgetting  # type: ignore[method-assign]
    Session._react = claiming  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[Path], None]] = {
    "skip one": _skip_one,
    "double one": _double_one,
    "stale prefetch after a resize": _stale_prefetch,
    "victim's slot left out": _victim_left_out,
}
