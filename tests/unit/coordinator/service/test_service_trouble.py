"""Trouble with the store, which must not harm leases, other jobs or the inbox (rule 19, P5)."""

from pliant.coordinator.service.inbox import Accepted, Answer, Unavailable
from pliant.core import messages as m
from pliant.core.job.decide import decide
from pliant.core.job.evolve import evolve
from pliant.core.messages import Event, Rejection
from pliant.core.model.job import Job, JobSpec, JobState, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.base import Hold, Write
from pliant.wire.api import EVENTS, Renew, RenewAgent
from pliant.wire.codec import encode_state
from unit.coordinator.shaky import Desk, desk, member
from unit.core.build import A, B, D, X, join, lines

CREATE = m.Create("demo", JobSpec(1, 6, Target(6)))


def test_a_reload_does_not_forget_who_was_vouched_for() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A), join(B))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A, B})))
    for half in range(1, 39):
        fresh = lines(one.job().durable, 1, 1) if half in (12, 24, 36) else ()
        one.tell(half / 2, m.Report(A, 0, 1, fresh))
    one.store.trouble["write"] = [StoreTimeout("slow")]
    one.tell(19.25, join(D))
    one.idle(19.5, 20.0)
    assert B in one.job().members


def test_time_s_own_requests_get_no_reply() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    one.idle(0.5, 9.5)
    one.store.trouble["write"] = [StoreUnavailable("x")]
    one.pump(10.0)
    one.store.trouble["hold"] = [StoreUnavailable("x")]
    assert one.pump(12.0).replies == ()


def test_an_agent_s_expiry_does_not_outlive_a_takeover() -> None:
    one = desk()
    one.tell(0.0, CREATE, m.AgentJoin(X, 2))
    one.idle(0.5, 9.5)
    one.store.trouble["write"] = [StoreUnavailable("x")]
    one.pump(10.0)
    one.pump(20.0)  # the hold was lost in between: a new term, and every lease afresh
    assert [agent.id for agent in one.job().agents] == [X]


def test_an_agent_heard_of_again_is_not_expired() -> None:
    one = desk()
    one.tell(0.0, CREATE, m.AgentJoin(X, 2))
    one.idle(0.5, 9.5)
    one.store.trouble["write"] = [StoreUnavailable("x")] * 2
    one.pump(10.0)
    one.pump(10.5, RenewAgent(X))
    one.pump(11.0)
    assert [agent.id for agent in one.job().agents] == [X]


def test_one_damaged_job_does_not_keep_the_others_from_being_coordinated() -> None:
    one = desk()
    one.tell(0.0, CREATE)
    one.store.inner.write([Write("broken", 0, (b"{}",), b"nonsense")])
    two = Desk(one.store, "c2")
    pumped = two.pump(10.0)
    assert len(pumped.bugs) == 1
    assert pumped.bugs[0].startswith("broken cannot be read, the other jobs go on: ")
    two.tell(10.1, join(A))
    assert A in two.job().members


# ----------------------------------------------------------------------- an older copy of the store put in its place


def restored(one: Desk) -> Desk:
    """A coordinator over what `one`'s store held before its last events: a backup."""
    events = tuple(entry.data for entry in one.store.inner.events("demo", 0, 3))
    two = desk("c2")
    two.store.inner.write([Write("demo", 0, events, encode_state(replayed(events)))])
    return two


def replayed(events: tuple[bytes, ...]) -> Job:
    job: Job | None = None
    for data in events:
        job = evolve(job, EVENTS.decode(data))
    assert job is not None
    return job


def decided(job: Job, command: m.Command) -> tuple[Event, ...]:
    events = decide(job, command, 0.0)
    assert not isinstance(events, Rejection)
    return events


def set_back(answer: Answer) -> bool:
    return isinstance(answer, Rejection) and answer.code is m.Code.SET_BACK and "Put the newer one back" in answer.why


def test_a_member_that_knows_more_than_the_store_stops_every_decision_on_its_job() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    two = restored(one)
    revision = one.revision()
    assert A in replayed(tuple(entry.data for entry in two.store.inner.events("demo", 0, 9))).members
    assert set_back(two.ask(0.0, Renew(A, revision))[0])
    assert set_back(two.ask(0.1, join(B))[0])
    assert set_back(two.ask(0.2, Renew(A, 0))[0])
    assert two.revision() == 3


def test_a_job_that_was_set_back_can_still_be_cancelled() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    two = restored(one)
    two.ask(0.0, Renew(A, one.revision()))
    two.tell(0.1, m.Cancel("the store was restored"))
    assert two.job().state is JobState.CANCELLED


def test_a_stranger_s_revision_is_refused_and_stops_no_member() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    assert set_back(one.ask(0.0, Renew(B, 10**9))[0])
    assert one.tell(0.1, join(B)).revision > 0


def test_the_other_jobs_go_on_when_one_was_set_back() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    two = restored(one)
    two.ask(0.0, Renew(A, one.revision()))
    two.tell(0.1, m.Create("other", JobSpec(1, 1, Target(1))), job="other")


def test_a_store_set_back_under_the_coordinator_is_noticed_at_the_next_write() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    earlier = restored(one).store.inner
    assert isinstance(earlier.hold("coordinator", "c1", 3.0, 0.0), Hold)  # the backup has it too
    one.store.inner = earlier
    assert set_back(one.ask(0.1, join(B))[0])
    assert [entry.revision for entry in earlier.events("demo", 0, 9)] == [1, 2, 3]


def test_what_another_coordinator_wrote_is_no_set_back() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    known = replayed(tuple(entry.data for entry in one.store.inner.events("demo", 0, 99)))
    (written,) = decided(known, join(B))
    one.store.inner.write([Write("demo", one.revision(), (EVENTS.encode(written),))])
    assert one.tell(0.1, Renew(A, one.revision() + 1)).revision == one.revision()
    assert B in one.job().members


# ------------------------------------------------------------------------------------------- names no member has


def test_asking_for_jobs_that_do_not_exist_leaves_nothing_behind() -> None:
    one = desk()
    for number in range(100):
        answers = one.ask(0.0, Renew(A), join(A), job=f"unknown-{number}")
        assert all(isinstance(answer, Rejection) for answer in answers)
    assert one.service.names() == ()


def test_streams_that_are_no_jobs_are_left_alone() -> None:
    one = desk()
    one.store.inner.write([Write("@tokens", 0, (b"x",), b"not a job")])
    one.tell(0.0, CREATE)
    assert one.service.names() == ("demo",)
    assert one.pump(0.1).bugs == ()


def test_a_clean_exit_lets_the_next_coordinator_in_at_once() -> None:
    one = desk()
    one.tell(0.0, CREATE)
    one.service.close()
    two = Desk(one.store, "c2")
    assert two.pump(0.1).took_over
    assert two.service.leads


def test_a_pump_says_what_was_decided() -> None:
    one = desk()
    pumped = one.pump(0.0, CREATE)
    assert [(job, [type(event).__name__ for event in events]) for job, events in pumped.decided] == [
        ("demo", ["JobCreated", "StateChanged"])
    ]


def test_a_write_that_stood_after_all_is_told_when_it_is_read_again() -> None:
    """The answer of the store was lost and could not be looked up: the next one to ask finds it done."""
    one = desk()
    one.tell(0.0, CREATE, join(A), join(B))
    one.store.trouble["write"] = [StoreTimeout("slow")]
    one.store.applied = {"demo"}
    one.store.trouble["events"] = [StoreUnavailable("away")]
    one.store.trouble["read"] = [StoreUnavailable("away")]
    refused = one.ask(0.1, join(D))
    assert isinstance(refused[0], Unavailable)
    assert one.service.job("demo") is not None  # it is still there to be read
    again = one.pump(0.2, join(D))
    assert isinstance(again.replies[0].answer, Accepted)
    assert (again.changed, again.moved) == (("demo",), ("demo",))
    assert D in one.job().members


def test_a_person_s_drain_is_no_sign_of_life() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A), join(B))
    for half in range(1, 20):
        one.pump(half / 2, m.Drain(A, 30.0, "please"), Renew(B))
    one.pump(10.0)
    assert list(one.job().members) == [B]


def test_a_suspicion_that_could_not_be_acted_on_is_dropped() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A), join(B))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A})))
    one.service.suspect("demo", member(A), 0.0)
    one.store.trouble["write"] = [StoreUnavailable("x")]
    one.pump(0.6)
    one.tell(0.7, Renew(A))
    one.idle(0.8, 2.0)
    assert one.job().broken == ""


def test_after_a_pause_without_another_leader_nothing_is_read_and_every_lease_is_fresh() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A), join(B))
    one.idle(0.5, 9.5)
    one.store.trouble["read_page"] = [StoreError("it must not be read")]
    assert not one.pump(20.0).took_over
    assert one.service.leads
    one.tell(20.1, m.AgentJoin(X, 2))  # a message arrives, so that silence counts
    one.idle(20.5, 25.0)
    assert set(one.job().members) == {A, B}


def test_a_job_takes_account_of_so_many_members_and_agents() -> None:
    one = desk()
    one.tell(0.0, m.Create("demo", JobSpec(1, 1, Target(1))))
    names = [MemberId(f"m{number}") for number in range(69)]
    answers = one.ask(0.0, *(join(name) for name in names))
    assert [isinstance(answer, Rejection) for answer in answers] == [False] * 68 + [True]
    agents = one.ask(0.0, *(m.AgentJoin(AgentId(f"x{number}"), 1) for number in range(69)))
    assert [isinstance(answer, Rejection) for answer in agents] == [False] * 68 + [True]
