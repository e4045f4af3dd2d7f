"""The tables of a live job: rows on parameter servers beside a model that the members reduce.

A push is kept until its item ends, and acknowledged before the member enters the reduction of the step. The servers add
up the pushes of a step by slot, so a slot that is computed again counts once. All pulls of a step see the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.errors import BadInput
from pliant.ps.access import Gradients, LocalRows, RowAccess, TableAccess
from pliant.ps.client import LayoutNews, ServerRows
from pliant.ps.tables.hashing import Floats
from pliant.ps.tables.spec import BY_STEP, Table, check_tables, table_terms
from pliant.ps.tables.table_copy import WORKERS_KEPT, Part
from pliant.train.peer.framing import WaitCheck
from pliant.wire.views import PeerKey

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls


DETERMINISTIC, SKIP, SCALER = "deterministic=True", 'nonfinite="skip"', "scaler="
BATCH_SIZE, SAVES_ALONE = "BatchSize", "A checkpoint of a script alone"
WHY_NOT = {
    DETERMINISTIC: "servers add gradients in the order in which they arrive, so the bits depend on it.",
    SKIP: 'the rows of a step are pushed before its gradient is known. Use "raise" or "ignore".',
    SCALER: "the gradients of rows would be scaled. Use bfloat16.",
    BATCH_SIZE: "after a rollback the same slot could have other samples.",
    SAVES_ALONE: "the tables are in its memory and are not saved. Use `pliant run --ps N --mode live`, or remove "
    "checkpoint_dir= and PLIANT_CHECKPOINT_DIR.",
}


class LiveTables:
    """Use it from the training thread. `alone`: the rows are in this process, for a script without a coordinator.

    `check` is called while it waits for servers, and raises to end the wait.
    """

    def __init__(
        self, me: MemberId, tables: Sequence[Table], check: WaitCheck, tls: PeerTls | None, *, alone: bool
    ) -> None:
        check_tables(tables, BY_STEP)
        self.terms = table_terms(tables, BY_STEP)
        self._layouts = LayoutNews()
        rows: RowAccess = LocalRows(tables, BY_STEP)
        self._initial = TableAccess(me, tables, BY_STEP, rows)
        if not alone:
            rows = ServerRows(me, tables, BY_STEP, self._layouts, check, tls)
        self._tables = TableAccess(me, tables, BY_STEP, rows)
        self._found: list[Part] = []

    def view_received(self, view: View, keys: Sequence[PeerKey]) -> None:
        """Follow the layout of the servers."""
        for key in keys:
            if view.layout is not None and key.generation == view.layout.number:
                self._layouts.put(view.layout, key.key)

    def pull(self, table: str, ids: npt.ArrayLike, step: int, *, idle: bool) -> Floats:
        """Return rows with all pushes of the steps before `step`. An item that does not count has initial rows."""
        return self._initial.pull(table, ids) if idle else self._tables.pull(table, ids, step)

    def push(self, gradients: Gradients) -> None:
        """Keep gradients until the item ends."""
        self._found += [self._tables.part(name, ids, values) for name, (ids, values) in gradients.items()]

    def end_part(self, step: int, slot: int, share: float) -> None:
        """Push the kept gradients as those of a slot, multiplied by its share of the step. Waits for the servers."""
        found, self._found = self._found, []
        scaled = [replace(part, values=part.values * np.float32(share)) for part in found]
        self._tables.push_slot(step, slot, scaled)

    def drop_part(self) -> None:
        """Drop the kept gradients: the item does not count."""
        self._found = []

    def end(self, step: int) -> None:
        """Let the servers apply the pushes of all steps before this one: no later request may come."""
        self._tables.end_steps(step)

    def close(self) -> None:
        self._tables.close()


def check_live_tables(slots: int | None, given: Mapping[str, bool]) -> None:
    """Check the arguments of `job.train` that tables restrict: `slots`, and whether each key of `WHY_NOT` is given."""
    if slots is None or slots > WORKERS_KEPT:
        raise BadInput(
            f"tables= needs slots=, the number of items of a step on all members, up to {WORKERS_KEPT}; got {slots}. "
            "Pass slots=16, for example."
        )
    for name, why in WHY_NOT.items():
        if given.get(name):
            raise BadInput(f"{name} and tables= cannot be combined: {why}")
