"""Events between two steps of a pump, while the store is asked (ADR 0023)."""

import random
from collections.abc import Callable

import pytest

from pliant.coordinator.service.inbox import Accepted, Pumped, RenewalReply, Unavailable
from pliant.coordinator.service.leader import HOLD_TTL_S
from pliant.coordinator.service.loaded_jobs import ENDED_MAX, PAGE_JOBS
from pliant.coordinator.service.pump import FAILURES_MAX
from pliant.coordinator.service.steps import CallResult, StoreCall, make_call
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.messages import Command
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import MemberId
from pliant.errors import StoreUnavailable
from unit.coordinator.shaky import Desk, Shaky, desk, member, stored
from unit.core.build import A, B, C, D, E, join, lines

CREATE = m.Create("demo", JobSpec(1, 6, Target(6)))
DOWN = StoreUnavailable("the disk is away")


class PumpUnderWay:
    """A pump that waits for the store. `resume` lets the store answer and goes on to the next call or to the end."""

    def __init__(self, one: Desk, now: float) -> None:
        self._steps = one.service.pump_steps(now)
        self.pumped: Pumped | None = None
        self.call: StoreCall | None = None
        self._go(lambda: next(self._steps))

    def resume(self, now: float) -> None:
        assert self.call is not None
        made = make_call(self.call)
        self._go(lambda: self._steps.send(CallResult(now, *made)))

    def finish(self, now: float) -> Pumped:
        while self.pumped is None:
            self.resume(now)
        return self.pumped

    def _go(self, step: Callable[[], StoreCall]) -> None:
        try:
            self.call = step()
        except StopIteration as stop:
            self.call, self.pumped = None, stop.value


def at_work(one: Desk) -> Desk:
    """A and B train in generation 1."""
    one.tell(0.0, CREATE, join(A), join(B))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A, B})))
    return one


def jobs(one: Desk, count: int) -> list[str]:
    """Create that many jobs."""
    names = [f"job-{number:04}" for number in range(count)]
    for name in names:
        assert one.service.submit(name, m.Create(name, JobSpec(1, 6, Target(6))), name)
    assert all(isinstance(reply.answer, Accepted) for reply in one.service.pump(0.0).replies)
    return names


def gone(store: Shaky) -> tuple[MemberId, ...]:
    return tuple(stored(store).gone)


# ------------------------------------------------------------------------------------- while a pump is under way


def test_a_renewal_is_answered_while_a_write_waits_for_the_store() -> None:
    one = at_work(desk())
    one.service.submit("demo", join(C), 1)
    pump = PumpUnderWay(one, 0.5)
    assert pump.call is not None
    reply = one.service.renew("demo", member(A), one.revision(), 0.6)
    assert reply == RenewalReply(None, "demo", member(A), Accepted(one.revision(), None), one.revision())
    [joined] = pump.finish(0.7).replies
    assert isinstance(joined.answer, Accepted)
    assert stored(one.store) == one.job()


def test_commands_that_arrive_during_a_write_go_together_into_the_next() -> None:
    one = at_work(desk())
    one.service.submit("demo", join(C), 1)
    pump = PumpUnderWay(one, 0.5)
    before = len(one.store.writes)
    for ticket, command in ((2, join(D)), (3, join(E))):
        one.service.submit("demo", command, ticket)
    assert [reply.ticket for reply in pump.finish(0.6).replies] == [1]
    assert [reply.ticket for reply in one.service.pump(0.6).replies] == [2, 3]
    assert len(one.store.writes) == before + 2


def test_a_command_that_arrives_while_the_hold_is_renewed_is_decided_in_the_same_pump() -> None:
    one = at_work(desk())
    pump = PumpUnderWay(one, HOLD_TTL_S / 2)
    one.service.submit("demo", join(C), 1)
    [reply] = pump.finish(HOLD_TTL_S / 2 + 0.1).replies
    assert isinstance(reply.answer, Accepted)


def test_no_lease_of_a_member_that_is_heard_expires_while_the_store_hangs() -> None:
    """The store hangs for three leases. Afterwards leases run again, and a silent member is lost."""
    one = at_work(desk(lease_ttl_s=10.0))
    one.service.submit("demo", join(C), 1)
    pump = PumpUnderWay(one, 1.0)
    for tick in range(10):
        now = 2.0 + 3.0 * tick
        for name in (A, B):
            if one.service.renew("demo", member(name), 0, now) is None:
                one.service.note_renewal("demo", member(name), now)
    pump.finish(31.0)
    assert gone(one.store) == ()
    for tick in range(16):  # A renews, B does not
        now = 31.0 + tick / 2
        one.service.pump(now)
        if (reply := one.service.renew("demo", member(A), 0, now)) is not None:
            assert isinstance(reply.answer, Accepted)
    assert gone(one.store) == ()
    for tick in range(12):
        now = 39.5 + tick / 2
        one.service.pump(now)
        one.service.renew("demo", member(A), 0, now)
    assert set(gone(one.store)) == {B, C}


def test_a_renewal_on_the_loop_is_not_set_back_by_the_pump_that_ends_after_it() -> None:
    one = at_work(desk(lease_ttl_s=10.0))
    one.service.submit("demo", m.Report(A, 0, 1, lines(GENESIS, 1, 1)), 1)
    pump = PumpUnderWay(one, 0.5)
    one.service.renew("demo", member(A), 0, 1.4)
    pump.finish(1.5)
    leases = one.service._liveness._leases
    assert leases._until["demo", "member", A][0] == pytest.approx(11.5)


def test_between_any_two_steps_anything_may_happen() -> None:
    """Accepted commands are stored, and the loaded job is the stored one, whatever arrives during a pump."""
    for seed in range(100):
        chance = random.Random(seed)
        one = at_work(desk())
        now, tickets = 0.5, 0
        accepted: set[MemberId] = set()
        joining: dict[object, MemberId] = {}
        for _ in range(12):
            for _ in range(chance.randrange(3)):
                tickets += 1
                joining[tickets] = MemberId(f"m{chance.randrange(6)}")
                one.service.submit("demo", join(joining[tickets]), tickets)
            one.store.trouble = {"write": [chance.choice((None, DOWN))], "hold": [chance.choice((None, DOWN))]}
            pump = PumpUnderWay(one, now)
            while pump.pumped is None:
                now += chance.choice((0.01, 0.3, 1.0))
                act = chance.randrange(4)
                if act == 0:
                    one.service.renew("demo", member(A), 0, now)
                elif act == 1:
                    tickets += 1
                    joining[tickets] = MemberId(f"m{chance.randrange(6)}")
                    one.service.submit("demo", join(joining[tickets]), tickets)
                elif act == 2:
                    one.service.record_hangup("demo", member(B), now)
                else:
                    assert one.service.postpone("demo", member(B), 0, "renewal")
                pump.resume(now)
            replies = [reply for reply in pump.pumped.replies if isinstance(reply.answer, Accepted)]
            accepted |= {joining[reply.ticket] for reply in replies}
            if one.service.leads:
                assert stored(one.store) == one.job(), seed
        assert accepted <= set(stored(one.store).members), seed


# ---------------------------------------------------------------------------------------------- taking over


def test_a_takeover_reads_in_pages_and_renews_its_hold_between_them() -> None:
    """Each call of the store takes most of a second, so the whole takes longer than a hold lasts."""
    one = desk()
    names = jobs(one, 3 * PAGE_JOBS + 1)
    two, rival = Desk(one.store, "c2"), Desk(one.store, "c3")
    now = HOLD_TTL_S
    pump = PumpUnderWay(two, now)
    while pump.pumped is None:
        assert not two.service.leads
        assert two.service.renew(names[0], member(A), 0, now) is None  # it waits, and is not refused as unknown
        now += 0.9
        pump.resume(now)
        assert not rival.service.leads
        rival.service.pump(now)
    assert now - HOLD_TTL_S > HOLD_TTL_S
    assert pump.pumped.took_over
    assert two.service.leads
    assert two.service.names() == tuple(names)


def test_a_takeover_ends_when_the_hold_is_lost_between_two_pages() -> None:
    one = desk()
    jobs(one, 2 * PAGE_JOBS)
    two, rival = Desk(one.store, "c2"), Desk(one.store, "c3")
    pump = PumpUnderWay(two, 10.0)
    pump.resume(10.1)  # it has the hold
    rival.service.pump(20.0)  # after a long pause of c2
    pumped = pump.finish(20.1)
    assert not pumped.took_over
    assert not two.service.leads
    assert two.service.names() == ()
    assert two.ask(20.2, CREATE) == [Unavailable("c3 leads")]


def test_ended_jobs_are_not_loaded_by_a_takeover_and_are_found_by_their_names() -> None:
    one = desk()
    names = jobs(one, 8)
    for name in names[:6]:
        one.tell(0.0, m.Cancel("enough"), job=name)
    two = Desk(one.store, "c2")
    two.pump(10.0)
    assert two.service.names() == tuple(names[6:])
    assert two.service.look_up(names[0], "ticket")
    assert two.service.look_up("no-such-job", "other")
    found = two.service.pump(10.1).found
    assert [(reply.ticket, reply.refusal) for reply in found] == [("ticket", None), ("other", None)]
    assert two.service.job(names[0]) == one.service.job(names[0])
    assert two.service.job("no-such-job") is None
    two.tell(10.2, m.Create(names[1], JobSpec(1, 6, Target(6))), job=names[1])  # the next attempt
    assert two.job(names[1]).attempt == 2


def test_so_many_ended_jobs_stay_loaded() -> None:
    one = desk()
    names = jobs(one, ENDED_MAX + 10)
    for name in names:
        assert one.service.submit(name, m.Cancel("enough"), name)
    one.service.pump(0.0)
    assert len(one.service.names()) == ENDED_MAX
    assert one.service._liveness._leased == {}


# ------------------------------------------------------------------------------------------ a store that is away


def test_a_pump_does_not_ask_a_store_that_is_away_for_every_job() -> None:
    """Each call may take as long as the store waits. Hundreds of jobs would take minutes."""
    one = at_work(desk())
    commands: list[Command] = [join(MemberId("x")) for _ in range(100)]
    for number, command in enumerate(commands):
        one.service.submit(f"unknown-{number}", command, number)
    one.store.trouble["read"] = [DOWN] * 100
    pumped = one.service.pump(0.5)
    assert len(one.store.trouble["read"]) == 100 - FAILURES_MAX
    assert all(isinstance(reply.answer, Unavailable) for reply in pumped.replies)
    assert len(pumped.replies) == 100


def test_requests_that_wait_for_a_stuck_pump_are_refused_and_not_decided_later() -> None:
    one = at_work(desk())
    one.service.submit("demo", join(C), 1)
    pump = PumpUnderWay(one, 0.5)
    one.service.submit("demo", join(D), 2)
    one.service.postpone("demo", member(A), 0, 3)
    one.service.look_up("other", 4)
    refused = one.service.refuse_queued("the store hangs")
    assert [reply.ticket for reply in (*refused.all_replies, *refused.found)] == [2, 3, 4]
    assert [reply.ticket for reply in pump.finish(9.0).replies] == [1]
    one.service.pump(9.1)
    assert D not in one.job().members
