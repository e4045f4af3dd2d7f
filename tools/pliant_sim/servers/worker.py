"""A simulated worker that pushes to random rows, and repeats each push until it is acknowledged."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from pliant.core.ps.model import BUCKETS, BucketLayout
from pliant.ps.tables.hashing import Ids, buckets_of
from pliant.ps.tables.table_copy import UNKNOWN, Mask, Part, Update
from pliant_sim.servers.later import Thread, all_of, start_thread
from pliant_sim.servers.process import SimulatedProcess
from pliant_sim.servers.server import PushAnswer

if TYPE_CHECKING:
    from pliant_sim.servers.world import ServerSimulation

IDS_PER_PUSH = 12


class PushingWorker(SimulatedProcess):
    """Each push adds 1 to each of its rows."""

    def __init__(self, sim: ServerSimulation, name: str, pushes: int) -> None:
        super().__init__(sim, name)
        self.done = 0
        self.pushes = pushes
        self._chance = Random(f"{name} {sim.seed}")
        self._layout: BucketLayout | None = None
        start_thread(self._run())

    def follow(self, layout: BucketLayout) -> None:
        if self._layout is None or layout.number > self._layout.number:
            self._layout = layout

    @property
    def is_done(self) -> bool:
        return self.done == self.pushes

    def _run(self) -> Thread:
        by_step = self.sim.setting.by_step
        while self.done < self.pushes:
            while by_step and any(other.done < self.done for other in self.sim.workers):
                yield self.sleep(0.05)  # the reduction of a step waits for all pushes
            ids = np.unique([self._chance.randrange(self.sim.ids) for _ in range(IDS_PER_PUSH)]).astype(np.int64)
            if by_step and self._chance.random() < 0.3:
                yield from self._pull(ids, self.done + 1)
            yield from self._push(self.done + 1, ids)
            if by_step and self._chance.random() < 0.2:
                yield from self._push(self.done + 1, ids, again=True)
            self.done += 1
            if not by_step and self._chance.random() < 0.2:
                yield from self._pull(ids, 0)
            yield self.sleep(self._chance.uniform(0.1, 1.0))

    def _push(self, sequence: int, ids: Ids, *, again: bool = False) -> Thread:
        """Push until it is acknowledged. `again`: another member computed the same slot of the same step."""
        table = self.sim.table
        buckets = np.unique(buckets_of(table, ids))
        part = Part(table.name, ids, np.full((len(ids), table.dim), -1.0, np.float32))
        update = Update(self.id, sequence, buckets, np.full(len(buckets), UNKNOWN), (part,))
        if not again:
            self.sim.checks.sent(update)
        left: Mask = np.zeros(BUCKETS, np.bool_)
        left[buckets] = True
        while left.any():
            layout = self._layout
            if layout is None or not layout.servers:
                yield self.sleep(0.2)
                continue
            primary = np.asarray(layout.primary)
            asked = [(at, left & (primary == at)) for at in range(len(layout.servers))]
            asked = [(at, mask) for at, mask in asked if mask.any()]
            answers = yield all_of(
                self.request(layout.servers[at].id, "push", layout.number, update.within(lambda _: table, mask))
                for at, mask in asked
            )
            for (_, mask), answer in zip(asked, answers, strict=True):
                if answer is PushAnswer.DONE:
                    left &= ~mask
            if left.any():
                yield self.sleep(self._chance.uniform(0.05, 0.3))
        if not again:
            self.sim.checks.pushed(update)

    def _pull(self, ids: Ids, step: int) -> Thread:
        """Pull rows once. A server that was replaced may return old values, and none may return too high ones."""
        layout, buckets = self._layout, buckets_of(self.sim.table, ids)
        if layout is None:
            return
        primary = np.asarray(layout.primary)[buckets]
        for at in np.unique(primary[primary >= 0]):
            mine = primary == at
            values = yield self.request(
                layout.servers[at].id, "pull", layout.number, step, ids[mine], np.unique(buckets[mine])
            )
            if values is not None:
                self.sim.checks.pulled(self.id, ids[mine], values, step, layout.number)
