"""Ends of launched workers: good, by themselves, killed from outside, or with their machine; which ends count."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.evolve import ENDS_KEPT
from pliant.core.model.job import Job, JobState, Target
from pliant.core.model.launch import SeatEnd
from pliant.core.model.names import AgentId, MemberId
from unit.core.build import NOW, X, Y, Z, after, made, pump
from unit.core.launched import all_ready, created, hello, launch, members, ready, served, two_by_two, with_agents

X0, X1, Y0, Y1 = (MemberId(f"{agent}-g1.{index}") for agent in "xy" for index in range(2))


def failures(job: Job) -> int:
    return len(job.failures)


def relaunched(job: Job) -> Job:
    """After every agent has stopped its workers."""
    return all_ready(job, *(agent.id for agent in job.agents))


# ------------------------------------------------------------------------------------------------- well


def test_a_job_is_finished_when_every_worker_ended_well() -> None:
    job, events = pump(two_by_two(), m.Exited(X0, 0), m.Exited(Y1, 0), m.Exited(X1, 0))
    assert events == tuple(m.SeatEnded(NOW, 1, SeatEnd(member, 0)) for member in (X0, Y1, X1))
    job, events = pump(job, m.Exited(Y0, 0))
    assert events == (
        m.SeatEnded(NOW, 1, SeatEnd(Y0, 0)),
        m.StateChanged(NOW, JobState.FINISHED, "all 4 workers ended with exit code 0"),
    )
    assert job.state is JobState.FINISHED


def test_a_job_of_one_worker_is_finished_with_it() -> None:
    job = after(with_agents(created(size_max=1), X), m.Exited(X0, 0))
    assert (job.state, job.why) == (JobState.FINISHED, "its worker ended with exit code 0")


def test_an_end_is_heard_once_and_a_stranger_s_never() -> None:
    job = after(two_by_two(), m.Exited(X0, 0))
    assert made(job, m.Exited(X0, 1)) == ()
    assert made(job, m.Exited(MemberId("x-g9.0"), 1)) == ()
    assert made(created(), m.Exited(X0, 1)) == ()


# ------------------------------------------------------------------------------------------------- badly


def test_a_worker_that_fails_ends_the_launch_and_is_counted_when_all_have_stopped() -> None:
    job, events = pump(two_by_two(), m.Exited(X1, 1, "ValueError: bad batch"))
    over = "x-g1.1 ended with exit code 1: ValueError: bad batch"
    assert events == (
        m.SeatEnded(NOW, 1, SeatEnd(X1, 1, "ValueError: bad batch")),
        m.LaunchOver(NOW, 1, over),
        m.StateChanged(NOW, JobState.WAITING, f"waiting for x, y to stop their workers; {over}"),
    )
    assert failures(job) == 0
    job = after(job, ready(job, X))
    job, events = pump(job, ready(job, Y))
    assert events[1] == m.WorkerFailed(NOW, X1, 1)
    assert failures(job) == 1
    assert launch(job).why == over


@pytest.mark.parametrize("code", [-9, -15, 75])
def test_a_worker_that_was_killed_or_fenced_is_no_member_s_failure(code: int) -> None:
    job = relaunched(after(two_by_two(), m.Exited(X0, code)))
    assert (launch(job).number, failures(job)) == (2, 0)


def test_a_crash_is_a_failure_of_its_own() -> None:
    assert failures(relaunched(after(two_by_two(), m.Exited(X0, -11)))) == 1


def test_who_fails_because_another_was_killed_is_not_counted() -> None:
    """The word of the kill may come before or after that of the failure."""
    for first, second in (((X0, 1), (Y0, -9)), ((Y0, -9), (X0, 1))):
        job = after(two_by_two(), m.Exited(*first), m.Exited(*second))
        assert failures(relaunched(job)) == 0


def test_several_failures_of_one_launch_are_one() -> None:
    job = after(two_by_two(), m.Exited(X0, 1), m.Exited(X1, 1), m.Exited(Y0, -11))
    assert failures(relaunched(job)) == 1


def test_a_failure_after_others_were_done_is_counted() -> None:
    job = after(two_by_two(), m.Exited(X0, 0), m.Exited(X1, 0), m.Exited(Y0, 3))
    assert failures(relaunched(job)) == 1


def test_a_failure_in_a_launch_that_was_over_for_another_reason_is_not_counted() -> None:
    job = after(two_by_two(), m.DrainAgent(Y, 1.0, "spot"), m.Exited(X0, 1), m.AgentLeave(Y))
    assert failures(relaunched(job)) == 0


def test_who_fails_because_a_machine_is_lost_is_not_counted() -> None:
    job = after(two_by_two(), m.Exited(X0, 1), m.AgentExpire(Y))
    assert failures(relaunched(job)) == 0


def test_the_lost_machine_is_named_as_the_cause_and_not_the_error_of_its_peer() -> None:
    job = after(two_by_two(), m.Exited(X0, 1, "RuntimeError: Connection closed by peer"), m.AgentExpire(Y))
    assert launch(relaunched(job)).why == f"agent {Y} is gone: its lease ran out"


def test_a_machine_that_leaves_is_not_the_cause_of_an_earlier_failure() -> None:
    job = after(two_by_two(), m.Exited(X0, 1, "ValueError"), m.AgentLeave(Y))
    assert launch(job).over == f"{X0} ended with exit code 1: ValueError"


def test_a_machine_that_is_back_within_its_lease_was_lost_all_the_same() -> None:
    job = after(two_by_two(), m.Exited(X0, 1), hello(Y, life="2"))
    assert launch(job).lost == {Y}
    assert failures(relaunched(job)) == 0


def test_a_machine_that_left_and_is_back_was_lost_too() -> None:
    job = after(two_by_two(), m.Exited(X0, 1), m.AgentLeave(Y), hello(Y, life="2"))
    assert launch(job).lost == {Y}
    assert failures(relaunched(job)) == 0


def test_an_agent_that_had_stopped_its_workers_before_it_was_started_again_lost_none() -> None:
    job = after(two_by_two(), m.Exited(X0, 1))
    job = after(job, ready(job, Y), hello(Y, life="2"))
    assert launch(job).lost == frozenset()
    assert failures(relaunched(job)) == 1


def test_who_fails_because_a_machine_leaves_is_not_counted() -> None:
    """Its word that it drains may be late, or lost."""
    job = after(two_by_two(), m.Exited(X0, 1), m.DrainAgent(Y, 1.0, "spot"))
    assert failures(after(relaunched(job), m.AgentLeave(Y))) == 0
    job = after(two_by_two(), m.Exited(X0, 1), m.AgentLeave(Y))
    assert failures(relaunched(job)) == 0


def test_an_idle_machine_that_is_lost_excuses_no_member() -> None:
    job = with_agents(created(size_max=4), X, Y, Z)
    assert [seat.agent for seat in launch(job).seats] == [X, X, Y, Z]
    job = with_agents(created(size_max=2), X, Y)
    job = after(job, m.Resize(Target(1)))
    job = all_ready(job, X, Y)
    assert members(job) == ["x-g2.0"]
    job = after(job, m.Exited(MemberId("x-g2.0"), 1), m.AgentExpire(Y))
    assert launch(job).lost == frozenset()
    assert failures(relaunched(job)) == 1


def test_a_job_fails_when_its_workers_did_so_too_often() -> None:
    job = relaunched(after(two_by_two(max_restarts=1), m.Exited(X0, 1)))
    assert failures(job) == 1
    job = after(job, m.Exited(MemberId("y-g2.1"), 2, "boom"))
    job = after(job, ready(job, X))
    job, events = pump(job, ready(job, Y))
    why = "it crashed 2 times (--max-restarts 1); y-g2.1 ended with exit code 2: boom"
    assert events[1:] == (m.WorkerFailed(NOW, MemberId("y-g2.1"), 2), m.StateChanged(NOW, JobState.FAILED, why))


def test_a_job_without_restarts_fails_with_its_first_worker() -> None:
    job = relaunched(after(two_by_two(max_restarts=0), m.Exited(X0, 1)))
    why = "it crashed once (--max-restarts 0); x-g1.0 ended with exit code 1"
    assert (job.state, job.why) == (JobState.FAILED, why)


def test_a_failure_is_kept_in_mind_while_there_are_too_few() -> None:
    job = after(with_agents(created(size_max=2), X), m.Exited(X0, 1), hello(X, 0))
    assert job.why == "0 of the 1 workers needed; x-g1.0 ended with exit code 1"
    assert failures(job) == 0


# ------------------------------------------------------------------------------ beside parameter servers


def test_a_worker_beside_parameter_servers_is_replaced_in_its_seat() -> None:
    before = served()
    job, events = pump(before, m.Exited(Y0, -9))
    assert events == (
        m.SeatEnded(NOW, 1, SeatEnd(Y0, -9)),
        m.SeatRefilled(NOW, 1, 2, MemberId("y-g1.2.1")),
    )
    assert launch(job).seats[2].address == launch(before).seats[2].address
    assert members(job) == [X0, X1, "y-g1.2.1", Y1]
    job = after(job, m.Exited(MemberId("y-g1.2.1"), -9))
    assert members(job) == [X0, X1, "y-g1.2.2", Y1]
    assert failures(job) == 0
    assert made(job, m.Exited(Y0, 1)) == ()


def test_however_often_a_seat_is_refilled_its_members_have_names_of_their_own() -> None:
    job, last = served(), ENDS_KEPT - 2
    ends = tuple(SeatEnd(MemberId(f"y-g1.3.{number}"), -9) for number in range(last))
    seats = (*launch(job).seats[:3], replace(launch(job).seats[3], member=MemberId(f"y-g1.3.{last}")))
    job = replace(job, launch=replace(launch(job), seats=seats, ends=ends))
    for number in range(last, last + 5):
        assert members(job)[3] == f"y-g1.3.{number}"
        job = after(job, m.Exited(members(job)[3], -9))
    assert len(launch(job).ends) == ENDS_KEPT


def test_a_member_that_fails_more_often_than_the_others_is_counted() -> None:
    """All of them fail when a parameter server is gone, which is known only when its agent's lease is over."""
    job = after(served(), m.Exited(Y0, 1), m.Exited(Y1, 1))
    assert failures(job) == 1
    job = after(job, m.Exited(MemberId("y-g1.2.1"), 1))
    assert failures(job) == 2
    job = after(job, m.Exited(MemberId("y-g1.3.1"), 1))
    assert failures(job) == 2


def test_a_worker_that_fails_for_ever_fails_the_job() -> None:
    job = after(served(1), m.Exited(Y0, 1), m.Exited(MemberId("y-g1.2.1"), 1))
    assert (job.state, failures(job)) == (JobState.FAILED, 2)


@pytest.mark.parametrize("member", [X0, X1])
def test_without_its_chief_or_a_parameter_server_every_member_is_launched_again(member: MemberId) -> None:
    job = after(served(), m.Exited(Y0, -9), m.Exited(member, 1))
    assert launch(job).over == f"{member} ended with exit code 1"
    assert failures(relaunched(job)) == 1  # who was replaced long ago excuses no member


def test_a_job_with_a_chief_is_finished_with_it() -> None:
    job = after(served(), m.Exited(Y0, 0), m.Exited(Y1, 0), m.Exited(X1, 0))
    assert job.state is JobState.RUNNING
    job = after(job, m.Exited(X0, 0))
    assert (job.state, job.why) == (JobState.FINISHED, "the chief ended with exit code 0")


def test_without_parameter_servers_no_seat_is_refilled() -> None:
    job = with_agents(created(size_max=4, roles=(("chief", 1),)), X, Y)
    assert launch(after(job, m.Exited(Y0, -9))).over == "y-g1.0 ended with signal 9"


def test_an_evaluator_is_replaced_too() -> None:
    job = with_agents(created(size_max=4, roles=(("ps", 1), ("evaluator", 1))), X, Y)
    assert members(after(job, m.Exited(X1, 1)))[1] == "x-g1.1.1"


def test_a_name_with_dots_is_no_trouble() -> None:
    agent = AgentId("vm.example.org-g1.7")
    job = with_agents(created(size_max=3, roles=(("ps", 1),)), agent, capacity=3)
    job = after(job, m.Exited(members(job)[1], -9))
    assert members(job)[1] == f"{agent}-g1.1.1"
