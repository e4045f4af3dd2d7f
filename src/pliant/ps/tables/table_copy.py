"""One server's copies of buckets: their rows, and what was applied to them.

A push names its worker and the worker's sequence number. For each worker and bucket, a server keeps the last number
that it applied, so a push that arrives again changes nothing. Two copies of a bucket that applied the same numbers are
equal, because a backup receives updates in the order in which the primary applied them.

In a live job the worker of a push is its slot, and the number is its step. The sum of a step's gradients is applied by
the first request of a later step: all pushes of the step were acknowledged before its reduction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.errors import BadInput
from pliant.ps.tables.hashing import Buckets, Floats, Ids, buckets_of, mix
from pliant.ps.tables.recent import RecentUpdates, Trails
from pliant.ps.tables.rows import RowTable
from pliant.ps.tables.spec import TABLES_MAX, PushPolicy, Table

WORKERS_KEPT = 4096  # whose last numbers are kept, the most recent ones
UNKNOWN = -1  # a version that does not count: the worker pulled nothing of that bucket, or pushes no row of it

Mask = npt.NDArray[np.bool_]
Versions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Gradients, or new values, of rows of one table. The ids ascend."""

    table: str
    ids: Ids
    values: Floats

    def within(self, table: Table, wanted: Mask) -> Part:
        """Return the rows in the buckets that the mask selects."""
        inside = wanted[buckets_of(table, self.ids)]
        return Part(self.table, self.ids[inside], self.values[inside])


@dataclass(frozen=True, slots=True)
class Update:
    """One push of a worker, or its part for some buckets. `creates`: the values are those of rows that do not exist.

    `base` has the version of each bucket when the worker pulled rows of these tables, or `UNKNOWN`.
    """

    worker: str
    sequence: int
    buckets: Buckets
    base: Versions
    parts: tuple[Part, ...]
    creates: bool = False

    def within(self, table_of: Callable[[str], Table], wanted: Mask) -> Update:
        """Return the part of the update for the buckets that the mask selects."""
        inside = wanted[self.buckets]
        parts = tuple(part.within(table_of(part.table), wanted) for part in self.parts)
        return replace(self, buckets=self.buckets[inside], base=self.base[inside], parts=parts)


class StaleUpdate(Exception):
    """The worker pulled too many updates ago; it must pull and compute again."""


class UnknownTable(BadInput):
    """A worker named a table that was not defined."""


class TableCopy:
    """Copies of some buckets. Use it from one thread at a time."""

    def __init__(self) -> None:
        self.held: Mask = np.zeros(BUCKETS, np.bool_)
        self.version: Versions = np.zeros(BUCKETS, np.int64)  # updates that were applied to each bucket
        self.policy = PushPolicy()
        self._tables: dict[str, RowTable] = {}
        self._last: dict[str, Versions] = {}  # by worker: the last number that was applied to each bucket
        self._newest: Versions = np.zeros(BUCKETS, np.int64)  # the highest of these numbers
        self._waiting: Versions = np.zeros(BUCKETS, np.int64)  # pushes that were added up and not applied
        self._sums: dict[str, RowTable] = {}  # their gradients
        self.trails: Trails = np.zeros(BUCKETS, np.uint64)
        self.recent = RecentUpdates()

    # ------------------------------------------------------------------------------------------ definitions

    def define(self, tables: Iterable[Table], policy: PushPolicy) -> None:
        """Add tables. Raises BadInput, and adds none, if one exists with other settings or there are too many.

        Without tables the policy stays: a server to which no worker came yet does not have that of the job.
        """
        tables, added = list(tables), {}
        for table in tables:
            known = self._tables.get(table.name)
            if known is not None and known.table != table:
                raise BadInput(f"Table {table.name} is {known.table}; a worker has {table}. Pass the same settings.")
            if known is None:
                added[table.name] = RowTable(table)
        if len(self._tables) + len(added) > TABLES_MAX:
            raise BadInput(f"A job can have up to {TABLES_MAX} tables; a worker has {len(added)} more.")
        self._tables.update(added)
        self.policy = policy if tables else self.policy

    @property
    def tables(self) -> list[Table]:
        return [rows.table for rows in self._tables.values()]

    def rows(self, name: str) -> RowTable:
        """Return a table. Raises UnknownTable."""
        if name not in self._tables:
            raise UnknownTable(f"There is no table {name!r}. The tables of this job are {sorted(self._tables)}.")
        return self._tables[name]

    def table(self, name: str) -> Table:
        """Return the settings of a table. Raises UnknownTable."""
        return self.rows(name).table

    def hold(self, buckets: Buckets) -> None:
        """Begin to hold empty buckets."""
        self.held[buckets] = True

    # ---------------------------------------------------------------------------------------------- updates

    def fresh_buckets(self, update: Update) -> Mask:
        """Return which of the update's buckets have not applied it yet."""
        last = self._last.get(update.worker)
        fresh: Mask = np.zeros(BUCKETS, np.bool_)
        fresh[update.buckets] = True if last is None else last[update.buckets] < update.sequence
        if self.policy.by_step:
            fresh &= self._newest <= update.sequence  # the sums of earlier steps are applied already
        return fresh

    def apply(self, update: Update) -> Mask:
        """Apply an update to those of its buckets that have not applied it. Return these buckets, as a mask.

        Raises StaleUpdate, and applies nothing, if it is too old for one of them.
        """
        fresh = self.fresh_buckets(update)
        if not fresh.any():
            return fresh
        parts = [part.within(self.table(part.table), fresh) for part in update.parts]
        if update.creates:
            for part in parts:
                self.rows(part.table).create_missing(part.ids, part.values)
        elif self.policy.by_step:
            self.begin_step(update.buckets, update.sequence)
            self._add_up(parts, fresh)
        else:
            staleness = self._staleness(update, fresh)
            if self.policy.grads_to_wait > 1:
                self._add_up(parts, fresh)
                self._apply_sums(self._waiting >= self.policy.grads_to_wait, self.policy.grads_to_wait)
            else:
                self._train(parts, staleness)
                self.version[fresh] += 1
        self._note(update, fresh)
        self._follow_trail(update, np.flatnonzero(fresh))
        return fresh

    def begin_step(self, buckets: Buckets, step: int) -> None:
        """Apply the sums of earlier steps in these buckets. Without the policy `BY_STEP` there are none."""
        due: Mask = np.zeros(BUCKETS, np.bool_)
        if self.policy.by_step:
            due[buckets] = (self._waiting[buckets] > 0) & (self._newest[buckets] < step)
        self._apply_sums(due, 1)

    def _follow_trail(self, update: Update, buckets: Buckets) -> None:
        before = self.trails[buckets]
        self.recent.add(update, buckets, before)
        self.trails[buckets] = mix(before ^ mix(np.asarray([update.sequence], np.uint64) ^ _number_of(update.worker)))

    def _note(self, update: Update, fresh: Mask) -> None:
        last = self._last.pop(update.worker, None)
        if last is None:
            last = np.zeros(BUCKETS, np.int64)
        self._last[update.worker] = last  # the most recent one is at the end
        last[fresh] = update.sequence
        self._newest[fresh] = np.maximum(self._newest[fresh], update.sequence)
        while len(self._last) > WORKERS_KEPT:
            del self._last[next(iter(self._last))]

    def _staleness(self, update: Update, fresh: Mask) -> Versions:
        staleness: Versions = np.zeros(BUCKETS, np.int64)
        known = update.base != UNKNOWN
        staleness[update.buckets[known]] = self.version[update.buckets[known]] - update.base[known]
        limit = self.policy.staleness_max
        worst = int(staleness[fresh].max())
        if limit is not None and worst > limit:
            raise StaleUpdate(f"{worst} updates were applied since this worker pulled; staleness_max is {limit}")
        return staleness

    def _train(self, parts: Sequence[Part], staleness: Versions | None) -> None:
        for part in parts:
            rows = self.rows(part.table)
            if not len(part.ids):
                continue
            scale = np.ones((len(part.ids), 1), np.float32)
            if staleness is not None and self.policy.staleness_rates:
                scale /= np.maximum(staleness[buckets_of(rows.table, part.ids)], 1).astype(np.float32)[:, None]
            rows.update(part.ids, part.values, scale)

    def _add_up(self, parts: Sequence[Part], fresh: Mask) -> None:
        """Add gradients to those that wait."""
        for part in parts:
            sums = self._sums.setdefault(part.table, RowTable(_sums_of(self.rows(part.table).table)))
            sums.add(part.ids, part.values)
        self._waiting[fresh] += 1

    def _apply_sums(self, due: Mask, count: int) -> None:
        """Apply what waits in these buckets, as the mean of so many gradients."""
        if not due.any():
            return
        buckets = np.flatnonzero(due)
        for name, sums in self._sums.items():
            ids, total = sums.extract(buckets)
            self._train([Part(name, ids, total / np.float32(count))], None)
            sums.remove(buckets)
        self._waiting[due] = 0
        self.version[due] += 1

    # ------------------------------------------------------------------------------------------------ copies

    def digests(self, buckets: Buckets) -> npt.NDArray[np.uint64]:
        """Return a hash of what was applied to each of these buckets, for a comparison of two copies."""
        version, waiting = self.version[buckets], self._waiting[buckets]
        if self.policy.by_step:  # a pull applies sums on the primary alone, and the next push on the backup
            version, waiting = version + (waiting > 0), np.zeros_like(waiting)
        found = mix(version.view(np.uint64) ^ (waiting.view(np.uint64) << np.uint64(32)))
        for worker, last in self._last.items():
            numbers = last[buckets].view(np.uint64)
            found += np.where(numbers == 0, np.uint64(0), mix(numbers ^ _number_of(worker)))
        found += np.where(self.held[buckets], np.uint64(1), np.uint64(0))
        return found

    def pieces(self, buckets: Buckets, size: int) -> list[Buckets]:
        """Return the buckets in groups whose copies have about `size` bytes each, or one bucket."""
        if not len(buckets):
            return []
        nbytes = sum((rows.sizes()[buckets] * (8 + 4 * rows.table.width) for rows in self._all_rows()), start=0)
        before = np.cumsum(nbytes + np.zeros(len(buckets), np.int64)) - nbytes
        return np.split(buckets, np.flatnonzero(np.diff(before // size)) + 1)

    def extract(self, buckets: Buckets) -> dict[str, Any]:
        """Return a copy of buckets as plain values and arrays, for another server or a checkpoint."""
        return {
            "buckets": buckets.copy(),
            "tables": [msgspec.to_builtins(table) for table in self.tables],
            "policy": msgspec.to_builtins(self.policy),
            "version": self.version[buckets],
            "trails": self.trails[buckets].view(np.int64),
            "waiting": self._waiting[buckets],
            "workers": list(self._last),
            "last": np.stack([last[buckets] for last in self._last.values()])
            if self._last
            else np.zeros((0, len(buckets)), np.int64),
            "rows": {name: rows.extract(buckets) for name, rows in self._tables.items()},
            "sums": {name: rows.extract(buckets) for name, rows in self._sums.items()},
        }

    def install(self, copy: dict[str, Any], only: Mask | None = None) -> None:
        """Hold the buckets of a copy, or those of them that a mask selects, in place of what was here."""
        chosen = copy["buckets"] if only is None else copy["buckets"][only[copy["buckets"]]]
        inside = np.isin(copy["buckets"], chosen)
        self.define(msgspec.convert(copy["tables"], list[Table]), msgspec.convert(copy["policy"], PushPolicy))
        self.drop(chosen)
        self.hold(chosen)
        self.version[chosen], self._waiting[chosen] = copy["version"][inside], copy["waiting"][inside]
        self.trails[chosen] = copy["trails"][inside].view(np.uint64)
        self.recent.replaced(chosen)
        for worker, numbers in zip(copy["workers"], copy["last"], strict=True):
            if numbers[inside].any():
                self._last.setdefault(worker, np.zeros(BUCKETS, np.int64))[chosen] = numbers[inside]
                self._newest[chosen] = np.maximum(self._newest[chosen], numbers[inside])
        wanted = _mask(chosen)
        for name, found in copy["rows"].items():
            _install(self._tables[name], found, wanted)
        for name, found in copy["sums"].items():
            _install(self._sums.setdefault(name, RowTable(_sums_of(self._tables[name].table))), found, wanted)

    def drop(self, buckets: Buckets) -> None:
        """Forget buckets and their rows."""
        buckets = buckets[self.held[buckets]]
        if not len(buckets):
            return
        for rows in self._all_rows():
            rows.remove(buckets)
        self.held[buckets] = False
        self.version[buckets] = self._waiting[buckets] = self._newest[buckets] = self.trails[buckets] = 0
        self.recent.replaced(buckets)
        for last in self._last.values():
            last[buckets] = 0
        self._last = {worker: last for worker, last in self._last.items() if last.any()}

    def keep_only(self, wanted: Mask) -> None:
        """Forget all buckets other than those that the mask selects."""
        self.drop(np.flatnonzero(self.held & ~wanted))

    def compact(self, limit: int) -> bool:
        """Give back memory of rows that were dropped, up to `limit` rows at a time; False if nothing is left to do."""
        return any(rows.compact(limit) for rows in self._all_rows())

    def _all_rows(self) -> list[RowTable]:
        return [*self._tables.values(), *self._sums.values()]


def _mask(buckets: Buckets) -> Mask:
    wanted: Mask = np.zeros(BUCKETS, np.bool_)
    wanted[buckets] = True
    return wanted


def _number_of(worker: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(worker.encode()).digest()[:8], "little"))


def _sums_of(table: Table) -> Table:
    """Return the table for sums of gradients: the same buckets, without slots."""
    from pliant.ps.tables.optimizers import SGD

    return Table(table.name, table.dim, SGD(1.0), 0.0)


def _install(rows: RowTable, found: tuple[Ids, Floats], wanted: Mask) -> None:
    ids, block = found
    inside = wanted[buckets_of(rows.table, ids)]
    rows.insert(ids[inside], block[inside])
