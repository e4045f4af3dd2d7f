"""The workers of each agent and the members that train: one decision, so that the two agree."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pliant.core import messages as m
from pliant.core.job.assignment import assign, desired_workers
from pliant.core.model.job import Job, Target
from pliant.core.model.names import AgentId, MemberId
from unit.core.build import NOW, A, B, C, D, X, Y, Z, after, formed, join, new_job, pump, report, with_spec

W = AgentId("w")


def on_agents(*members: tuple[MemberId, AgentId], target: int, room: tuple[tuple[AgentId, int], ...]) -> Job:
    """A job that trains in generation 1 with these members, whose agents joined in the order of `room`."""
    job = after(new_job(1, 6, target), *(m.AgentJoin(agent, capacity) for agent, capacity in room))
    job, _ = pump(job, *(join(name, agent) for name, agent in members))
    return after(job, report(job, members[0][0], 1, holders=formed(job, 1).members))


def training(job: Job) -> Counter[AgentId]:
    newest = job.newest
    assert newest is not None
    return Counter(job.members[name].agent for name in newest.members)


def test_after_a_shrink_the_members_train_where_workers_are_wanted() -> None:
    """Members were once kept by their age, and workers wanted by the age of their agents."""
    room = ((W, 1), (X, 1), (Y, 1), (Z, 1))
    job = on_agents((D, Z), (C, Y), (B, X), (A, W), target=4, room=room)
    job = after(job, m.Resize(Target(2)))
    assert desired_workers(job) == {W: 1, X: 1, Y: 0, Z: 0}
    assert training(job) == Counter({W: 1, X: 1})


def test_members_of_a_new_agent_take_over_from_those_beyond_the_number_wanted_on_an_old_one() -> None:
    job = on_agents((A, X), (B, X), target=2, room=((X, 2),))
    job = after(job, m.AgentJoin(Y, 2))
    assert desired_workers(job) == {X: 1, Y: 1}
    assert training(job) == Counter({X: 2})  # until the other one is there
    job = after(job, join(C, Y))
    assert training(job) == Counter({X: 1, Y: 1})
    assert formed(job, 2).members == (A, C)


def test_a_member_that_neither_trains_nor_is_a_wanted_spare_is_drained() -> None:
    job = on_agents((A, X), (B, Y), target=2, room=((X, 2), (Y, 2)))
    job, events = pump(job, join(C, Y))
    assert events[1:] == (m.MemberDraining(NOW, C, 30.0, "y has more workers than are wanted there"),)
    spared = with_spec(on_agents((A, X), (B, Y), target=2, room=((X, 2), (Y, 2))), spares=1)
    assert len(pump(spared, join(C, X))[1]) == 1


def test_while_workers_start_none_takes_the_place_of_another() -> None:
    job = after(new_job(1, 6, 2), m.AgentJoin(X, 2), m.AgentJoin(Y, 2))
    job, _ = pump(job, join(A, X), join(B, X), join(C, Y))
    assert formed(job, 1).members == (A, C)
    job = after(new_job(1, 6, 2), m.AgentJoin(X, 2), m.AgentJoin(Y, 2))
    job = after(pump(job, join(A, X), join(B, X))[0], join(C, Y))
    assert [world.members for world in job.worlds] == [(A, B)]
    job = after(job, report(job, A, 1, holders=(A, B)))
    assert formed(job, 2).members == (A, C)


def test_a_member_of_no_agent_is_never_surplus() -> None:
    job = on_agents((A, X), target=1, room=((X, 1),))
    assert len(pump(job, join(C, Y))[1]) == 1


def test_a_placement_has_no_room_on_an_agent_that_leaves() -> None:
    job = on_agents((A, X), (B, Y), target=2, room=((X, 2), (Y, 2)))
    job = after(job, m.Resize(Target(2, ((X, 1), (Y, 1)))), m.DrainAgent(Y, 9.0, "maintenance", leave=True))
    assert desired_workers(job) == {X: 1, Y: 0}
    assert [member.id for member in assign(job, frozenset()).training] == [A]
    assert [member.id for member in assign(after(job, join(C, Y)), frozenset()).training] == [A]


def dealt(capacities: list[int], total: int) -> list[int]:
    """Deal one by one, as the rule says."""
    shares = [0] * len(capacities)
    for _ in range(min(total, sum(capacities))):
        free = [index for index, room in enumerate(capacities) if shares[index] < room]
        shares[min(free, key=lambda index: shares[index])] += 1
    return shares


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 40))
def test_each_worker_goes_to_the_agent_with_the_fewest(capacities: list[int], target: int) -> None:
    agents = [(AgentId(f"g{index}"), room) for index, room in enumerate(capacities)]
    job = after(new_job(1, 40, target), *(m.AgentJoin(agent, room) for agent, room in agents))
    assert list(desired_workers(job).values()) == dealt(capacities, target)
