"""The tables as a worker uses them: pull rows, push gradients. The rows are on servers, or in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.errors import BadInput
from pliant.ps.tables.hashing import Buckets, Floats, Ids, buckets_of
from pliant.ps.tables.spec import PushPolicy, Table, check_tables
from pliant.ps.tables.table_copy import UNKNOWN, Part, StaleUpdate, TableCopy, Update, Versions

ArrayLike = npt.ArrayLike
Gradients = Mapping[str, tuple[ArrayLike, ArrayLike]]

NEVER = np.iinfo(np.int64).max  # the version of a bucket of which nothing was pulled


class RowAccess(Protocol):
    """The place of the rows."""

    def pull(self, table: Table, ids: Ids, step: int = 0) -> tuple[Floats, Buckets, Versions]:
        """Return the values of rows, their buckets, and the versions of these. `step` is that of a live job."""

    def push(self, update: Update) -> bool:
        """Apply an update; False if it was too old. Returns once every copy has it."""

    def close(self) -> None:
        """Release connections."""


class TableAccess:
    """Use it from one thread. Ids may occur several times: their gradients are added up."""

    def __init__(self, worker: str, tables: Sequence[Table], policy: PushPolicy, rows: RowAccess) -> None:
        check_tables(tables, policy)
        self._worker, self._policy, self._rows = worker, policy, rows
        self._tables = {table.name: table for table in tables}
        self._forget_versions()
        self._sequence = 0

    def table(self, name: str) -> Table:
        """Return the settings of a table. Raises BadInput if there is none."""
        if name not in self._tables:
            raise BadInput(f"There is no table {name!r}; pass it in tables=. The tables are {sorted(self._tables)}.")
        return self._tables[name]

    def pull(self, name: str, ids: npt.ArrayLike, step: int = 0) -> Floats:
        """Return the values of the rows, in the order and shape of the ids. `step` is that of a live job."""
        table = self.table(name)
        wanted = _as_ids(name, ids)
        unique, inverse = np.unique(wanted, return_inverse=True)
        if not len(unique):
            return np.zeros((*wanted.shape, table.dim), np.float32)
        values, buckets, versions = self._rows.pull(table, unique, step)
        self._versions[name][buckets] = versions
        return values[inverse.reshape(-1)].reshape(*wanted.shape, table.dim)

    def push(self, gradients: Gradients) -> bool:
        """Apply gradients of rows, by table; return whether they were. False: pull and compute again.

        Returns once both copies of every row have them.
        """
        return self._push_all(gradients, creates=False)

    def push_slot(self, step: int, slot: int, parts: Sequence[Part]) -> None:
        """Add the gradients of a slot to the sum of its step. A slot that was pushed before changes nothing."""
        self._send(f"slot-{slot}", step, tuple(parts), creates=False)

    def end_steps(self, step: int) -> None:
        """Apply the sums of all steps before this one, in every bucket."""
        nothing = np.full(BUCKETS, UNKNOWN, np.int64)
        self._rows.push(Update("end", step, np.arange(BUCKETS), nothing, ()))

    def create(self, name: str, ids: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Create rows with these values. Rows that exist stay as they are, so every worker may call it."""
        self._push_all({name: (ids, values)}, creates=True)

    def _push_all(self, given: Gradients, *, creates: bool) -> bool:
        parts = tuple(self.part(name, ids, values, creates=creates) for name, (ids, values) in given.items())
        self._sequence += 1
        return self._send(self._worker, self._sequence, parts, creates=creates)

    def _send(self, worker: str, sequence: int, parts: tuple[Part, ...], *, creates: bool) -> bool:
        base = np.full(BUCKETS, NEVER, np.int64)
        touched: npt.NDArray[np.bool_] = np.zeros(BUCKETS, np.bool_)
        for part in parts:
            buckets = buckets_of(self._tables[part.table], part.ids)
            touched[buckets] = True
            base[buckets] = np.minimum(base[buckets], self._versions[part.table][buckets])
        if self._policy.grads_to_wait > 1 and not creates:
            touched[:] = True  # every bucket counts the pushes
        if not touched.any():
            return True
        base[base == NEVER] = UNKNOWN
        buckets = np.flatnonzero(touched)
        update = Update(worker, sequence, buckets, base[buckets], parts, creates)
        applied = self._rows.push(update)
        if not applied:
            self._forget_versions()  # the worker pulls again what it uses; the age of other rows must not count
        return applied

    def _forget_versions(self) -> None:
        """Forget which version each bucket had when rows of it were pulled, by table."""
        self._versions: dict[str, Versions] = {name: np.full(BUCKETS, NEVER, np.int64) for name in self._tables}

    def part(self, name: str, ids: npt.ArrayLike, values: npt.ArrayLike, *, creates: bool = False) -> Part:
        """Return gradients, or new values, in the form of an update. Raises BadInput if they cannot be used."""
        table, wanted = self.table(name), _as_ids(name, ids)
        rows = np.ascontiguousarray(values, np.float32)
        if rows.shape != (*wanted.shape, table.dim):
            raise BadInput(
                f"Table {name}: {wanted.shape} ids need values of shape {(*wanted.shape, table.dim)}, got {rows.shape}."
            )
        if not np.isfinite(rows).all():
            raise BadInput(f"Table {name}: the values are not all finite. Skip this batch, or lower the learning rate.")
        flat, rows = wanted.reshape(-1), rows.reshape(-1, table.dim)
        unique, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        if len(unique) == len(flat) or creates:
            return Part(name, unique, rows[first])
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(len(unique)))
        return Part(name, unique, np.add.reduceat(rows[order], starts, axis=0))

    def close(self) -> None:
        self._rows.close()


class LocalRows:
    """Tables in this process alone, for a script without a coordinator."""

    def __init__(self, tables: Sequence[Table], policy: PushPolicy) -> None:
        self._here = TableCopy()
        self._here.define(tables, policy)
        self._here.hold(np.arange(BUCKETS))

    def pull(self, table: Table, ids: Ids, step: int = 0) -> tuple[Floats, Buckets, Versions]:
        buckets = np.unique(buckets_of(table, ids))
        self._here.begin_step(buckets, step)
        return self._here.rows(table.name).pull(ids), buckets, self._here.version[buckets]

    def push(self, update: Update) -> bool:
        try:
            self._here.apply(update)
        except StaleUpdate:
            return False
        return True

    def close(self) -> None:
        """Nothing is open."""


def _as_ids(name: str, ids: Any) -> Ids:
    found = np.asarray(ids)
    if found.dtype.kind not in "iu":
        raise BadInput(f"Table {name}: ids must be integers, got {found.dtype}.")
    return np.ascontiguousarray(found, np.int64)
