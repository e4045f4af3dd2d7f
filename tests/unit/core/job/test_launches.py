"""Launches: when one forms, who is in it, when it is over, and what follows."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.assignment import desired_workers
from pliant.core.job.launches import describe_exit, is_own_failure, seats_per_agent
from pliant.core.job.next_world import next_consequence
from pliant.core.job.validation import ADDRESS_MAX
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import JobState, Mode, Target
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from unit.core.build import NOW, TERMS, A, X, Y, Z, after, join, made, pump, refused
from unit.core.launched import (
    CHIEF_AND_PS,
    all_ready,
    created,
    hello,
    known,
    launch,
    members,
    ready,
    two_by_two,
    with_agents,
)

# ---------------------------------------------------------------------------------------------- when it forms


def test_a_job_no_member_runs_waits_for_workers() -> None:
    job = created(2)
    assert (job.state, job.why) == (JobState.WAITING, "0 of the 2 workers needed")


def test_a_launch_forms_as_soon_as_every_agent_is_ready() -> None:
    job = after(created(), hello(X, address="10.0.0.1"), hello(Y, 1))
    assert (job.state, job.why) == (JobState.WAITING, "waiting for x, y to be ready")
    job = after(job, ready(job, X))
    assert job.why == "waiting for y to be ready"
    job, events = pump(job, ready(job, Y))
    seats = (
        Seat(MemberId("x-g1.0"), X, "worker", "10.0.0.1:20000"),
        Seat(MemberId("x-g1.1"), X, "worker", "10.0.0.1:20001"),
        Seat(MemberId("y-g1.0"), Y, "worker", "127.0.0.1:20000"),
    )
    first = Launch(1, seats, "the job starts")
    assert events == (
        m.AgentReadied(NOW, Y, (20000,)),
        m.Launched(NOW, first),
        m.StateChanged(NOW, JobState.RUNNING, "3 workers, launched as generation 1"),
    )
    assert (job.launch, job.generation, job.sealed) == (first, 1, 1)
    assert [agent.ports for agent in job.agents] == [(), ()]


def test_a_launch_of_one_is_told_in_the_singular() -> None:
    assert with_agents(created(size_max=1), X).why == "1 worker, launched as generation 1"


def test_an_ipv6_address_is_put_into_brackets() -> None:
    job = after(created(size_max=1), hello(X, address="fd00::1"))
    assert launch(all_ready(job, X)).seats[0].address == "[fd00::1]:20000"


def test_too_few_workers_are_waited_for() -> None:
    job = with_agents(created(3), X)
    assert (job.state, job.why) == (JobState.WAITING, "2 of the 3 workers needed")
    assert job.launch is None


def test_an_agent_without_room_is_not_waited_for() -> None:
    job = after(created(), hello(Y, 0))
    assert job.why == "0 of the 1 workers needed"
    assert members(with_agents(job, X)) == ["x-g1.0", "x-g1.1"]


def test_a_settled_job_has_nothing_more_to_say() -> None:
    assert next_consequence(two_by_two(), NOW) == ()


# --------------------------------------------------------------------------------------------- who is in it


def test_workers_are_spread_and_rank_0_is_with_the_oldest_agent() -> None:
    job = with_agents(created(size_max=9, target=5), X, Y, Z, capacity=4)
    assert members(job) == ["x-g1.0", "x-g1.1", "y-g1.0", "y-g1.1", "z-g1.0"]
    assert desired_workers(job) == {X: 2, Y: 2, Z: 1}


def test_a_smaller_target_takes_seats_from_the_youngest() -> None:
    job = with_agents(created(size_max=9, target=6), X, Y, Z)
    job = all_ready(after(job, m.Resize(Target(3))), X, Y, Z)
    assert members(job) == ["x-g2.0", "x-g2.1", "y-g2.0"]
    assert launch(job).why == "3 workers instead of 6"


def test_who_has_seats_keeps_them_when_others_come() -> None:
    job = with_agents(created(size_max=6, target=4), X, Y, capacity=4)
    assert members(job) == ["x-g1.0", "x-g1.1", "y-g1.0", "y-g1.1"]
    job = with_agents(job, Z, capacity=4)
    assert seats_per_agent(job) == {X: 2, Y: 2, Z: 0}
    assert launch(job).number == 1


def test_an_exact_placement_is_taken_as_it_is() -> None:
    job = two_by_two()
    job, events = pump(job, m.Resize(Target(3, ((X, 1), (Y, 2)))))
    assert m.LaunchOver(NOW, 1, "3 workers instead of 4") in events
    job = all_ready(job, X, Y)
    assert members(job) == ["x-g2.0", "y-g2.0", "y-g2.1"]
    job = after(job, m.Resize(Target(3, ((X, 2), (Y, 1)))))
    assert launch(job).over == "another placement is wanted"
    assert members(all_ready(job, X, Y)) == ["x-g3.0", "x-g3.1", "y-g3.0"]


def test_a_placement_beyond_an_agent_s_room_is_cut() -> None:
    job = created(size_max=6, target=5)
    job = after(job, m.Resize(Target(5, ((X, 5),))))
    assert members(with_agents(job, X, Y)) == ["x-g1.0", "x-g1.1"]


def test_roles_are_dealt_by_rank_and_the_rest_are_workers() -> None:
    job = with_agents(created(size_max=4, roles=CHIEF_AND_PS), X, Y)
    assert [seat.role for seat in launch(job).seats] == ["chief", "ps", "worker", "worker"]


def for_role(agent: AgentId, role: str, capacity: int = 1) -> m.AgentJoin:
    return m.AgentJoin(agent, capacity, run_id="1", role=role)


def test_an_agent_with_a_role_gives_it_to_its_workers_whenever_it_comes() -> None:
    agents = (for_role(X, "worker", 2), for_role(Y, "ps"), for_role(Z, "chief"))
    job = all_ready(after(created(1, 4, roles=CHIEF_AND_PS), *agents), X, Y, Z)
    assert [(seat.role, seat.agent) for seat in launch(job).seats] == [
        ("chief", Z),
        ("ps", Y),
        ("worker", X),
        ("worker", X),
    ]


def test_workers_of_an_agent_for_workers_take_no_other_role() -> None:
    job = all_ready(after(created(1, 6, roles=CHIEF_AND_PS), for_role(X, "worker", 6)), X)
    assert (job.state, job.why) == (JobState.WAITING, "1 more of the role chief needed")
    job = all_ready(after(job, hello(Y, 2)), Y)
    assert [(seat.role, seat.agent) for seat in launch(job).seats[:3]] == [("chief", Y), ("ps", Y), ("worker", X)]
    assert len(launch(job).seats) == 6


def test_an_agent_for_a_role_runs_no_more_of_it_than_the_job_has() -> None:
    agents = (for_role(X, "ps", 5), for_role(Y, "worker", 5), for_role(Z, "chief"))
    job = all_ready(after(created(1, 4, roles=CHIEF_AND_PS), *agents), X, Y, Z)
    assert seats_per_agent(job) == {X: 1, Y: 2, Z: 1}


def test_an_agent_for_a_role_that_the_job_does_not_have_is_refused() -> None:
    job = created(1, 4, roles=CHIEF_AND_PS)
    assert made(job, for_role(X, "ps")) != ()
    why = "demo has no role 'driver'; an agent's role is worker or chief or ps"
    assert refused(job, for_role(X, "driver")) == Rejection(Code.BAD, why)


def test_an_agent_that_comes_again_for_another_role_is_another() -> None:
    job = after(created(1, 4, roles=CHIEF_AND_PS), for_role(X, "ps"))
    assert made(job, for_role(X, "ps")) == ()
    assert [agent.role for agent in after(job, for_role(X, "chief")).agents] == ["chief"]


def test_a_job_with_roles_needs_a_mere_worker_besides() -> None:
    job = with_agents(created(1, 4, 4, roles=CHIEF_AND_PS), X)
    assert job.why == "2 of the 3 workers needed"


# ------------------------------------------------------------------------------------------------ changes


def test_an_agent_that_comes_counts_when_it_is_ready() -> None:
    job = after(with_agents(created(), X), hello(Y))
    assert not launch(job).over
    job = after(job, ready(job, Y))
    assert launch(job).over == "4 workers instead of 2"
    assert job.why == "waiting for x to stop its workers; 4 workers instead of 2"
    job = after(job, ready(job, X))
    assert members(job) == ["x-g2.0", "x-g2.1", "y-g2.0", "y-g2.1"]
    assert (launch(job).why, launch(job).restarts) == ("4 workers instead of 2", 1)


def test_a_change_that_leaves_too_few_stops_no_member() -> None:
    job = with_agents(created(2, 4), X)
    job = after(job, m.Resize(Target(3, ((Y, 3),))))
    assert not launch(job).over


def test_an_agent_that_drains_gets_no_seat_any_more() -> None:
    job = two_by_two()
    job, events = pump(job, m.DrainAgent(Y, 5.0, "maintenance"))
    assert events[:2] == (m.AgentDraining(NOW, Y, 5.0, "maintenance"), m.LaunchOver(NOW, 1, "y leaves"))
    assert known(job, Y).draining
    assert made(job, m.DrainAgent(Y, 5.0, "maintenance")) == ()
    job = after(job, ready(job, X))
    assert job.why == "waiting for y to stop its workers; y leaves"
    job = after(job, m.AgentLeave(Y))
    assert members(job) == ["x-g2.0", "x-g2.1"]


def test_an_idle_agent_that_drains_is_not_waited_for() -> None:
    job = with_agents(created(size_max=2), X, Y)
    job = all_ready(after(job, m.Resize(Target(1))), X, Y)
    assert members(job) == ["x-g2.0"]
    job = after(job, m.DrainAgent(Y, 5.0, "maintenance"))
    assert not launch(job).over
    job = after(job, m.Exited(MemberId("x-g2.0"), -9))
    assert members(after(job, ready(job, X))) == ["x-g3.0"]


def test_an_agent_that_comes_back_may_have_workers_of_long_ago_even_if_it_drains() -> None:
    """Its lease ran out, the others were launched without it, and it is not rid of its own yet."""
    job = after(two_by_two(), m.AgentExpire(Y))
    job = after(job, ready(job, X), hello(Y), m.DrainAgent(Y, 5.0, "spot"))
    assert (launch(job).number, launch(job).over) == (2, "")
    job = after(job, m.Exited(MemberId("x-g2.0"), -9))
    job = after(job, ready(job, X))
    assert job.why == "waiting for y to stop its workers; x-g2.0 ended with signal 9"
    assert members(after(job, m.AgentLeave(Y))) == ["x-g3.0", "x-g3.1"]


def test_the_last_agent_may_drain_and_the_job_waits() -> None:
    job = after(with_agents(created(), X), m.DrainAgent(X, 5.0, "maintenance"), m.AgentLeave(X))
    assert (job.state, job.why) == (JobState.WAITING, "0 of the 1 workers needed; x leaves")
    assert members(with_agents(job, X)) == ["x-g2.0", "x-g2.1"]


def test_an_agent_that_is_lost_is_waited_for_no_longer() -> None:
    job = two_by_two()
    job, events = pump(job, m.AgentExpire(Y))
    assert events[0] == m.AgentGone(NOW, Y, "its lease ran out", lost=True)
    assert launch(job).over == "agent y is gone: its lease ran out"
    assert launch(job).lost == {Y}
    job = after(job, ready(job, X))
    assert members(job) == ["x-g2.0", "x-g2.1"]


def test_an_agent_whose_connection_was_closed_is_lost_soon() -> None:
    job, events = pump(two_by_two(), m.AgentSuspect(Y))
    why = "its connection closed and it did not reconnect"
    assert events[0] == m.AgentGone(NOW, Y, why, lost=True)
    assert launch(job).over == f"agent y is gone: {why}"
    live = after(with_agents(created(mode=Mode.AUTO), X), m.Join(MemberId("x-g1.0"), X, TERMS))
    assert made(live, m.AgentSuspect(X)) == ()


def test_a_worker_that_was_launched_is_no_member() -> None:
    why = "x-g1.0 is not a member: its agent launched it in generation 1; resize the job, or drain an agent"
    assert refused(two_by_two(), m.Drain(MemberId("x-g1.0"), 1.0, "spot")) == Rejection(Code.UNKNOWN, why)
    assert refused(two_by_two(), m.Drain(A, 1.0, "spot")).why == "a is not a member of demo; it never joined"


def test_an_agent_that_was_started_again_has_no_workers_any_more() -> None:
    job = after(two_by_two(), hello(Y, life="2"))
    assert launch(job).over == "y was started again"
    job = all_ready(job, X, Y)
    assert members(job) == ["x-g2.0", "x-g2.1", "y-g2.0", "y-g2.1"]


def test_an_agent_whose_workers_are_done_may_go() -> None:
    for command in (m.AgentLeave(Y), m.AgentExpire(Y), hello(Y, life="2"), m.DrainAgent(Y, 1.0, "spot")):
        job = after(two_by_two(), m.Exited(MemberId("y-g1.0"), 0), m.Exited(MemberId("y-g1.1"), 0), command)
        assert not launch(job).over
        assert job.state is JobState.RUNNING
        job = after(job, m.Exited(MemberId("x-g1.0"), 0), m.Exited(MemberId("x-g1.1"), 0))
        assert (job.state, job.why) == (JobState.FINISHED, "all 4 workers ended with exit code 0")


def test_once_a_member_is_done_nothing_is_changed_for_a_better_size() -> None:
    job = after(two_by_two(), m.Exited(MemberId("y-g1.0"), 0), m.Resize(Target(2)))
    assert not launch(job).over


def test_a_running_launch_whose_agent_is_not_there_is_over() -> None:
    """Nothing leads there: an agent that goes takes its launch with it."""
    job = two_by_two()
    assert next_consequence(replace(job, agents=job.agents[:1]), NOW) == (m.LaunchOver(NOW, 1, "y is gone"),)


# -------------------------------------------------------------------------------------------- agents' words


def test_what_an_agent_says_of_itself_has_bounds() -> None:
    long = "x" * (ADDRESS_MAX + 1)
    for said in (hello(X, address=long), hello(X, home=long), hello(X, life=long), hello(X, life="\n")):
        why = "an agent's address, install_id and run_id must have up to 255 printable characters"
        assert refused(created(), said) == Rejection(Code.BAD, why)
    assert made(created(), hello(X, address=long[1:], home=long[1:], life=long[1:]))


def test_a_second_agent_of_the_same_name_is_told_what_to_do() -> None:
    job = after(created(), hello(X, address="10.0.0.1", home="here"))
    for address, where in (("10.0.0.1", "10.0.0.1"), ("", "an unknown address")):
        first = after(created(), hello(X, address=address, home="here"))
        why = f"another agent is called x, at {where}: set PLIANT_AGENT to another name here"
        assert refused(first, hello(X, home="elsewhere")) == Rejection(Code.EXISTS, why)
    assert made(job, hello(X, home="here", life="2"))
    assert made(job, hello(X))  # from before there were homes
    assert made(after(created(), hello(X)), hello(X, home="here"))


def test_hello_again_changes_nothing_of_how_an_agent_stands() -> None:
    job = after(created(size_min=3), hello(X))
    job = after(job, ready(job, X), m.DrainAgent(X, 1.0, "spot"))
    assert made(job, hello(X)) == ()
    assert made(job, hello(X, life="2")) == (m.AgentJoined(NOW, X, 2, run_id="2"),)


def test_an_address_that_means_this_machine_is_no_use_to_others() -> None:
    why = (
        "x is at a loopback address, which other machines such as 10.0.0.2 cannot reach: "
        "run x with --local-addr and an address of its machine"
    )
    for inner in ("127.0.0.1", "localhost", "::1"):
        job = after(created(), hello(X, address=inner))
        assert refused(job, hello(Y, address="10.0.0.2")) == Rejection(Code.BAD, why)
        assert made(job, hello(Y, address="127.0.1.1"))
        assert made(job, hello(Y))
        other = after(created(), hello(Y, address="10.0.0.2"))
        assert refused(other, hello(X, address=inner)) == Rejection(Code.BAD, why)
        assert made(other, hello(X, address="10.0.0.1"))


def test_so_many_agents_no_job_can_use() -> None:
    job = created(size_max=1)
    for number in range(68):
        job = after(job, hello(AgentId(f"a{number}")))
    why = "demo has 68 agents, far more than its largest size 1"
    assert refused(job, hello(X)) == Rejection(Code.BAD, why)
    assert made(job, hello(AgentId("a3"), life="2"))


def test_only_an_agent_that_is_known_can_be_ready() -> None:
    assert refused(created(), m.AgentReady(X, 0, (1,))) == Rejection(Code.UNKNOWN, "no agent x; join first")


@pytest.mark.parametrize("ports", [(), (20000,), (20000, 20001, 20002), (0, 1), (1, 65536)])
def test_an_agent_offers_one_port_for_each_worker(ports: tuple[int, ...]) -> None:
    why = "x must send 2 ports, one for each worker, from 1 to 65535"
    assert refused(after(created(), hello(X)), m.AgentReady(X, 0, ports)) == Rejection(Code.BAD, why)


def test_to_be_ready_again_changes_nothing_but_other_ports_do() -> None:
    job = with_agents(created(3), X)
    assert made(job, ready(job, X)) == ()
    assert made(job, ready(job, X, 30000)) == (m.AgentReadied(NOW, X, (30000, 30001)),)


def test_a_late_word_of_a_launch_before_is_not_about_this_one() -> None:
    job = all_ready(after(two_by_two(), m.Resize(Target(3))), X, Y)
    assert launch(job).number == 2
    assert made(job, m.AgentReady(X, 1, (1, 2))) == ()
    over = after(job, m.Resize(Target(4)))
    assert launch(over).over
    assert made(over, m.AgentReady(X, 1, (1, 2))) == ()
    assert made(over, m.AgentReady(X, 2, (1, 2))) == (m.AgentReadied(NOW, X, (1, 2)),)


def test_an_agent_that_has_no_worker_ends_the_launch_it_was_to_run() -> None:
    job, events = pump(two_by_two(), m.AgentReady(X, 1, (1, 2)))
    assert events[:2] == (
        m.LaunchOver(NOW, 1, "all workers of x have ended"),
        m.AgentReadied(NOW, X, (1, 2)),
    )
    assert job.why == "waiting for y to stop its workers; all workers of x have ended"


# ------------------------------------------------------------------------------------------------ live


def test_a_job_that_became_live_is_never_launched_again() -> None:
    job = with_agents(created(mode=Mode.AUTO), X)
    assert not job.is_live
    job = after(job, m.Join(MemberId("x-g1.0"), X, TERMS))
    assert job.is_live
    assert made(job, m.AgentReady(X, 1, (1, 2))) == ()
    assert made(job, m.Exited(MemberId("x-g1.1"), 1)) == ()
    assert made(job, m.DrainAgent(X, 1.0, "spot"))[0] == m.MemberDraining(NOW, MemberId("x-g1.0"), 1.0, "spot")
    for command in (m.Resize(Target(3)), hello(Y), m.AgentExpire(X), hello(X, life="2")):
        assert after(job, command).launch == job.launch


def test_no_member_joins_a_job_whose_workers_are_launched() -> None:
    why = "workers cannot join demo: its mode is relaunch; run it with --mode auto or live"
    assert refused(with_agents(created(), X), join(A)) == Rejection(Code.MISMATCH, why)


# ------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(("code", "own"), [(0, False), (1, True), (75, False), (-9, False), (-15, False), (-11, True)])
def test_whose_fault_an_end_was(code: int, own: bool) -> None:
    assert is_own_failure(code) is own


def test_an_end_is_told_by_code_or_signal() -> None:
    assert (describe_exit(3), describe_exit(-9)) == ("exit code 3", "signal 9")
