"""The audit: exactly once, shown from the ledger (P3, rule 24).

The lines come in the order in which the coordinator accepted them: those of an attempt at a job, and of the
attempts that it went on from; one that began afresh has a ledger of its own. The committed history is the chain of
parents from its head back to GENESIS; lines off that chain were rolled back and are only counted.
Exactly-once is over the committed history, and it follows from four things:

- the canonical order of an epoch is a permutation of its samples, and the grid cuts it into steps and slots
  without gap or overlap (both are tested; they are arithmetic and depend on no run);
- the chain names every step from 1 to the last one once, in sequence;
- every line is sealed, so the chain is the one that was written;
- every line's digest, counted where the gradients entered the buffers, is the one that the order promises.

So no per-sample table is needed: the audit compares one number per step. What it shows is evidence under
the trust base of the ledger: honest members that may run buggy code. It says nothing against a member that
lies about what it read, nor about what the user's code did with a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, expected_digest, expected_slot_digest, is_sealed
from pliant.core.data.sample_order import MASK_64, Order
from pliant.errors import BadInput


@dataclass(frozen=True, slots=True)
class Audit:
    """What the ledger shows.

    `samples` is how many the committed history must hold, every epoch counted; `lost` and `repeated`
    how far it does not; `steps` the lines on the committed chain and `rolled_back` the lines off it.
    `problems` says in words everything that is not as it must be, rolled-back lines included; without any
    the audit is ok. Nothing lost or repeated goes without a problem; some problems (a line altered, a fence
    passed) cost no sample.
    """

    samples: int
    lost: int
    repeated: int
    steps: int
    rolled_back: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every sample is in the committed history exactly once and the ledger is sound."""
        return not self.problems


@dataclass(slots=True)
class _Findings:
    """What the audit has found so far."""

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
    """Check a job's ledger against its grid and order. Call it when a person asks, and after every test run.

    Pass `head` where the committed history does not end with the last line accepted: after a rollback
    whose world has not committed a step yet it is that world's base. Pass `finished=True` for a finished
    job: then all its steps must be there. `expected` may be a quicker twin of `expected_digest`, such
    as `pliant.train.data.order`'s.

    What cannot be shown counts as lost: a step whose digest is wrong, unless the difference is just that of
    a run of slots skipped or counted twice, and every step below a broken link.
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
        samples=_samples_up_to(grid, last),
        lost=findings.lost,
        repeated=findings.repeated,
        steps=len(chain),
        rolled_back=len(known) - len(chain),
        problems=tuple(findings.problems),
    )


def _index_lines(lines: Iterable[LedgerLine], findings: _Findings) -> tuple[dict[Lineage, LedgerLine], set[Lineage]]:
    """Give the lines by lineage, and the lineages whose parent was accepted before them."""
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
            findings.add(f"{name} was altered: its digest does not cover what it says")
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
    """Follow the parents from the head down; give the lines, first step first.

    Only links to a line accepted earlier are followed, so the walk ends whatever the ledger says.
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
            f"but its line says epoch {line.epoch}, position {line.position}"
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
    """Say what a wrong digest means: a run of slots left out, or counted twice, or no one can tell.

    The first two are what forgetting a lost member's slots and redoing kept ones look like (H13, H15), and
    digests being sums, they can be told: the difference is the sum over that run.
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
            lost = _samples_up_to(grid, step - 1) - _samples_up_to(grid, before)
            findings.add(
                f"steps {before + 1} to {step - 1} are not in the committed history: {lost} samples lost",
                lost=lost,
            )
        before = step


def _samples_up_to(grid: Grid, step: int) -> int:
    """Count the samples of all steps up to and with this one."""
    cursor = grid.cursor(step + 1)
    return cursor.epoch * grid.samples + cursor.position
