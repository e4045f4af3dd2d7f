"""A failure between every two signals, and what must be so whenever it strikes (P1, P2, P3; rules 10-15).

Everything runs by itself for so many orders; then a member dies, and the others are told of a recovery world. The run
must end as if nothing had been, but for the generation in which its steps were taken.
"""

from dataclasses import replace

import pytest

from pliant.core.data.audit import audit
from pliant.core.data.ledger import LedgerLine
from pliant.core.member import Phase
from pliant.core.member.signals import Send
from pliant.core.messages import Stopped
from pliant.core.model.job import Terms
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import GRID, ORDER, Crew, gathered, rollback, training

Names = tuple[MemberId, ...]
SHORT = Terms(replace(GRID, epochs=2), seed=7)  # 8 steps: enough for a failure and what comes of it


def present(crew: Crew) -> Names:
    """Return who would be in the next recovery world: every live member of an open generation (rule 11)."""
    numbers = [one for one in crew.view.worlds if one.number >= crew.view.current]
    named = dict.fromkeys(name for one in numbers for name in one.members)
    return tuple(name for name in named if crew.seats[name].alive)


def run(crew: Crew, orders: int) -> None:
    assert crew.run(lambda: False, limit=orders) == orders, "the run ended before the failure"


def quiet(crew: Crew) -> None:
    """Until no operation is under way."""
    crew.run(lambda: not any(seat.machine.in_flight for seat in crew.seats.values()))


def finish(crew: Crew, number: int) -> None:
    """Recover as the coordinator would, from the newest state there is, until every member is done."""
    members = present(crew)
    crew.hush()
    crew.recover(number, *members)
    crew.run(lambda: False)
    if any(is_stateless(crew, name) for name in members):
        crew.seal(rollback(number + 1, *members))
        crew.run(lambda: False)
    assert [crew[name].phase for name in members] == [Phase.DONE] * len(members)
    assert len({crew.state(name) for name in members}) == 1
    assert crew.state(members[0]).posts == SHORT.grid.total_steps


def is_stateless(crew: Crew, name: MemberId) -> bool:
    said = crew.said(name)
    return any(isinstance(x, Send) and isinstance(x.command, Stopped) and x.command.stateless for x in said)


def committed(crew: Crew) -> set[LedgerLine]:
    """Return what any member, the dead included, knows to be committed."""
    return {line for seat in crew.seats.values() for line in seat.machine.committed_lines} | set(crew.history)


def check_history(crew: Crew, before: set[LedgerLine]) -> None:
    """Exactly once, and nothing that was committed is missing (rule 24)."""
    assert audit(SHORT.grid, ORDER, crew.history, finished=True).ok
    assert before <= set(crew.history)


@pytest.mark.parametrize("unlucky", [(), (A,), (B,), (C,)])
@pytest.mark.parametrize("victim", [A, B, C])
def test_a_member_may_die_at_any_moment_of_a_step(victim: MemberId, unlucky: Names) -> None:
    """P2: the step in flight is finished; whichever of the others had it already, it is the same step (H1, H6, H7)."""
    for orders in range(20):
        crew = training(A, B, C, terms=SHORT)
        run(crew, orders)
        crew.unlucky = set(unlucky)
        before = committed(crew)
        crew.crash(victim)
        applied = [crew[name].applied_line for name in (A, B, C) if name != victim]
        finish(crew, 2)
        check_history(crew, before)
        assert any(line in crew.history for line in applied), orders


@pytest.mark.parametrize("unlucky", [(), (A,), (B,), (C,)])
def test_a_link_may_break_at_any_moment_of_a_step_and_no_member_is_lost(unlucky: Names) -> None:
    """H18: a closed socket ends the generation, and no member."""
    for orders in range(20):
        crew = training(A, B, C, terms=SHORT)
        run(crew, orders)
        crew.unlucky = set(unlucky)
        before = committed(crew)
        crew.broken[1] = C
        quiet(crew)
        finish(crew, 2)
        check_history(crew, before)


@pytest.mark.parametrize("unlucky", [(), (A,), (B,)])
@pytest.mark.parametrize("victim", [A, B, C, D])
def test_a_member_may_die_at_any_moment_of_a_switch(victim: MemberId, unlucky: Names) -> None:
    """Rules 8, 9, 11: C leaves, D joins; some have crossed, others have not (H2, H12)."""
    for orders in range(44):
        crew = training(A, B, C, terms=SHORT)
        crew.add(D)
        crew.propose(world(2, A, B, D))
        run(crew, orders)
        if not crew.seats[victim].alive:
            continue
        crew.unlucky = set(unlucky)
        before = committed(crew)
        crew.crash(victim)
        finish(crew, 3)
        check_history(crew, before)


@pytest.mark.parametrize("second", [A, B, D])
@pytest.mark.parametrize("first", [4, 5, 6, 7, 8, 9])
def test_another_member_may_die_at_any_moment_of_the_recovery(first: int, second: MemberId) -> None:
    """H6, H13: while some catch up and others redo; what was kept is counted once, and no member's state is torn."""
    for orders in range(24):
        crew = training(A, B, C, D, terms=SHORT)
        run(crew, first)
        before = committed(crew)
        crew.crash(C)
        crew.unlucky = {B}
        crew.recover(2, A, B, D)
        run(crew, orders)
        before |= committed(crew)
        crew.crash(second)
        finish(crew, 3)
        check_history(crew, before)


@pytest.mark.parametrize("victim", [A, B, C])
def test_a_member_may_die_at_any_moment_of_the_start(victim: MemberId) -> None:
    """Rules 4, 12, 15: A alone has the state at first. If it dies with it, the job begins again, and says so."""
    for orders in range(30):
        crew = gathered(A, B, C, terms=SHORT)
        run(crew, orders)
        crew.crash(victim)
        holders = [name for name in present(crew) if crew[name].holds_state]
        before = committed(crew) if holders else set()
        finish(crew, 2)
        check_history(crew, before)


def test_every_member_may_die_but_one() -> None:
    """P2: one holder is enough."""
    for orders in range(20):
        crew = training(A, B, C, D, terms=SHORT)
        run(crew, orders)
        before = committed(crew)
        for victim in (A, B, D):
            crew.crash(victim)
        finish(crew, 2)
        check_history(crew, before)
