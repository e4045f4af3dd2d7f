"""Checkpoints of tables, in the format and storage of all checkpoints of a job.

Each server writes its own buckets as one checkpoint. All that servers of one layout wrote with the same number are a
set:

    STORAGE/tables.HISTORY.LAYOUT.NUMBER.0-of-2/manifest.json

A set counts once every server of its layout has written its part. Numbers go up within a layout.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.core.data.ledger import Lineage
from pliant.core.model.checkpoint import Checkpoint
from pliant.errors import BadInput
from pliant.ps.tables.hashing import Floats
from pliant.ps.tables.spec import Table
from pliant.ps.tables.table_copy import Mask, TableCopy
from pliant.ps.wire import decode_copy, encode_copy
from pliant.train.checkpoint import (
    CheckpointFacts,
    PieceWriter,
    Storage,
    describe_other_owner,
    open_storage,
    read_checkpoint,
    read_manifest,
    write_manifest,
)

log = logging.getLogger(__name__)

LAST = 10**9  # the number of the set that is written at the end of a layout's time
_NAME = re.compile(r"tables" + r"\.([0-9]{1,18})" * 4 + r"-of-([0-9]{1,18})")


class TableSet(NamedTuple):
    """The parts of one checkpoint of all tables."""

    history: int
    layout: int
    number: int

    def part(self, index: int, count: int) -> str:
        """Return the name of the part of one server."""
        return f"tables.{self.history:04d}.{self.layout:08d}.{self.number:010d}.{index}-of-{count}"


def parse_part_name(name: str) -> tuple[TableSet, int, int] | None:
    """Return the set of a part, its index, and the number of parts; None if the name is not that of a part."""
    if (found := _NAME.fullmatch(name)) is None:
        return None
    history, layout, number, index, count = map(int, found.groups())
    return (TableSet(history, layout, number), index, count) if index < count else None


def _whole_sets(storage: Storage) -> list[tuple[TableSet, list[str]]]:
    """Return the sets that are whole, the newest last, each with the names of its parts."""
    parts: dict[tuple[TableSet, int], dict[int, str]] = defaultdict(dict)
    for name in storage.checkpoint_names():
        if (found := parse_part_name(name)) is not None:
            chosen, index, count = found
            parts[chosen, count][index] = name
    return sorted((key, sorted(names.values())) for (key, count), names in parts.items() if len(names) == count)


def _read_part(storage: Storage, name: str) -> dict[str, Any]:
    received = read_checkpoint(storage, read_manifest(storage, name).checkpoint)
    return decode_copy(received.tree, received.contents)


class TableStorage:
    """The storage of a job's tables."""

    def __init__(self, where: str, job: str, owner: str, keep: int) -> None:
        self._storage: Storage = open_storage(where)
        self._job, self._keep = job, keep
        found = self._storage.claim(owner)
        if not found.allows(owner):
            raise BadInput(describe_other_owner(self._storage.location, found))

    def write(self, chosen: TableSet, index: int, count: int, member: str, copy: dict[str, Any]) -> None:
        """Write one server's part. Raises OSError."""
        name, state = chosen.part(index, count), encode_copy(copy)
        if name in self._storage.checkpoint_names():
            return
        writer = PieceWriter(self._storage, name, state.tree, 0, 1, member, [leaf.nbytes for leaf in state.leaves])
        try:
            for leaf in state.leaves:
                writer.write(leaf.content)
            pieces = writer.finish()
        except BaseException:  # why: a file that is not complete must not stay, whatever the error
            writer.abandon()
            raise
        checkpoint = Checkpoint(Lineage(chosen.layout, chosen.number, 0), name, 0, pieces)
        write_manifest(self._storage, checkpoint, CheckpointFacts(time.time(), self._job, chosen.layout, (member,)))

    def sets(self, history: int) -> list[tuple[TableSet, list[str]]]:
        """Return the sets of a history that are whole, the newest last, each with the names of its parts."""
        return [each for each in _whole_sets(self._storage) if each[0].history == history]

    def restore(self, history: int, wanted: Mask) -> list[dict[str, Any]]:
        """Return the copies of buckets from the newest whole set; an empty list if there is none."""
        whole = self.sets(history)
        if not whole:
            return []
        chosen, names = whole[-1]
        log.info("%d buckets continue from %s", int(wanted.sum()), chosen.part(0, len(names)))
        found = []
        for name in names:
            copy = _read_part(self._storage, name)
            if wanted[np.asarray(copy["buckets"])].any():
                found.append(copy)
        return found

    def remove_old(self, history: int) -> None:
        """Remove whole sets other than the newest ones."""
        for _, names in self.sets(history)[: -self._keep]:
            for name in names:
                self._storage.remove(name)


def newest_set(where: str) -> str:
    """Return the name of the first part of the newest tables in a storage. Raises BadInput if there are none."""
    try:
        whole = _whole_sets(open_storage(where))
    except OSError as error:
        raise BadInput(f"{where} cannot be read: {error}.") from error
    if not whole:
        raise BadInput(f"{where} holds no saved tables. Pass the folder of a job that trained with parameter servers.")
    return whole[-1][1][0]


class SavedTables:
    """The rows of saved tables, to be read. `first_part` is what `newest_set` returned."""

    def __init__(self, where: str, first_part: str) -> None:
        storage = open_storage(where)
        names = next((names for _, names in _whole_sets(storage) if names[0] == first_part), None)
        if names is None:
            raise BadInput(f"{where} does not hold {first_part} any more: the job that trains there saved again.")
        self._where, self.name, self._copy = where, first_part, TableCopy()
        self.content = repr([read_manifest(storage, name).checkpoint for name in names])  # with hashes of the files
        for name in names:
            self._copy.install(_read_part(storage, name))

    @property
    def tables(self) -> list[Table]:
        return self._copy.tables

    def pull(self, table: str, ids: npt.ArrayLike) -> Floats:
        """Return the rows of a table by their ids, in the shape of the ids and one more dimension."""
        wanted = np.asarray(ids, np.int64)
        rows = self._copy.rows(table)
        return rows.pull(wanted.reshape(-1)).reshape(*wanted.shape, rows.table.dim)

    def push(self, gradients: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> bool:
        """Refuse: a saved model is not trained."""
        raise BadInput(f"The tables {', '.join(gradients)} of {self._where} are saved ones, and cannot be trained.")

    def create(self, table: str, ids: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Do nothing: rows that exist stay as they are."""
