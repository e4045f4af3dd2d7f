"""Checks of parameter servers: of each acknowledged push, of each layout, of pulled rows, and of the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, NONE, BucketLayout, ServerTable
from pliant.ps.tables.hashing import Floats, Ids, buckets_of
from pliant.ps.tables.table_copy import Mask, TableCopy, Update
from pliant_sim.servers.server import SimulatedServer

if TYPE_CHECKING:
    from pliant_sim.servers.world import ServerSimulation

Numbers = npt.NDArray[np.int64]


class ServerChecks:
    """Collects complaints. Its own books of pushes are apart from those of the servers."""

    def __init__(self, sim: ServerSimulation) -> None:
        self.sim = sim
        self.complaints: list[str] = []
        self._acknowledged: dict[str, Numbers] = {}  # by worker: the last number of each bucket
        self._lost_in: Numbers = np.zeros(BUCKETS, np.int64)  # the layout in which a bucket began again
        self._sent: Numbers = np.zeros(sim.ids, np.int64)  # by id
        self._pushed: Numbers = np.zeros(sim.ids, np.int64)
        self._sent_in: dict[int, Numbers] = {}  # by step and id, where pushes have steps
        self.lost = 0

    def complain(self, what: str) -> None:
        self.complaints.append(f"{self.sim.now:.1f} s: {what}")
        self.sim.tell(f"VIOLATION {what}")

    # ------------------------------------------------------------------------------------------------- pushes

    def sent(self, update: Update) -> None:
        ids = update.parts[0].ids
        self._sent[ids] += 1
        if self.sim.setting.by_step:
            self._sent_in.setdefault(update.sequence, np.zeros(self.sim.ids, np.int64))[ids] += 1

    def pushed(self, update: Update) -> None:
        self._pushed[update.parts[0].ids] += 1

    def acknowledged(self, server: SimulatedServer, layout: int, update: Update) -> None:
        """Note a push, and check that the primaries of the newest layout have it, so that none is lost later."""
        buckets = update.buckets[self._lost_in[update.buckets] <= layout]
        last = self._acknowledged.setdefault(update.worker, np.zeros(BUCKETS, np.int64))
        last[buckets] = np.maximum(last[buckets], update.sequence)
        newest = self.sim.layout
        primary = np.asarray(newest.primary)[buckets]
        for at in np.unique(primary[primary != NONE]):
            other = self.sim.servers[newest.servers[at].id]
            mine = buckets[primary == at]
            if other.up and other is not server and not _has(other, update.worker, mine, update.sequence).all():
                self.complain(
                    f"{server.id} acknowledged push {update.sequence} of {update.worker} in layout {layout}, and "
                    f"{other.id}, the primary in layout {newest.number}, does not have it"
                )

    def pulled(self, worker: str, ids: Ids, values: Floats, step: int, layout: int) -> None:
        """Check pulled rows. Where pushes have steps, a row of the newest layout has exactly those of earlier steps."""
        if (values[:, 0] > self._sent[ids]).any():
            self.complain(f"{worker} pulled a row to which a push was applied twice")
        if not step or layout != self.sim.layout.number:
            return
        before = sum((sent[ids] for at, sent in self._sent_in.items() if at < step), np.zeros(len(ids), np.int64))
        kept = self._lost_in[buckets_of(self.sim.table, ids)] == 0
        if (values[:, 0] != before)[kept].any():
            self.complain(f"{worker} pulled a row in step {step} that has not exactly the pushes of earlier steps")

    # ------------------------------------------------------------------------------------------------ layouts

    def layout_changed(self, before: ServerTable, after: BucketLayout) -> None:
        """Check that a bucket with a live copy continues from one that has every acknowledged push."""
        old = before.layout
        whole = {each.id: self._whole(self.sim.servers[each.id]).tolist() for each in after.servers}
        there = {*after.ids}
        alive = {each for each in there if self.sim.servers[each].up}
        for bucket, (was, now) in enumerate(zip(old.all_copies(), after.all_copies(), strict=True)):
            filled = was.incoming if was.primary in before.copied else None
            known = {name for name in (was.primary, was.backup, filled) if name is not None}
            good = {name for name in known & alive if whole[name][bucket]}
            confirmed = now.primary == was.primary and was.primary in before.copied and was.backup in old.leaving
            if good and not good & {now.primary, now.backup} and not confirmed:
                self.complain(f"layout {after.number} drops {sorted(good)}, the live copies of bucket {bucket}")
            elif good and now.primary in alive and now.primary not in good:
                self.complain(f"layout {after.number}: bucket {bucket} is without acknowledged pushes on {now.primary}")
            elif known and not known & there:
                self._begin_again(bucket, after.number)
            if self.complaints:
                return

    def _begin_again(self, bucket: int, layout: int) -> None:
        """Note that the last known copy of a bucket is gone."""
        if self.sim.setting.single:
            self.complain(f"bucket {bucket} lost both copies, and servers were lost one at a time")
        self.lost += 1
        self._lost_in[bucket] = layout
        for last in self._acknowledged.values():
            last[bucket] = 0

    def _whole(self, server: SimulatedServer) -> Mask:
        """Return the buckets of which a server has every acknowledged push."""
        found: Mask = np.ones(BUCKETS, np.bool_)
        for worker, last in self._acknowledged.items():
            found &= _has(server, worker, np.arange(BUCKETS), last)
        return found

    # ------------------------------------------------------------------------------------------------ the end

    def finally_(self) -> None:
        """Check that the job came to rest, and that every row is the sum of its pushes on both copies."""
        for worker in self.sim.workers:
            if not worker.is_done:
                self.complain(f"{worker.id} has {worker.pushes - worker.done} pushes left that no server acknowledges")
        self._at_rest()
        if self.complaints:
            return
        layout = self.sim.layout
        ids = np.arange(self.sim.ids)
        buckets = buckets_of(self.sim.table, ids)
        for server in (self.sim.servers[each.id] for each in layout.servers):
            for row in (layout.primary, layout.backup):
                mine = ids[np.asarray(row)[buckets] == layout.index(server.id)]
                self._require_sums(server.id, server.copies, mine, buckets[mine])

    def _require_sums(self, name: MemberId, copies: TableCopy, ids: Ids, buckets: Ids) -> None:
        if not copies.held[buckets].all():
            self.complain(f"{name} does not have a bucket that the layout gives it")
        copies.begin_step(buckets, np.iinfo(np.int64).max)
        values = copies.rows(self.sim.table.name).pull(ids)[:, 0]
        again = self._lost_in[buckets] > 0
        if (values > self._sent[ids]).any():
            self.complain(f"{name} applied a push twice")
        wrong = ids[(values != self._pushed[ids]) & ~again]
        if len(wrong):
            at = wrong[0]
            value = values[ids == at][0]
            self.complain(f"row {at} on {name} has {value:g} of {self._pushed[at]} acknowledged pushes")

    def _at_rest(self) -> None:
        layout = self.sim.layout
        staying = [server for server in layout.ids if server not in layout.leaving]
        if layout.fillers():
            self.complain(f"layout {layout.number} still moves buckets")
        if not staying:
            self.complain("no server is left")
            return
        rows = (layout.primary, layout.backup) if len(staying) > 1 else (layout.primary,)
        for row in rows:
            counts = [row.count(layout.index(server)) for server in staying]
            if sum(counts) != BUCKETS or max(counts) > min(counts) + 1:
                self.complain(f"layout {layout.number} has {counts} buckets on {staying}")


def _has(server: SimulatedServer, worker: str, buckets: Ids, sequence: int | Numbers) -> Mask:
    """Return which of these buckets a server has with this number of a worker."""
    last = server.copies._last.get(worker, np.zeros(BUCKETS, np.int64))[buckets]
    found: Mask = server.copies.held[buckets] & (last >= sequence)
    return found
