"""An isolated coordinator receives no message and expires no member (rule 19, ADR 0019)."""

from math import inf

import pytest

from pliant.coordinator.api.job_status import job_line
from pliant.coordinator.service.inbox import is_sign_of_life
from pliant.coordinator.service.leader import CALLED_FRACTION, HOLD_TTL_S
from pliant.coordinator.service.liveness import AGENT_SUSPICION_S, ISOLATION_FRACTION, SUSPICION_S
from pliant.coordinator.service.steps import CallResult, make_call
from pliant.core import messages as m
from pliant.core.leases import LEASE_TTL_S
from pliant.core.model.job import Job, JobSpec, Target
from pliant.core.model.world import WorldKind
from pliant.stores.base import Hold
from pliant.wire.api import Renew, RenewAgent
from unit.coordinator.shaky import Desk, agent, desk, member
from unit.core.build import A, B, C, D, X, Y, drain, join, stopped

QUIET_S = LEASE_TTL_S * ISOLATION_FRACTION


def at_work(one: Desk, now: float = 0.0) -> Desk:
    """A, B and C train in generation 1; X and Y are agents."""
    one.tell(
        now, m.Create("demo", JobSpec(1, 6, Target(3))), m.AgentJoin(X, 2), m.AgentJoin(Y, 2), join(A), join(B), join(C)
    )
    one.tell(now, m.Report(A, 0, 1, (), frozenset({A, B, C})))
    return one


def there(job: Job) -> list[str]:
    return [*job.members, *(agent.id for agent in job.agents)]


def test_a_coordinator_cut_off_from_every_member_expires_no_member_however_long() -> None:
    one = at_work(desk())
    revision = one.revision()
    one.idle(0.5, 600.0)
    assert there(one.job()) == [A, B, C, X, Y]
    assert one.revision() == revision


def test_when_it_is_back_nothing_was_rolled_back_and_every_member_goes_on() -> None:
    one = at_work(desk())
    one.idle(0.5, 60.0)
    one.tell(60.5, Renew(B), RenewAgent(X))
    one.idle(61.0, 65.0)
    one.tell(65.0, Renew(A), Renew(C), RenewAgent(Y))  # it took them a while to find it again
    assert there(one.job()) == [A, B, C, X, Y]
    assert [world.kind for world in one.job().worlds] == [WorldKind.ROLLBACK]  # the beginning
    assert one.job().sealed == 0


def test_who_does_not_come_back_when_others_do_has_a_whole_lease_from_then() -> None:
    one = at_work(desk())
    one.idle(0.5, 60.0)
    for tick in range(20):
        one.tell(60.5 + tick / 2, Renew(A), RenewAgent(X))
    assert there(one.job()) == [A, B, C, X, Y]
    one.tell(70.5, Renew(A), RenewAgent(X))
    assert there(one.job()) == [A, X]


def test_a_member_that_is_heard_is_enough_of_whatever_job() -> None:
    one = at_work(desk())
    one.tell(0.0, m.Create("other", JobSpec(1, 6, Target(3))), m.AgentJoin(X, 1), job="other")
    for tick in range(1, 20):
        one.tell(tick / 2, RenewAgent(X), job="other")
    assert there(one.job()) == [A, B, C, X, Y]
    one.tell(10.0, RenewAgent(X), job="other")
    assert there(one.job()) == []


def test_people_are_no_evidence_that_machines_can_be_heard() -> None:
    """They may well ask from the coordinator's own machine."""
    one = at_work(desk())
    for tick in range(1, 60):
        one.tell(tick / 2, m.Resize(Target(3)), drain(C))
    assert there(one.job()) == [A, B, C, X, Y]


def test_a_member_heard_half_a_lease_ago_is_evidence_and_longer_ago_is_none() -> None:
    for silent_s, gone in ((QUIET_S, True), (QUIET_S + 0.5, False)):
        one = at_work(desk())
        one.idle(0.5, LEASE_TTL_S - silent_s - 0.5)
        one.tell(LEASE_TTL_S - silent_s, Renew(A), RenewAgent(X))
        one.idle(LEASE_TTL_S - silent_s + 0.5, LEASE_TTL_S)
        assert there(one.job()) == ([A, X] if gone else [A, B, C, X, Y])


def test_after_a_takeover_no_member_expires_before_the_first_word() -> None:
    one = at_work(desk())
    two = Desk(one.store, "c2")
    two.idle(30.0, 100.0)
    assert there(two.job()) == [A, B, C, X, Y]
    for tick in range(21):
        two.tell(100.5 + tick / 2, Renew(C))
    assert there(two.job()) == [C]


def test_a_machine_that_vanished_alone_is_waited_for_until_another_member_speaks() -> None:
    one = desk()
    one.tell(0.0, m.Create("demo", JobSpec(1, 6, Target(3))), m.AgentJoin(X, 2), join(A))
    one.idle(0.5, 100.0)
    assert there(one.job()) == [A, X]
    for tick in range(21):
        one.tell(100.5 + tick / 2, m.AgentJoin(Y, 2))
    assert there(one.job()) == [Y]


# ------------------------------------------------------------------------------------------ other evidence


def test_who_hung_up_is_not_waited_for() -> None:
    """All processes of the only machine were killed: their connections were closed, so the network is well."""
    one = desk()
    one.tell(0.0, m.Create("demo", JobSpec(1, 6, Target(3))), m.AgentJoin(X, 2), join(A), join(B))
    one.close_watch(1.0, member(A), agent(X))
    one.idle(1.5, 9.5)
    assert there(one.job()) == [A, B, X]
    one.idle(10.0, 10.0)
    assert there(one.job()) == [B]


def test_who_hung_up_between_two_watches_is_not_waited_for_and_not_suspected() -> None:
    one = at_work(desk())
    one.service.record_hangup("demo", member(A), 0.5)
    one.service.record_hangup("demo", agent(X), 0.5)
    one.service.record_hangup("demo", member(D), 0.5)  # which the coordinator does not know
    one.service.record_hangup("nowhere", member(A), 0.5)
    one.idle(0.5, LEASE_TTL_S - 0.5)
    assert (there(one.job()), one.job().sealed) == ([A, B, C, X, Y], 0)
    one.idle(LEASE_TTL_S, LEASE_TTL_S)
    assert there(one.job()) == [B, C, Y]


def test_who_hung_up_while_no_member_was_heard_has_a_whole_lease_from_then() -> None:
    """Its way back may be as long as ours: the end of an old connection can arrive before a new one."""
    one = at_work(desk())
    one.idle(0.5, 59.5)
    one.service.record_hangup("demo", member(A), 59.5)
    one.idle(60.0, 59.0 + LEASE_TTL_S)
    assert there(one.job()) == [A, B, C, X, Y]
    one.idle(59.5 + LEASE_TTL_S, 59.5 + LEASE_TTL_S)
    assert there(one.job()) == [B, C, X, Y]


def test_who_hung_up_between_two_watches_and_came_back_is_waited_for_again() -> None:
    one = at_work(desk())
    one.service.record_hangup("demo", member(A), 1.0)
    one.service.record_hangup("demo", agent(X), 1.0)
    one.tell(2.0, Renew(A), RenewAgent(X))
    one.idle(2.5, 60.0)
    assert there(one.job()) == [A, B, C, X, Y]


def test_who_came_back_after_it_hung_up_is_waited_for_again() -> None:
    one = at_work(desk())
    one.close_watch(0.0, member(A), member(B), agent(X))
    one.idle(0.5, max(SUSPICION_S, AGENT_SUSPICION_S))
    assert one.job().sealed == 1
    one.tell(3.0, Renew(A), stopped(B, 1), RenewAgent(X))
    one.idle(3.5, 60.0)
    assert there(one.job()) == [A, B, C, X, Y]


def test_a_proof_of_death_is_taken_at_once() -> None:
    one = at_work(desk())
    one.idle(0.5, 30.0)
    one.tell(30.5, m.Exited(C, -9))
    assert there(one.job()) == [A, B, X, Y]


def test_a_member_that_left_while_it_was_suspected_leaves_nothing_behind() -> None:
    one = at_work(desk())
    one.close_watch(1.0, member(C))
    one.tell(1.1, m.Exited(C, 0))
    one.idle(1.5, 3.0)
    one.tell(3.0, join(D))
    assert there(one.job()) == [A, B, D, X, Y]


# ------------------------------------------------------------------------------------------------- what is said


def test_a_job_says_for_how_long_no_member_was_heard() -> None:
    one = at_work(desk())
    one.idle(0.5, 25.0)
    silent_s = one.service.isolated_s(25.0)
    assert silent_s == 25.0
    assert job_line(one.job(), 1, silent_s).warning == (
        "no message arrived for 25 s: this coordinator may be isolated, so no member expires until a message arrives"
    )
    assert one.service.isolated_s(QUIET_S) is None
    assert job_line(one.job(), 1, None).warning == ""


def test_a_coordinator_that_heard_no_member_yet_says_so() -> None:
    one = at_work(desk())
    two = Desk(one.store, "c2")
    two.pump(30.0)
    assert two.service.isolated_s(30.0) == inf
    assert "no message arrived yet" in job_line(two.job(), 1, inf).warning


def test_a_job_without_any_member_or_over_has_no_member_to_hear() -> None:
    one = desk()
    one.tell(0.0, m.Create("demo", JobSpec(1, 6, Target(3))))
    assert job_line(one.job(), 1, 25.0).why == one.job().why
    one.tell(0.0, join(A), m.Cancel("enough"))
    assert job_line(one.job(), 1, 25.0).why == "enough"


def test_what_machines_say_tells_of_life_and_what_people_and_time_say_does_not() -> None:
    machines = (
        join(A),
        m.Leave(A, 0, "done"),
        m.Exited(A, 0),
        m.AgentJoin(X, 1),
        m.AgentLeave(X),
    )
    others = (drain(A), m.Resize(Target(1)), m.Cancel("enough"), m.Expire(A), m.WaitOver())
    assert [is_sign_of_life(request) for request in machines] == [True] * len(machines)
    assert [is_sign_of_life(request) for request in others] == [False] * len(others)


def test_an_isolated_leader_leaves_the_hold_to_a_coordinator_that_stands_by() -> None:
    one = at_work(desk())
    other = Desk(one.store, "c2", LEASE_TTL_S)
    for tick in range(1, 13):
        other.service.pump(tick / 2)
        one.service.pump(tick / 2)
    assert (one.service.leads, other.service.leads) == (False, False)
    assert one.service.why == "no message arrives here, so that another coordinator may lead"
    other.service.pump(7.0)
    one.service.pump(9.0)
    assert (one.service.leads, other.service.leads) == (False, True)
    assert there(other.job()) == [A, B, C, X, Y]


def test_without_another_coordinator_an_isolated_one_leads_on() -> None:
    one = at_work(desk())
    for tick in range(1, 600):
        one.service.pump(tick / 2)
        assert one.service.leads
    assert there(one.job()) == [A, B, C, X, Y]


def cut_off(one: Desk, other: Desk, until_s: float, *requests: Renew | RenewAgent) -> float | None:
    """Let no message reach the leader, and these the standby. Return when the standby leads; None if it does not."""
    for tick in range(1, int(until_s * 10)):
        now = tick / 10
        other.pump(now, *requests)
        one.pump(now)
        if other.service.leads:
            return now
    return None


def test_a_leader_without_a_message_leaves_the_hold_at_once_to_a_standby_where_a_member_renews() -> None:
    one = at_work(desk())
    other = Desk(one.store, "c2", LEASE_TTL_S)
    led_at = cut_off(one, other, QUIET_S, Renew(A))
    assert led_at is not None
    assert LEASE_TTL_S * CALLED_FRACTION < led_at < HOLD_TTL_S + 0.2
    assert there(other.job()) == [A, B, C, X, Y]


def test_a_leader_that_a_single_member_still_reaches_leads_on_whatever_others_do() -> None:
    one = at_work(desk())
    other = Desk(one.store, "c2", LEASE_TTL_S)
    for tick in range(1, 300):
        other.pump(tick / 10, Renew(A))
        one.pump(tick / 10, *([Renew(B)] if tick % 15 == 0 else []))
        assert one.service.leads


def test_a_leader_that_only_people_ask_elsewhere_leads_on() -> None:
    one = at_work(desk())
    other = Desk(one.store, "c2", LEASE_TTL_S)
    for tick in range(1, int(QUIET_S * 10)):
        other.pump(tick / 10, m.Resize(Target(1)))
        one.pump(tick / 10)
        assert one.service.leads


def test_a_new_leader_that_no_member_reaches_gives_the_hold_back_to_one_that_they_do_reach() -> None:
    one = at_work(desk())
    other = Desk(one.store, "c2", LEASE_TTL_S)
    one.service.close()
    other.pump(0.1)
    assert other.service.leads
    led_again = None
    for tick in range(2, 60):
        one.pump(tick / 10, Renew(A))
        other.pump(tick / 10)
        if one.service.leads:
            led_again = tick / 10
            break
    assert led_again is not None
    assert led_again < HOLD_TTL_S + 0.5


def test_a_message_that_arrives_while_the_store_is_asked_keeps_the_leader() -> None:
    one = at_work(desk())
    other = Desk(one.store, "c2", LEASE_TTL_S)
    for tick in range(1, 20):
        one.pump(tick / 10)
    other.pump(2.4, Renew(A))
    other.pump(2.5)
    steps = one.service.pump_steps(2.6)
    called = make_call(next(steps))
    assert isinstance(called[0], Hold)
    assert one.service.renew("demo", member(B), 0, 2.7) is not None
    renewing = steps.send(CallResult(2.7, *called))
    with pytest.raises(StopIteration):
        steps.send(CallResult(2.7, *make_call(renewing)))
    assert one.service.leads
