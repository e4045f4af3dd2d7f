"""Check a ledger line by line, with 16 bytes of memory for each committed step.

`LedgerCheck` confirms that a ledger is sound. It does not explain a problem: that needs every line at hand, and
`pliant.core.data.audit` does it. A check that is not sure reports None, so the two never disagree.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from pliant.core.data.audit import Audit
from pliant.core.data.grid import BATCH_MAX, Grid
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, is_sealed, with_changes_of

__all__ = ["DIGESTS_AT_ONCE", "LedgerCheck"]

DIGESTS_AT_ONCE = 4096  # lines whose digests are compared together

ExpectedDigests = Callable[[Grid, range], Sequence[int]]
"""Returns the digests of these steps of a grid for the samples that the job's order promises."""


class LedgerCheck:
    """A ledger under check. Call `add` with each accepted line in order, then `result`.

    `expected` is None where the order cannot be recomputed: then digests are not compared.
    """

    def __init__(self, grid: Grid, expected: ExpectedDigests | None) -> None:
        self._grid = replace(grid, changes=())  # with the changes of the batch on the chain
        self._expected = expected
        self._tip = GENESIS  # of the chain
        self._last = GENESIS  # the line accepted last
        self._generations = array("Q")  # of the chain, by step
        self._digests = array("Q")
        self._totals: list[int] = []  # digests of the newest lines of the chain, not compared yet
        self._accepted = 0
        self._sound = True

    def add(self, line: LedgerLine) -> None:
        """Take the next accepted line."""
        if self._sound:
            self._sound = self._follows(line)

    def _follows(self, line: LedgerLine) -> bool:
        own, parent = line.lineage, line.parent
        if own.step != parent.step + 1 or own.generation < self._last.generation or not is_sealed(line):
            return False
        if parent != self._tip:
            # A later generation may go back to a line of the chain. What followed that line is rolled back.
            if own.generation == self._last.generation or not self._has(parent):
                return False
            self._cut(parent)
        if not self._is_as_promised(line):
            return False
        self._accepted += 1
        self._generations.append(own.generation)
        self._digests.append(own.digest)
        self._tip = self._last = own
        if line.next_batch:
            self._grid = with_changes_of(self._grid, (line,))
        self._totals.append(line.digest)
        return len(self._totals) < DIGESTS_AT_ONCE or self._compare()

    def _is_as_promised(self, line: LedgerLine) -> bool:
        grid, step = self._grid, line.lineage.step
        if step > grid.total_steps or line.samples != grid.size(step):
            return False
        if line.next_batch and not grid.slots <= line.next_batch < BATCH_MAX:
            return False
        cursor = grid.cursor(step)
        return (line.epoch, line.position) == (cursor.epoch, cursor.position)

    def _has(self, lineage: Lineage) -> bool:
        """Return whether the lineage is on the chain, or its beginning."""
        if lineage == GENESIS:
            return True
        at = lineage.step - 1
        return 0 <= at < len(self._digests) and (self._generations[at], self._digests[at]) == (
            lineage.generation,
            lineage.digest,
        )

    def _cut(self, tip: Lineage) -> None:
        del self._generations[tip.step :], self._digests[tip.step :]
        compared = self._tip.step - len(self._totals)
        del self._totals[max(0, tip.step - compared) :]
        self._tip = tip
        self._grid = self._grid.up_to(tip.step)

    def _compare(self) -> bool:
        """Compare the digests that were gathered. Return whether they are those of the promised samples."""
        totals, self._totals = self._totals, []
        steps = range(self._tip.step - len(totals) + 1, self._tip.step + 1)
        return self._expected is None or list(self._expected(self._grid, steps)) == totals

    def result(self, *, head: Lineage | None = None, finished: bool = False) -> Audit | None:
        """Return the audit of a sound ledger, as `audit` returns it; None if there may be a problem.

        `head` and `finished` are those of `audit`. Call it once.
        """
        if head is not None and self._sound:
            self._sound = self._has(head)
            if self._sound:
                self._cut(head)
        last = self._tip.step
        if not self._sound or (finished and last != self._grid.total_steps) or not self._compare():
            return None
        return Audit(
            samples=self._grid.samples_up_to(last),
            lost=0,
            repeated=0,
            steps=last,
            rolled_back=self._accepted - last,
            problems=(),
        )
