"""The grid under any shape, any weights and any history of a world (rules 14, 21, 22)."""

from collections import Counter
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pliant.core.data.grid import Grid, are_disjoint, assign_missing, deal_slots, idle_slot, missing_slots
from pliant.core.data.sample_order import Cursor


@st.composite
def grids(draw: st.DrawFn, samples_max: int = 200) -> Grid:
    batch = draw(st.integers(1, 40))
    slots = draw(st.integers(1, batch))
    return Grid(draw(st.integers(1, samples_max)), batch, slots, epochs=draw(st.integers(1, 3)))


def by_the_rule(grid: Grid, step: int) -> list[list[int]]:
    """Cut a step into slots literally as rule 21 says, by making the epoch's positions and slicing them."""
    epoch = list(range(grid.samples))
    cursor = (step - 1) % grid.steps_per_epoch * grid.batch
    bounds = [cursor + slot * grid.batch // grid.slots for slot in range(grid.slots + 1)]
    slots = [epoch[bounds[slot] : bounds[slot + 1]] for slot in range(grid.slots)]
    last = max(slot for slot in range(grid.slots) if slots[slot])
    full_width = bounds[last + 1] - bounds[last]
    if len(slots[last]) == 1 and full_width > 1 and last > 0:
        slots[last - 1] += slots[last]
        slots[last] = []
    return slots


@given(grids())
def test_slots_are_what_the_rule_says(grid: Grid) -> None:
    for step in range(1, grid.total_steps + 1):
        slots = [grid.slot(step, slot) for slot in range(grid.slots)]
        assert [list(slot) for slot in slots] == by_the_rule(grid, step)
        assert grid.filled(step) == tuple(slot for slot in range(grid.slots) if slots[slot])
        assert grid.size(step) == sum(map(len, slots))


@given(grids())
def test_the_steps_of_an_epoch_hold_each_position_once_and_in_sequence(grid: Grid) -> None:
    for epoch in range(grid.epochs):
        steps = range(epoch * grid.steps_per_epoch + 1, (epoch + 1) * grid.steps_per_epoch + 1)
        read = [at for step in steps for slot in range(grid.slots) for at in grid.slot(step, slot)]
        assert read == list(range(grid.samples))
        assert [grid.cursor(step).epoch for step in steps] == [epoch] * grid.steps_per_epoch
    assert grid.cursor(grid.total_steps + 1) == Cursor(grid.epochs, 0)


@given(grids())
def test_only_a_cut_of_a_whole_step_to_one_sample_leaves_it_alone_in_a_wide_slot(grid: Grid) -> None:
    for step in range(1, grid.total_steps + 1):
        for slot in grid.filled(step):
            full_width = (slot + 1) * grid.batch // grid.slots - slot * grid.batch // grid.slots
            if len(grid.slot(step, slot)) == 1 < full_width:
                assert grid.size(step) == 1


weights = st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any)


@given(st.integers(1, 300), weights)
def test_slots_are_dealt_out_completely_and_within_one_of_the_exact_share(slots: int, weights: list[int]) -> None:
    runs = deal_slots(slots, weights)
    assert [slot for run in runs for slot in run] == list(range(slots))
    for run, weight in zip(runs, weights, strict=True):
        assert abs(len(run) - Fraction(slots * weight, sum(weights))) < 1
        assert run.step == 1


@given(st.integers(1, 300), weights, st.integers(2, 9))
def test_only_the_proportion_of_weights_counts(slots: int, weights: list[int], factor: int) -> None:
    assert deal_slots(slots, weights) == deal_slots(slots, [weight * factor for weight in weights])


@given(st.integers(1, 300), st.integers(1, 40))
def test_equal_members_own_equally_many_slots_within_one(slots: int, size: int) -> None:
    owned = [len(run) for run in deal_slots(slots, [1] * size)]
    assert max(owned) - min(owned) <= 1


@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 30), min_size=1))
def test_missing_slots_are_redone_once_and_evenly(slots: set[int], ranks: set[int]) -> None:
    shares = assign_missing(tuple(slots), tuple(ranks))
    assert shares.keys() == ranks
    assert sorted(slot for share in shares.values() for slot in share) == sorted(slots)
    amounts = [len(shares[rank]) for rank in sorted(ranks)]
    assert amounts == sorted(amounts, reverse=True)
    assert amounts[0] - amounts[-1] <= 1
    assert all(list(share) == sorted(share) for share in shares.values())


@given(st.lists(st.frozensets(st.integers(0, 9))))
def test_disjoint_means_that_no_two_sets_meet(kept: list[frozenset[int]]) -> None:
    pairs = [(one, two) for at, one in enumerate(kept) for two in kept[:at]]
    assert are_disjoint(kept) == all(one.isdisjoint(two) for one, two in pairs)


@given(grids(), st.data())
def test_what_is_idle_is_spread_over_real_slots(grid: Grid, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, grid.total_steps))
    filled = grid.filled(step)
    chosen = [idle_slot(grid, step, rank) for rank in range(len(filled))]
    assert sorted(chosen) == list(filled)


class World(RuleBasedStateMachine):
    """Members come and go, weights change, steps fail half way; every sample of an epoch counts exactly
    once.
    """

    grid: Grid

    @initialize(grid=grids(samples_max=60))
    def start(self, grid: Grid) -> None:
        self.grid = grid
        self.step = 1
        self.weights = [1]
        self.counted: Counter[tuple[int, int]] = Counter()

    def count(self, slots: frozenset[int]) -> None:
        """Add the gradient of these slots: what they hold is from now on part of the step."""
        epoch = self.grid.cursor(self.step).epoch
        for slot in slots:
            self.counted.update((epoch, position) for position in self.grid.slot(self.step, slot))

    def owned(self) -> list[frozenset[int]]:
        filled = frozenset(self.grid.filled(self.step))
        return [filled.intersection(run) for run in deal_slots(self.grid.slots, self.weights)]

    @rule(weight=st.integers(0, 5))
    def join(self, weight: int) -> None:
        self.weights.append(weight)

    @precondition(lambda self: len(self.weights) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        rank = data.draw(st.integers(0, len(self.weights) - 1))
        assume(any(self.weights[:rank] + self.weights[rank + 1 :]))
        del self.weights[rank]

    @rule(data=st.data())
    def change_weights(self, data: st.DataObject) -> None:
        size = len(self.weights)
        self.weights = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any))

    @precondition(lambda self: self.step <= self.grid.total_steps)
    @rule()
    def do_a_step(self) -> None:
        for rank, slots in enumerate(self.owned()):
            self.count(slots)
            yielded = slots or {idle_slot(self.grid, self.step, rank)}
            assert all(self.grid.slot(self.step, slot) for slot in yielded)
        self.step += 1

    @precondition(lambda self: self.step <= self.grid.total_steps)
    @rule(data=st.data())
    def lose_members_within_a_step(self, data: st.DataObject) -> None:
        """Each member got some way through its slots, then some were lost; the others finish the step."""
        kept = [
            frozenset(sorted(slots)[: data.draw(st.integers(0, len(slots)), label="computed")])
            for slots in self.owned()
        ]
        ranks = range(len(self.weights))
        left = sorted(data.draw(st.sets(st.sampled_from(ranks), min_size=1), label="survivors"))
        survivors = [kept[rank] for rank in left]
        assert are_disjoint(survivors)
        lacking = missing_slots(self.grid.filled(self.step), survivors)
        shares = assign_missing(lacking, range(len(left)))
        for rank, had in enumerate(survivors):
            again = frozenset(shares[rank])
            assert again.isdisjoint(had)
            self.count(had | again)
        self.weights = [max(1, self.weights[rank]) for rank in left]
        self.step += 1

    @invariant()
    def everything_before_the_cursor_counts_once_and_nothing_else_does(self) -> None:
        cursor = self.grid.cursor(self.step)
        consumed = [(epoch, at) for epoch in range(cursor.epoch) for at in range(self.grid.samples)]
        consumed += [(cursor.epoch, at) for at in range(cursor.position)]
        assert sorted(self.counted.elements()) == consumed


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=25)
