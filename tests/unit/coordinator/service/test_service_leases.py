"""Leases in the coordinator: only proof of death or expiry makes a member lost, and expiry is never early (rule 19)."""

from functools import partial

from pliant.coordinator.service.inbox import Accepted
from pliant.coordinator.service.liveness import STOP_MARGIN_S, SUSPICION_S
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.next_world import STOP_GRACE_S
from pliant.core.leases import LEASE_TTL_S
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.errors import StoreUnavailable
from pliant.wire.api import Renew, RenewAgent
from unit.coordinator.shaky import Desk, Request, desk, member, stored, write_beside
from unit.core.build import A, B, C, D, X, Y, checkpoint, drain, join, lines, report, stopped

DOWN = StoreUnavailable("the disk is away")


def at_work(one: Desk, size_min: int = 1, target: int = 6, wait_limit_s: float | None = None) -> Desk:
    """A, B and C train in generation 1, as of time 0."""
    one.tell(0.0, m.Create("demo", JobSpec(size_min, 6, Target(target), wait_limit_s)), join(A), join(B), join(C))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A, B, C})))
    return one


def alive(one: Desk, start: float, stop: float, *requests: Request, every: float = 0.5) -> None:
    """Time goes by from `start` to `stop`, both included, while these requests keep coming."""
    for tick in range(round((stop - start) / every) + 1):
        one.pump(start + tick * every, *requests)


# ---------------------------------------------------------------------------------------------------- expiry


def test_a_member_no_member_hears_of_is_lost_when_its_lease_runs_out_and_not_before() -> None:
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A), Renew(B))
    assert list(one.job().members) == [A, B, C]
    assert LEASE_TTL_S == 10.0
    one.pump(9.999, Renew(A), Renew(B))
    assert C in one.job().members
    pumped = one.pump(10.0, Renew(A), Renew(B))
    assert list(one.job().members) == [A, B]
    assert one.job().worlds[0].why == "c was lost: its lease ran out"
    assert [reply.sender for reply in pumped.renewed] == [member(A), member(B)]
    assert pumped.moved == ("demo",)


def test_the_time_to_live_is_the_operator_s_to_choose() -> None:
    one = at_work(desk(lease_ttl_s=2.0))
    alive(one, 0.5, 1.5, Renew(A))
    assert list(one.job().members) == [A, B, C]
    one.pump(2.0)
    assert list(one.job().members) == [A]


def test_a_member_that_is_heard_of_in_any_way_is_alive() -> None:
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A), join(B), m.Publish(C, 1, checkpoint(GENESIS)))
    one.idle(10.0, 19.0)
    assert list(one.job().members) == [A, B, C]


def test_what_was_refused_is_no_sign_of_life() -> None:
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A), Renew(B), stopped(C, 7))
    one.pump(10.0, Renew(A), Renew(B))
    assert list(one.job().members) == [A, B]


def progress(one: Desk, generation: int, *moments: float) -> None:
    """A reports one new step at each of these moments; time goes by in between."""
    before = 0.0
    for now in moments:
        one.idle(before + 0.5, now - 0.5)
        before = now
        one.tell(now, m.Report(A, 0, generation, lines(one.job().durable, generation, 1)))


def test_progress_is_a_sign_of_life_of_every_member_in_its_generation() -> None:
    """H17: B and C cannot reach us, and the reports of A show that they train."""
    one = at_work(desk(), target=3)
    one.tell(0.0, join(D))  # a spare, in no world
    progress(one, 1, 4.0, 7.0)
    alive(one, 7.5, 16.5, RenewAgent(X))
    assert list(one.job().members) == [A, B, C]
    one.pump(17.0)
    assert one.job().members == {}


def test_a_report_of_a_generation_says_nothing_about_who_is_not_in_it() -> None:
    one = at_work(desk())
    one.tell(0.0, drain(C))
    one.tell(0.0, m.Report(A, 0, 2, ()))
    progress(one, 2, 5.0, 10.0)
    assert list(one.job().members) == [A, B]


def test_a_report_without_progress_vouches_for_no_member() -> None:
    """A and B wait in a reduction for C, which is frozen: that they can speak does not show that C lives."""
    one = at_work(desk())
    alive(one, 0.5, 10.0, m.Report(A, 0, 1, ()), m.Report(B, 1, 1, ()))
    assert list(one.job().members) == [A, B]


def test_a_report_that_was_refused_vouches_for_no_member() -> None:
    one = at_work(desk())
    gap = lines(GENESIS, 1, 2)[1:]
    alive(one, 0.5, 9.5, m.Report(A, 0, 1, gap))
    one.pump(10.0)
    assert one.job().members == {}


def test_an_agent_no_member_hears_of_is_forgotten() -> None:
    one = at_work(desk())
    one.tell(0.0, m.AgentJoin(X, 2), m.AgentJoin(Y, 2))
    alive(one, 0.5, 10.0, Renew(A), Renew(B), Renew(C), RenewAgent(Y))
    assert [agent.id for agent in one.job().agents] == [Y]
    assert list(one.job().members) == [A, B, C]


def test_a_report_does_not_vouch_for_agents() -> None:
    one = at_work(desk())
    one.tell(0.0, m.AgentJoin(X, 2))
    progress(one, 1, 5.0, 10.0)
    assert one.job().agents == ()


def test_the_jobs_leases_are_apart() -> None:
    one = at_work(desk())
    one.tell(0.0, m.Create("other", JobSpec(1, 6, Target(6))), join(A), job="other")
    alive(one, 0.5, 10.0, Renew(A), Renew(B), Renew(C))
    assert list(one.job().members) == [A, B, C]
    assert one.job("other").members == {}


def test_an_ended_job_expires_no_member() -> None:
    one = at_work(desk())
    one.tell(0.0, m.Cancel("enough"))
    revision = one.revision()
    one.idle(0.5, 20.0)
    assert (one.revision(), list(one.job().members)) == (revision, [A, B, C])


def test_a_member_that_left_is_not_expired_afterwards() -> None:
    one = at_work(desk())
    one.tell(5.0, m.Leave(C, 0, "bye"))
    revision = one.revision()
    alive(one, 5.5, 12.0, Renew(A), Renew(B))
    assert one.revision() == revision


def test_a_new_member_s_lease_starts_when_it_joins() -> None:
    one = at_work(desk())
    alive(one, 0.5, 8.0, Renew(A), Renew(B), Renew(C))
    one.tell(8.0, join(D))
    alive(one, 8.5, 17.5, Renew(A), Renew(B), Renew(C))
    assert D in one.job().members
    one.pump(18.0)
    assert D not in one.job().members


# ------------------------------------------------------------------------------------------------ renewing


def test_only_who_has_joined_can_renew() -> None:
    one = at_work(desk())
    assert one.ask(0.0, Renew(D), RenewAgent(X)) == [
        Rejection(Code.UNKNOWN, "d has no lease in demo; join first"),
        Rejection(Code.UNKNOWN, "x has no lease in demo; join first"),
    ]
    assert one.ask(0.0, Renew(A), job="nowhere") == [Rejection(Code.UNKNOWN, "a has no lease in nowhere; join first")]


def test_a_member_that_is_gone_cannot_renew() -> None:
    one = at_work(desk())
    one.tell(0.0, m.Exited(C, -9))
    assert one.ask(0.0, Renew(C)) == [Rejection(Code.GONE, "c is gone for good; join as a new member")]


def test_renewing_in_an_ended_job_is_accepted() -> None:
    one = at_work(desk())
    one.tell(0.0, m.Cancel("enough"), m.WaitOver())
    assert one.job().state is JobState.CANCELLED
    assert isinstance(one.ask(0.0, Renew(A))[0], Accepted)
    assert isinstance(one.ask(0.0, RenewAgent(X))[0], Accepted)


def test_renewing_changes_no_state() -> None:
    one = at_work(desk())
    revision = one.revision()
    alive(one, 0.5, 30.0, Renew(A), Renew(B), Renew(C))
    assert one.revision() == revision


# ------------------------------------------------------------------------- restarts, takeovers and pauses


def test_after_a_takeover_every_lease_is_fresh() -> None:
    one = at_work(desk())
    one.tell(0.0, m.AgentJoin(X, 2))
    one.idle(0.5, 9.5)
    two = Desk(one.store, "c2")
    two.pump(12.5, Renew(A))  # no member was heard of since 0
    alive(two, 13.0, 22.0, Renew(A))
    assert list(two.job().members) == [A, B, C]
    assert [agent.id for agent in two.job().agents] == [X]
    two.pump(22.5)
    assert list(two.job().members) == [A]
    assert two.job().agents == ()


def test_after_a_hold_was_lost_and_won_again_every_lease_is_fresh() -> None:
    """The same process: its hold ran out while it slept, and no other coordinator led in between."""
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A))
    one.pump(13.0, Renew(A))
    alive(one, 13.5, 22.5, Renew(A))
    assert list(one.job().members) == [A, B, C]
    one.pump(23.0)
    assert list(one.job().members) == [A]


def test_a_coordinator_that_leads_again_after_another_one_grants_every_lease_anew() -> None:
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A))
    two = Desk(one.store, "c2")
    assert two.pump(13.0, Renew(A)).took_over
    two.service.close()
    assert one.pump(13.5, Renew(A)).took_over
    alive(one, 14.0, 23.0, Renew(A))
    assert list(one.job().members) == [A, B, C]
    one.pump(23.5)
    assert list(one.job().members) == [A]


def test_a_paused_coordinator_expires_no_member() -> None:
    """It kept its hold, and did not look for 2 s: of those only a quarter of a lease counts against any member."""
    one = at_work(desk(lease_ttl_s=4.0))
    alive(one, 0.5, 1.5, Renew(A))
    one.pump(3.5, Renew(A))  # as long as a member may be silent: no silence
    assert list(one.job().members) == [A, B, C]
    alive(one, 4.0, 4.5, Renew(A))
    assert list(one.job().members) == [A, B, C]
    one.pump(5.0)
    assert list(one.job().members) == [A]


def test_a_pause_as_long_as_a_short_lease_expires_no_member() -> None:
    one = at_work(desk(lease_ttl_s=1.0))
    one.pump(1.3)
    assert list(one.job().members) == [A, B, C]


def test_who_speaks_in_the_pump_that_would_expire_it_is_not_late() -> None:
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(B))
    one.pump(10.0, Renew(A))
    assert list(one.job().members) == [A, B]


def test_a_watch_that_is_back_in_the_pump_that_would_suspect_it_is_no_suspicion() -> None:
    one = at_work(desk())
    one.close_watch(0.0, member(A))
    one.pump(0.6, Renew(A))
    assert one.job().broken == ""
    one.close_watch(1.0, member(A))
    one.pump(1.6)
    assert one.job().sealed > 0


def test_an_expiry_that_could_not_be_written_is_tried_again() -> None:
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A), Renew(B))
    one.store.trouble["write"] = [DOWN, DOWN]
    for now in (10.0, 10.5):
        assert one.pump(now).replies == ()
        assert C in one.job().members
    pumped = one.pump(11.0, Renew(A), Renew(B))
    assert C not in one.job().members
    assert [reply.sender for reply in pumped.renewed] == [member(A), member(B)]
    assert stored(one.store) == one.job()


def test_a_member_that_is_heard_of_before_the_expiry_could_be_written_stays() -> None:
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A), Renew(B))
    one.store.trouble["write"] = [DOWN, DOWN]
    one.pump(10.0, Renew(A), Renew(B))  # C is overdue, and cannot be written off
    one.pump(10.5, Renew(C))  # refused with the rest of the batch, yet heard
    one.pump(11.0, Renew(A), Renew(B))
    assert C in one.job().members
    alive(one, 11.5, 20.0, Renew(A), Renew(B))
    assert C in one.job().members
    one.pump(20.5, Renew(A), Renew(B))
    assert C not in one.job().members


def test_a_lost_race_gives_every_member_the_benefit_of_the_doubt() -> None:
    """Another coordinator wrote: what it heard of meanwhile we cannot know."""
    one = at_work(desk())
    alive(one, 0.5, 9.5, Renew(A), Renew(B))
    one.store.before_write = [partial(write_beside, one.store, join(D))]
    one.pump(10.0, Renew(A), Renew(B))
    assert list(one.job().members) == [A, B, C, D]


# ---------------------------------------------------------------------------------------------- suspicions


def test_a_closed_watch_that_does_not_come_back_ends_the_generation() -> None:
    one = at_work(desk())
    one.close_watch(1.0, member(B))
    one.pump(1.0 + SUSPICION_S - 0.001)
    assert one.job().sealed == 0
    one.pump(1.0 + SUSPICION_S)
    assert (one.job().sealed, one.job().worlds[0].why) == (1, "b does not answer")
    assert list(one.job().members) == [A, B, C]
    assert SUSPICION_S == 0.5


def test_a_watch_that_comes_back_in_time_was_nothing() -> None:
    one = at_work(desk())
    one.close_watch(1.0, member(B))
    one.tell(1.4, Renew(B))
    one.idle(1.5, 3.0)
    assert one.job().sealed == 0


def test_another_member_s_renewal_does_not_clear_a_suspicion() -> None:
    one = at_work(desk())
    one.close_watch(1.0, member(B))
    one.tell(1.4, Renew(A))
    one.pump(1.5)
    assert one.job().sealed == 1


def test_a_closed_watch_of_no_member_we_know_is_nothing() -> None:
    one = at_work(desk())
    one.close_watch(1.0, member(D))
    one.close_watch(1.0, member(A), job="nowhere")
    revision = one.revision()
    one.idle(1.5, 3.0)
    assert one.revision() == revision


def test_a_suspicion_is_no_sign_of_life() -> None:
    one = at_work(desk())
    one.idle(0.5, 8.5)
    one.close_watch(9.0, member(C))
    one.tell(9.0, Renew(A), Renew(B))
    one.idle(9.5, 10.0)
    assert list(one.job().members) == [A, B]


# ------------------------------------------------------------------------------------------------- waiting


def waiting(wait_limit_s: float | None) -> Desk:
    """C is lost at time 0; two of at least three members are left."""
    one = at_work(desk(lease_ttl_s=100.0), size_min=3, wait_limit_s=wait_limit_s)
    one.tell(0.0, m.Exited(C, -9))
    assert one.job().state is JobState.WAITING
    return one


def test_a_job_waits_as_long_as_its_limit_and_no_longer() -> None:
    one = waiting(6.0)
    one.idle(0.5, 5.5)
    assert one.job().state is JobState.WAITING
    one.pump(6.0)
    assert (one.job().state, one.job().ends_as) == (JobState.STOPPING, JobState.FAILED)
    assert one.job().why.startswith("waited 6.0 s, the limit: 2 of the 3 workers needed")


def test_a_job_that_is_stopping_ends_when_the_grace_of_its_members_is_over() -> None:
    one = at_work(desk(lease_ttl_s=1000.0))
    one.tell(0.0, m.Cancel("wrong data"))
    limit_s = STOP_GRACE_S + STOP_MARGIN_S
    one.idle(0.5, limit_s - 0.5)
    assert one.job().state is JobState.STOPPING
    one.pump(limit_s)
    assert (one.job().state, one.job().why) == (JobState.CANCELLED, "wrong data")


def test_a_job_without_a_limit_waits_for_ever() -> None:
    one = waiting(None)
    one.idle(0.5, 60.0)
    assert one.job().state is JobState.WAITING


def test_a_job_that_goes_on_starts_its_next_wait_afresh() -> None:
    one = waiting(6.0)
    one.tell(0.0, report(one.job(), A, 2))
    one.idle(0.5, 5.0)
    one.tell(5.0, join(D))
    assert one.job().state is JobState.RUNNING
    one.idle(5.5, 8.0)
    one.tell(8.0, m.Exited(D, -9))
    one.idle(8.5, 13.5)
    assert one.job().state is JobState.WAITING
    one.pump(14.0)
    assert one.job().ends_as is JobState.FAILED


def test_another_reason_for_the_same_wait_does_not_start_it_again() -> None:
    one = waiting(4.0)
    one.idle(0.5, 2.0)
    one.tell(2.0, m.Exited(B, -9))
    one.idle(2.5, 3.5)
    assert one.job().state is JobState.WAITING
    one.pump(4.0)
    assert one.job().ends_as is JobState.FAILED
