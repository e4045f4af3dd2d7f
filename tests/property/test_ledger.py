"""The ledger and its audit over any history: sound ones pass, and any single mistake is found (rule 24)."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pliant.core.data.audit import Audit, audit
from pliant.core.data.grid import Grid, deal_slots
from pliant.core.data.ledger import (
    GENESIS,
    LedgerLine,
    Lineage,
    add_digests,
    can_follow,
    expected_digest,
    expected_slot_digest,
    is_sealed,
    make_line,
    slot_digest,
)
from pliant.core.data.ledger_check import LedgerCheck
from pliant.core.data.sample_order import Order

words = st.integers(0, 2**64 - 1)
lineages = st.builds(Lineage, words, words, words)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Grid, Order]:
    batch = draw(st.integers(1, 12))
    grid = Grid(draw(st.integers(1, 60)), batch, draw(st.integers(1, batch)), epochs=draw(st.integers(1, 2)))
    return grid, Order(draw(st.integers()), grid.samples)


def honest(grid: Grid, order: Order, parent: Lineage, generation: int) -> LedgerLine:
    step = parent.step + 1
    digest = expected_digest(grid, order, step)
    return make_line(parent, generation, step, grid.cursor(step), grid.size(step), digest)


def history(grid: Grid, order: Order) -> list[LedgerLine]:
    lines: list[LedgerLine] = []
    for _ in range(grid.total_steps):
        lines.append(honest(grid, order, lines[-1].lineage if lines else GENESIS, generation=1))
    return lines


@given(lineages, lineages)
def test_lineages_compare_by_generation_then_step(one: Lineage, two: Lineage) -> None:
    assert one.newer_than(two) == (one.key() > two.key())
    assert not (one.newer_than(two) and two.newer_than(one))


@given(st.lists(words), st.data())
def test_digests_add_up_in_any_order(digests: list[int], data: st.DataObject) -> None:
    def total(values: list[int]) -> int:
        result = 0
        for value in values:
            result = add_digests(result, value)
        return result

    shuffled = data.draw(st.permutations(digests))
    assert total(digests) == total(shuffled) == sum(digests) % 2**64


@given(jobs(), st.integers(1, 8), st.data())
def test_the_digest_of_a_step_does_not_depend_on_the_world(
    job: tuple[Grid, Order], size: int, data: st.DataObject
) -> None:
    grid, order = job
    step = data.draw(st.integers(1, grid.total_steps))
    total = 0
    for run in deal_slots(grid.slots, [1] * size):
        mine = 0
        for slot in run:
            read = order.take(grid.cursor(step).epoch, grid.slot(step, slot))
            mine = add_digests(mine, slot_digest(step, slot, read))
        total = add_digests(total, mine)
    assert total == expected_digest(grid, order, step)


@given(lineages, words, st.data())
def test_any_line_that_was_written_is_sealed_and_follows_only_if_it_may(
    parent: Lineage, number: int, data: st.DataObject
) -> None:
    step = data.draw(st.sampled_from([min(parent.step + 1, 2**64 - 1), number]))
    generation = data.draw(st.sampled_from([parent.generation, number]))
    grid = Grid(10, 5, 5, 1)
    made = make_line(parent, generation, step, grid.cursor(1), samples=5, digest=number)
    assert is_sealed(made)
    assert can_follow(made, parent) == (step == parent.step + 1 and generation >= parent.generation)


@given(jobs(), st.data())
def test_any_single_change_of_a_ledger_is_found(job: tuple[Grid, Order], data: st.DataObject) -> None:
    grid, order = job
    lines = history(grid, order)
    at = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["drop", "repeat", "swap", "cursor", "samples", "digest", "generation"])):
        case "drop":
            del lines[at]
        case "repeat":
            lines.insert(at, lines[at])
        case "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            assume(other != at)
            lines[at], lines[other] = lines[other], lines[at]
        case "cursor":
            lines[at] = replace(lines[at], position=lines[at].position + 1)
        case "samples":
            lines[at] = replace(lines[at], samples=lines[at].samples + 1)
        case "digest":
            lines[at] = replace(lines[at], digest=lines[at].digest ^ 1)
        case _:
            lines[at] = replace(lines[at], lineage=replace(lines[at].lineage, generation=2))
    assert not audit(grid, order, lines, finished=True).ok


@given(jobs(), st.data())
def test_slots_forgotten_or_doubled_in_a_well_written_ledger_are_counted(
    job: tuple[Grid, Order], data: st.DataObject
) -> None:
    """The line is sealed and the cursor moves on perfectly: only the digest can tell (H13, H15)."""
    grid, order = job
    wrong = data.draw(st.integers(1, grid.total_steps))
    filled = grid.filled(wrong)
    first = data.draw(st.sampled_from(filled))
    run = range(first, data.draw(st.integers(first + 1, len(filled))))
    samples = sum(len(grid.slot(wrong, slot)) for slot in run)
    twice = data.draw(st.booleans())
    lines: list[LedgerLine] = []
    for step in range(1, grid.total_steps + 1):
        digest = expected_digest(grid, order, step)
        if step == wrong:
            change = sum(expected_slot_digest(grid, order, step, slot) for slot in run)
            digest = (digest + (change if twice else -change)) % 2**64
        parent = lines[-1].lineage if lines else GENESIS
        lines.append(make_line(parent, 1, step, grid.cursor(step), grid.size(step), digest))
    found = audit(grid, order, lines, finished=True)
    assert (found.lost, found.repeated) == ((0, samples) if twice else (samples, 0))
    assert len(found.problems) == 1


class Job(RuleBasedStateMachine):
    """Generations commit steps, worlds roll back to any committed step; the audit always tells it as it
    was.
    """

    @initialize(job=jobs())
    def start(self, job: tuple[Grid, Order]) -> None:
        self.grid, self.order = job
        self.lines: list[LedgerLine] = []
        self.committed: list[LedgerLine] = []
        self.generation = 1

    @property
    def head(self) -> Lineage:
        return self.committed[-1].lineage if self.committed else GENESIS

    @precondition(lambda self: self.head.step < self.grid.total_steps)
    @rule()
    def commit_a_step(self) -> None:
        made = honest(self.grid, self.order, self.head, self.generation)
        assert can_follow(made, self.head)
        assert not any(can_follow(made, one.lineage) for one in self.lines if one.lineage != self.head)
        self.lines.append(made)
        self.committed.append(made)

    @rule(skipped=st.integers(1, 3))
    def enter_another_world(self, skipped: int) -> None:
        self.generation += skipped

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        del self.committed[data.draw(st.integers(0, len(self.committed)), label="base") :]
        self.generation += 1

    @invariant()
    def the_audit_tells_it_as_it_was(self) -> None:
        cursor = self.grid.cursor(self.head.step + 1)
        sound = Audit(
            samples=cursor.epoch * self.grid.samples + cursor.position,
            lost=0,
            repeated=0,
            steps=len(self.committed),
            rolled_back=len(self.lines) - len(self.committed),
            problems=(),
        )
        assert audit(self.grid, self.order, self.lines, head=self.head) == sound
        if self.lines and self.lines[-1].lineage == self.head:
            assert audit(self.grid, self.order, self.lines) == sound
        check = LedgerCheck(self.grid, lambda grid, steps: [expected_digest(grid, self.order, step) for step in steps])
        for line in self.lines:
            check.add(line)
        assert check.result(head=self.head) == sound


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=60, stateful_step_count=25)
