"""The audit: proof from the ledger that every sample was used exactly once (P3, rule 24).

The lines come in the order in which the coordinator accepted them: those of an attempt at a job, and of the attempts
that it continued. An attempt that began afresh has its own ledger. The committed history is the chain of parents from
its head back to GENESIS. Lines off that chain were rolled back and are only counted. Exactly-once holds for the
committed history, and follows from four facts:

- the canonical order of an epoch is a permutation of its samples, and the grid cuts it into steps and slots
  without gap or overlap (both are tested; they are arithmetic and depend on no run). An order that user code draws
  may repeat samples: then exactly-once holds for its positions;
- the chain names every step from 1 to the last one once, in sequence, and each line starts where the last one ended,
  whatever the batch: the lines themselves name every change of it;
- every line is sealed, so the chain is the one that was written;
- every line's digest, counted where the gradients entered the buffers, equals the digest of the promised samples.

So no per-sample table is needed: the audit compares one number per step. Its result is evidence under the trust base of
the ledger: honest members that may run buggy code. It does not detect a member that lies about the samples it read, nor
what the user's code did with a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import (
    GENESIS,
    LedgerLine,
    Lineage,
    expected_digest,
    expected_slot_digest,
    is_sealed,
    with_changes_of,
)
from pliant.core.data.sample_order import MASK_64, Order
from pliant.errors import BadInput


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    `samples` is the number of samples the committed history must hold, over all epochs. `lost` and `repeated` count the
    deviations. `steps` counts the lines on the committed chain and `rolled_back` the lines off it. `problems` describes
    everything wrong, rolled-back lines included; without problems the audit is ok. Every lost or repeated sample has a
    problem; some problems (an altered line, a passed fence) cost no sample.
    """

    samples: int
    lost: int
    repeated: int
    steps: int
    rolled_back: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if every sample is in the committed history exactly once and the ledger is sound."""
        return not self.problems


@dataclass(slots=True)
class _Findings:
    """The findings of an audit in progress."""

    lost: int = 0
    repeated: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str, *, lost: int = 0, repeated: int = 0) -> None:
        self.problems.append(problem)
        self.lost += lost
        self.repeated += repeated


def audit(
    grid: Grid,
    order: Order,
    lines: Sequence[LedgerLine],
    *,
    head: Lineage | None = None,
    finished: bool = False,
    expected: Callable[[Grid, Order, int], int] = expected_digest,
) -> Audit:
    """Check a job's ledger against its grid and order.

    Pass `head` if the committed history does not end with the last accepted line: after a rollback whose world has not
    committed a step yet, the head is that world's base. Pass `finished=True` for a finished job: then all its steps
    must be there. `expected` may be a faster equivalent of `expected_digest`, such as the one in
    `pliant.train.data.order`.

    Samples without evidence count as lost: those of a step with a wrong digest, unless the difference is exactly a run
    of slots skipped or counted twice, and those of every step below a broken link.
    """
    if grid.samples != order.samples:
        raise BadInput(
            f"the grid has {grid.samples} samples and the order {order.samples}: "
            "audit a job with its own seed and its own data"
        )
    if head is None:
        head = lines[-1].lineage if lines else GENESIS
    findings = _Findings()
    known, links = _index_lines(lines, findings)
    chain = _committed_chain(known, links, head, findings)
    grid = _with_changes(grid, chain, findings)
    last = grid.total_steps if finished else max(0, min(head.step, grid.total_steps))
    seen: set[int] = set()
    for line in chain:
        step = line.lineage.step
        if not 1 <= step <= grid.total_steps:
            findings.add(
                f"step {step} is committed, but the job has steps 1 to {grid.total_steps}: "
                f"{line.samples} samples were used beyond its end",
                repeated=line.samples,
            )
        elif step in seen:
            size = grid.size(step)
            findings.add(f"step {step} is committed twice: {size} samples repeated", repeated=size)
        else:
            seen.add(step)
            _check_line(grid, order, line, expected(grid, order, step), findings)
    _report_gaps(grid, seen, last, findings)
    return Audit(
        samples=grid.samples_up_to(last),
        lost=findings.lost,
        repeated=findings.repeated,
        steps=len(chain),
        rolled_back=len(known) - len(chain),
        problems=tuple(findings.problems),
    )


def _with_changes(grid: Grid, chain: Iterable[LedgerLine], findings: _Findings) -> Grid:
    """Return the job's first grid with the changes of the batch that the committed lines agreed on."""
    grid = replace(grid, changes=())
    for line in chain:
        try:
            grid = with_changes_of(grid, (line,))
        except BadInput as error:
            findings.add(f"step {line.lineage.step} agreed on a batch that cannot be: {error}")
    return grid


def _index_lines(lines: Iterable[LedgerLine], findings: _Findings) -> tuple[dict[Lineage, LedgerLine], set[Lineage]]:
    """Return the lines by lineage, and the lineages whose parent was accepted before them."""
    known: dict[Lineage, LedgerLine] = {}
    links: set[Lineage] = set()
    previous = GENESIS
    for line in lines:
        own, parent = line.lineage, line.parent
        name = f"the line of step {own.step} in generation {own.generation}"
        if own in known:
            findings.add(f"{name} was accepted twice")
            continue
        if not is_sealed(line):
            findings.add(f"{name} was altered: its digest does not cover its content")
        if parent != GENESIS and parent not in known:
            findings.add(f"{name} has a parent that was not accepted before it: the chain is broken there")
        else:
            links.add(own)
        if own.step != parent.step + 1:
            findings.add(f"{name} has a parent at step {parent.step}: steps must follow one another")
        if own.generation < previous.generation:
            findings.add(f"{name} was accepted after generation {previous.generation}, which fences it (P6)")
        elif own.generation == previous.generation and parent != previous:
            findings.add(f"{name} is a second branch in its generation: only a rollback world may start one")
        known[own] = line
        previous = own
    return known, links


def _committed_chain(
    known: dict[Lineage, LedgerLine], links: set[Lineage], head: Lineage, findings: _Findings
) -> list[LedgerLine]:
    """Follow the parents from the head down; return the lines, first step first.

    Only links to a line accepted earlier are followed, so the walk ends for any ledger.
    """
    chain: list[LedgerLine] = []
    at = head
    if at != GENESIS and at not in known:
        findings.add(f"the head, step {at.step} in generation {at.generation}, is not in the ledger")
        return chain
    while at != GENESIS:
        chain.append(known[at])
        if at not in links:
            break
        at = known[at].parent
    chain.reverse()
    return chain


def _check_line(grid: Grid, order: Order, line: LedgerLine, promised: int, findings: _Findings) -> None:
    """Compare one committed line with what the grid and the order promise for its step."""
    step = line.lineage.step
    cursor = grid.cursor(step)
    size = grid.size(step)
    if (line.epoch, line.position) != (cursor.epoch, cursor.position):
        findings.add(
            f"step {step} starts at epoch {cursor.epoch}, position {cursor.position}, "
            f"but its line has epoch {line.epoch}, position {line.position}"
        )
    if line.digest != promised:
        _explain_digest(grid, order, line, findings)
    elif line.samples != size:
        findings.add(
            f"step {step} holds {size} samples, but its line counts {line.samples}",
            lost=max(0, size - line.samples),
            repeated=max(0, line.samples - size),
        )


def _explain_digest(grid: Grid, order: Order, line: LedgerLine, findings: _Findings) -> None:
    """Report the meaning of a wrong digest: a run of slots left out or counted twice, or an unknown cause.

    The first two are the effect of forgetting a lost member's slots, or of redoing kept ones. They can be recognised
    because digests are sums: the difference is the sum over that run.
    """
    step = line.lineage.step
    slots = grid.filled(step)
    sums = [0]
    for slot in slots:
        sums.append((sums[-1] + expected_slot_digest(grid, order, step, slot)) & MASK_64)
    index = {total: at for at, total in enumerate(sums)}
    surplus = (line.digest - sums[-1]) & MASK_64
    for at, total in enumerate(sums):
        other = index.get((total - surplus) & MASK_64)
        if other is None or other == at:
            continue
        first, stop = min(at, other), max(at, other)
        positions = range(grid.slot(step, first).start, grid.slot(step, stop - 1).stop)
        where = (
            f"step {step}: slots {first} to {stop - 1} "
            f"(epoch {grid.cursor(step).epoch}, positions {positions.start} to {positions.stop - 1})"
        )
        if at < other:
            findings.add(f"{where} were left out: {len(positions)} samples lost", lost=len(positions))
        else:
            findings.add(f"{where} were counted twice: {len(positions)} samples repeated", repeated=len(positions))
        return
    size = grid.size(step)
    findings.add(
        f"step {step} has a wrong digest: the samples really read are not those promised, "
        f"so its {size} samples count as lost (its line counts {line.samples})",
        lost=size,
    )


def _report_gaps(grid: Grid, seen: set[int], last: int, findings: _Findings) -> None:
    """Report the runs of steps, up to the last one, that no committed line names."""
    before = 0
    for step in (*sorted(at for at in seen if at <= last), last + 1):
        if step > before + 1:
            lost = grid.samples_up_to(step - 1) - grid.samples_up_to(before)
            findings.add(
                f"steps {before + 1} to {step - 1} are not in the committed history: {lost} samples lost",
                lost=lost,
            )
        before = step
