"""A live job with parameter servers: its worlds have workers alone, and layouts share their numbers."""

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.accounting.activity import running_workers
from pliant.core.data.grid import Grid
from pliant.core.model.job import Job, JobSpec, JobState, Mode
from pliant.core.model.names import MemberId
from pliant.core.model.view import MemberState, member_state
from pliant.core.ps import messages as p
from pliant.wire.views import peer_keys
from unit.core.build import GRID, TERMS, report
from unit.core.ps.fleet import A, B, C, Fleet
from unit.core.tasks.queue import X

ONE, TWO = MemberId("one"), MemberId("two")


class LiveFleet(Fleet):
    """A live job with parameter servers."""

    def __init__(self) -> None:
        super().__init__(JobSpec(1, 4, mode=Mode.LIVE))

    def train(self, *workers: MemberId, steps: int = 2) -> None:
        """Let workers join, and enter the newest world with all of them as holders."""
        for worker in workers:
            self.tell(m.Join(worker, X, TERMS))
        newest = self.it.newest
        assert newest is not None
        self.tell(report(self.it, newest.members[0], newest.number, steps, holders=newest.members))


def keys(job: Job, member: MemberId) -> list[int]:
    return [key.generation for key in peer_keys(job, lambda *of: f"{of}").get(member, ())]


def test_worlds_have_workers_alone() -> None:
    fleet = LiveFleet()
    fleet.settle(A, B)
    states = [fleet.it.state]
    fleet.train(ONE, steps=0)
    fleet.train(TWO, steps=0)
    assert [*states, fleet.it.state] == [JobState.WAITING, JobState.RUNNING]
    assert [world.members for world in fleet.it.worlds][-1] == (ONE, TWO)
    assert fleet.primaries() == {A: 512, B: 512}
    assert member_state(fleet.it, A) is MemberState.ACTIVE
    assert running_workers(fleet.it) == [ONE, TWO]


def test_a_lost_server_changes_the_layout_and_no_world() -> None:
    fleet = LiveFleet()
    fleet.settle(A, B)
    fleet.train(ONE)
    before = fleet.it
    fleet.kill(A)
    fleet.settle(C)
    after = fleet.it
    assert after.worlds == before.worlds
    assert (after.current, after.holders, after.durable) == (before.current, before.holders, before.durable)
    assert fleet.layout.number == after.generation > before.generation
    fleet.train(TWO)
    assert fleet.it.durable.step == before.durable.step + 2
    assert fleet.it.generation > fleet.layout.number, "the next world has a higher number than any layout"


def test_a_worker_has_the_keys_of_its_worlds_and_of_the_layout() -> None:
    fleet = LiveFleet()
    fleet.settle(A)
    fleet.train(ONE)
    worlds = [world.number for world in fleet.it.worlds]
    assert keys(fleet.it, ONE) == [*worlds, fleet.layout.number]
    assert keys(fleet.it, A) == [fleet.layout.number]


def test_a_job_that_stops_waits_for_its_workers_and_then_ends_with_its_servers() -> None:
    fleet = LiveFleet()
    fleet.settle(A, B)
    fleet.train(ONE)
    fleet.tell(m.Cancel("enough"))
    states = [fleet.it.state]
    assert {name for name, member in fleet.it.members.items() if member.draining} == {ONE}
    assert fleet.layout.leaving == frozenset()
    fleet.tell(m.Leave(ONE, 0, "saved"))
    assert [*states, fleet.it.state] == [JobState.STOPPING, JobState.CANCELLED]


def test_servers_alone_fix_no_terms() -> None:
    fleet = LiveFleet()
    fleet.settle(A)
    fleet.train(ONE)
    longer = replace(TERMS, grid=Grid(GRID.samples, GRID.batch, GRID.slots, epochs=3))
    assert "other members train now" in fleet.refused(m.Join(TWO, X, longer)).why
    fleet.tell(m.Leave(ONE, 0, "left"))
    fleet.tell(m.Join(TWO, X, longer))
    assert fleet.it.terms == longer


def test_the_next_attempt_continues_state_and_tables() -> None:
    fleet = LiveFleet()
    fleet.settle(A)
    fleet.train(ONE)
    fleet.tell(m.Cancel("enough"))
    fleet.tell(m.Leave(ONE, 0, "saved"))
    fleet.tell(m.Create("demo", fleet.it.spec))
    fleet.tell(p.JoinServers(B, X, "b:1"))
    assert fleet.it.ps is not None
    assert fleet.it.ps.history == 1
    assert fleet.it.durable.step == 2
