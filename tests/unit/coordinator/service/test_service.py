"""The pump: commands become durable decisions, and only then answers (P5, P6, rule 17)."""

from dataclasses import replace
from functools import partial

import pytest

from pliant.coordinator.service.draft import TAIL_MAX
from pliant.coordinator.service.inbox import Accepted, Reply, Unavailable
from pliant.coordinator.service.leader import HOLD_TTL_S
from pliant.coordinator.service.pump import INBOX_MAX, TRIES, Service
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.data.sample_order import Order
from pliant.core.job.evolve import evolve
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import JobSpec, JobState, Target, Terms
from pliant.core.model.names import MemberId
from pliant.errors import StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.base import Write
from pliant.stores.memory import MemoryStore
from pliant.wire.api import EVENTS, Renew, RenewAgent
from pliant.wire.codec import encode_state
from unit.coordinator.shaky import WALL, Desk, Request, Shaky, desk, member, stored, write_beside
from unit.core.build import A, B, C, X, checkpoint, drain, join, lines, stopped

CREATE = m.Create("demo", JobSpec(1, 6, Target(6)))
DOWN = StoreUnavailable("the disk is away")
SLOW = StoreTimeout("no answer in 2 s")


def at_work(one: Desk) -> Desk:
    """A and B train in generation 1."""
    one.tell(0.0, CREATE, join(A), join(B))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A, B})))
    return one


def steps(count: int, head: Lineage = GENESIS) -> m.Report:
    return m.Report(A, 0, 1, lines(head, 1, count))


# ------------------------------------------------------------------------------------------------- answers


def test_a_job_is_created_and_durable_when_the_answer_comes() -> None:
    one = desk()
    [reply] = one.pump(0.0, CREATE).replies
    assert reply == Reply(1, "demo", CREATE, Accepted(2, None), 2)
    assert stored(one.store) == one.job()
    assert one.job().state is JobState.WAITING
    [write] = one.store.writes[0]
    assert [EVENTS.decode(data) for data in write.events] == [
        m.JobCreated(WALL, "demo", JobSpec(1, 6, Target(6))),
        m.StateChanged(WALL, JobState.WAITING, "no member has joined yet"),
    ]


def test_a_member_that_asks_is_told_how_things_stand() -> None:
    one = desk()
    answer = one.tell(0.0, CREATE, join(A))
    assert answer == Accepted(4, GENESIS)


def test_those_who_asked_in_one_pump_all_see_its_end() -> None:
    one = desk()
    answers = one.ask(0.0, CREATE, join(A), join(B))
    revision = one.revision()
    assert answers == [
        Accepted(revision, None),
        Accepted(revision, GENESIS),
        Accepted(revision, GENESIS),
    ]


def test_a_refusal_changes_nothing_and_stands_beside_what_does() -> None:
    one = desk()
    first, second, third = one.ask(0.0, CREATE, m.Resize(Target(9)), join(A))
    assert isinstance(first, Accepted)
    assert second == Rejection(Code.BAD, "the target must lie between min 1 and max 6; got 9")
    assert isinstance(third, Accepted)
    assert one.job().target == Target(6)


def test_a_refusal_says_which_revision_it_rests_on() -> None:
    one = desk()
    one.tell(0.0, CREATE)
    [reply] = one.pump(0.0, m.Resize(Target(9))).replies
    assert reply.revision == 2
    [reply] = one.pump(0.0, join(A), job="other").replies
    assert reply.answer == Rejection(Code.NO_JOB, "there is no such job; create it first")
    assert reply.revision == 0


SPEAKERS: list[Request] = [
    Renew(A),
    join(A),
    m.Report(A, 0, 1, ()),
    stopped(A, 1),
    m.WiringFailed(A, 1, None),
    m.Publish(A, 1, checkpoint(GENESIS)),
    drain(A),
]
OTHERS: list[Request] = [
    CREATE,
    m.AgentJoin(X, 1),
    m.Resize(Target(5)),
    m.Leave(A, 0, "bye"),
    m.Exited(A, 0),
    m.Suspect(A),
    m.Cancel("enough"),
]


@pytest.mark.parametrize("request_", SPEAKERS, ids=lambda request: type(request).__name__)
def test_members_get_the_durable_step_with_the_answer(request_: Request) -> None:
    one = at_work(desk())
    answer = one.tell(0.0, request_)
    assert answer == Accepted(one.revision(), one.job().durable)


@pytest.mark.parametrize("request_", OTHERS, ids=lambda request: type(request).__name__)
def test_others_get_none(request_: Request) -> None:
    assert at_work(desk()).tell(0.0, request_).durable is None


def test_a_member_that_renews_is_told_only_what_it_does_not_know() -> None:
    one = at_work(desk())
    revision = one.revision()
    assert one.tell(0.0, Renew(A, revision - 1)) == Accepted(revision, one.job().durable)
    assert one.tell(0.0, Renew(A, revision)) == Accepted(revision, None)


def test_what_changes_nothing_writes_nothing() -> None:
    one = at_work(desk())
    writes = len(one.store.writes)
    revision = one.revision()
    assert one.tell(0.0, Renew(A), join(A), m.Report(A, 0, 1, ())).revision == revision
    assert one.pump(0.0).replies == ()
    assert len(one.store.writes) == writes


def test_a_pump_says_which_jobs_changed_and_which_had_more_than_progress() -> None:
    one = at_work(desk())
    progress = one.pump(0.0, steps(2))
    assert (progress.changed, progress.moved) == (("demo",), ())
    more = one.pump(0.0, join(C))
    assert (more.changed, more.moved) == (("demo",), ("demo",))
    nothing = one.pump(0.0, Renew(A))
    assert (nothing.changed, nothing.moved) == ((), ())


def test_all_jobs_of_a_pump_are_written_at_once() -> None:
    one = desk()
    for name in ("one", "two"):
        one.service.submit(name, replace(CREATE, name=name), name)
    one.service.submit("three", join(A), "three")
    replies = {reply.ticket: reply for reply in one.service.pump(0.0).replies}
    assert [[write.job for write in writes] for writes in one.store.writes] == [["one", "two"]]
    assert {ticket: reply.job for ticket, reply in replies.items()} == {
        "one": "one",
        "two": "two",
        "three": "three",
    }
    assert isinstance(replies["three"].answer, Rejection)
    assert one.store.inner.jobs() == ("one", "two")


def test_what_is_not_known_is_not_shown() -> None:
    one = desk()
    assert one.service.job("demo") is None
    one.pump(0.0, join(A))
    assert one.service.job("demo") is None


# ----------------------------------------------------------------------------------------------- the inbox


def test_the_inbox_is_bounded() -> None:
    store = MemoryStore("unit")
    store.hold("coordinator", "c2", 9.0, 0.0)  # so that the answers are short
    service = Service(store, "c1", lambda: WALL)
    for _ in range(INBOX_MAX - 1):
        assert service.submit("demo", join(A), "x")
        assert service.postpone("demo", member(A), 0, "x")
    assert service.submit("demo", join(A), "last")
    assert service.postpone("demo", member(A), 0, "last")
    assert not service.submit("demo", join(A), "too many")
    assert not service.postpone("demo", member(A), 0, "too many")
    pumped = service.pump(0.0)
    assert (len(pumped.replies), len(pumped.renewed)) == (INBOX_MAX, INBOX_MAX)
    assert (pumped.replies[-1].ticket, pumped.renewed[-1].ticket) == ("last", "last")
    assert service.submit("demo", join(A), "room again")
    assert service.postpone("demo", member(A), 0, "room again")


# ------------------------------------------------------------------------------------- a store that fails


@pytest.mark.parametrize("error", [DOWN, StoreError("the disk is full")])
def test_nothing_is_acknowledged_that_could_not_be_written(error: StoreError) -> None:
    one = at_work(desk())
    before, revision = one.job(), one.revision()
    one.store.trouble["write"] = [error]
    answers = one.ask(0.0, join(C), m.Resize(Target(9)), Renew(A, revision))
    assert answers == [*[Unavailable(f"the store failed: {error}")] * 2, Accepted(revision, None)]
    assert (one.job(), one.revision()) == (before, revision)
    assert stored(one.store) == before
    assert one.tell(0.0, join(C)).revision > revision


def test_what_needs_no_write_is_answered_while_the_store_cannot_be_written() -> None:
    one = at_work(desk())
    one.tell(0.0, replace(CREATE, name="other"), job="other")
    one.store.trouble["write"] = [DOWN]
    one.service.submit("other", join(A), "write")
    one.service.submit("demo", join(A), "no write")
    pumped = one.service.pump(0.0)
    answers = {reply.ticket: reply.answer for reply in pumped.replies}
    assert isinstance(answers["write"], Unavailable)
    assert isinstance(answers["no write"], Accepted)
    assert pumped.changed == ()


def test_a_write_that_timed_out_but_was_applied_is_acknowledged() -> None:
    one = at_work(desk())
    one.store.trouble["write"] = [SLOW]
    one.store.applied = {"demo"}
    pumped = one.pump(0.0, join(C))
    assert isinstance(pumped.replies[0].answer, Accepted)
    assert pumped.changed == ("demo",)
    assert len(one.store.writes) == 3
    assert stored(one.store) == one.job()
    assert C in one.job().members


def test_a_write_that_timed_out_and_was_not_applied_is_decided_again() -> None:
    one = at_work(desk())
    one.store.trouble["write"] = [SLOW]
    answer = one.tell(0.0, join(C))
    assert len(one.store.writes) == 4
    assert answer.revision == one.revision() == 11
    assert stored(one.store) == one.job()


@pytest.mark.parametrize("applied", [{"demo"}, set()])
def test_after_a_timeout_and_a_failed_look_the_answer_is_still_right(applied: set[str]) -> None:
    """It is decided again on what is there: applied already, it has no effect; otherwise it is written now."""
    one = at_work(desk())
    one.store.trouble = {"write": [SLOW], "events": [DOWN]}
    one.store.applied = applied
    assert one.tell(0.0, join(C)).revision == 11
    assert stored(one.store) == one.job()
    assert list(one.job().members) == [A, B, C]
    assert len(one.store.writes) == (3 if applied else 4)


def test_of_a_batch_that_timed_out_each_write_is_looked_at_by_itself() -> None:
    one = desk()
    one.store.trouble["write"] = [SLOW]
    one.store.applied = {"one"}
    for name in ("one", "two"):
        one.service.submit(name, replace(CREATE, name=name), name)
    replies = one.service.pump(0.0).replies
    assert {reply.ticket: reply.answer for reply in replies} == {
        "one": Accepted(2, None),
        "two": Accepted(2, None),
    }
    assert [[write.job for write in writes] for writes in one.store.writes] == [["one", "two"], ["two"]]


def test_others_events_in_our_place_are_not_ours() -> None:
    """The write timed out, and another member wrote there: their events stand, ours are decided again."""
    one = at_work(desk())
    one.store.trouble["write"] = [None, SLOW]
    one.store.before_write = [lambda: None, lambda: write_beside(one.store, join(MemberId("r")))]
    one.tell(1.0, m.Resize(Target(5)))
    one.tell(1.0, join(C))
    assert list(one.job().members) == [A, B, "r", C]
    assert stored(one.store) == one.job()


def test_a_job_that_cannot_be_read_is_not_decided_on() -> None:
    one = desk()
    one.pump(0.0)
    one.store.trouble["read"] = [DOWN]
    assert one.ask(0.0, CREATE) == [Unavailable("the store did not answer: the disk is away")]
    one.tell(0.0, CREATE)


def test_a_damaged_record_is_not_decided_on() -> None:
    one = desk()
    one.pump(0.0)
    one.store.inner.write([Write("demo", 0, (b"{}",), b"nonsense")])
    [answer] = one.ask(0.0, join(A))
    assert isinstance(answer, Unavailable)
    assert answer.why.startswith("the store did not answer: ")


def test_what_breaks_an_invariant_is_not_written_and_says_so() -> None:
    """A bug stops the job's changes, loudly, and not its history."""
    one = at_work(desk())
    broken = replace(one.job(), gone=(A,))
    one.store.inner.write([Write("demo", one.revision(), (b"{}",), encode_state(broken))])
    two = Desk(one.store, "c2")
    writes = len(one.store.writes)
    said = "refused to write, this is a bug in Pliant: rule 11: ['a'] are gone and live"
    answers = two.ask(50.0, join(C), Renew(A), RenewAgent(X), join(A))
    assert answers[0] == Unavailable(said)
    assert isinstance(answers[1], Accepted)
    assert answers[2] == Rejection(Code.UNKNOWN, "x has no lease in demo; join first")
    assert answers[3:] == [Unavailable(said)]
    assert two.job() == broken
    assert len(one.store.writes) == writes
    again = two.pump(50.0, join(C))
    assert again.bugs == ("demo: rule 11: ['a'] are gone and live",)
    assert (again.changed, again.moved) == ((), ())
    assert two.pump(50.0, Renew(A)).bugs == ()


# ------------------------------------------------------------------------------------ two coordinators


def test_a_lost_race_is_decided_again_on_what_is_there_now() -> None:
    one = at_work(desk())
    one.store.before_write = [lambda: write_beside(one.store, join(MemberId("r")))]
    answer = one.tell(1.0, join(C))
    assert list(one.job().members) == [A, B, "r", C]
    assert answer.revision == one.revision() == rival_revision(one)
    assert stored(one.store) == one.job()


def rival_revision(one: Desk) -> int:
    kept = one.store.inner.read("demo")
    assert kept is not None
    return kept.revision


@pytest.mark.parametrize(("races", "done"), [(TRIES - 1, True), (TRIES, False)])
def test_so_many_lost_races_are_enough(races: int, done: bool) -> None:
    one = at_work(desk())
    others = [join(MemberId(f"r{number}")) for number in range(races)]
    one.store.before_write = [partial(write_beside, one.store, command) for command in others]
    [answer] = one.ask(1.0, join(C))
    if done:
        assert isinstance(answer, Accepted)
    else:
        assert answer == Unavailable("others kept writing to this job; ask again")
    assert (C in stored(one.store).members) == done


def test_a_fence_holds_between_writers() -> None:
    """P6: another writer sealed generation 1; c1 has not heard of it, and its compare-and-swap finds out."""
    one = at_work(desk())
    write_beside(one.store, m.Exited(B, -9))
    [answer] = one.ask(0.5, steps(1))
    assert answer == Rejection(Code.SEALED, "generation 1 is sealed; 2 is the lowest open one")
    assert stored(one.store).durable == GENESIS


def test_a_leader_that_was_replaced_changes_nothing_and_answers_nothing() -> None:
    """It was paused before its write. Its successor has not written to that job yet, so no compare-and-swap fails."""
    one = at_work(desk())
    one.tell(0.0, replace(CREATE, name="ended"), m.Cancel("enough"), job="ended")
    two = Desk(one.store, "c2")
    one.store.before_write = [lambda: two.pump(100.0)]
    before = one.store.inner.read("demo"), one.store.inner.read("ended")
    assert one.service.delete("ended", None, "deletion")
    pumped = one.pump(0.5, steps(1), join(A), Renew(A))  # new, nothing to do, and a renewal
    answers = [reply.answer for reply in (*pumped.all_replies, *pumped.deleted)]
    assert [isinstance(answer, Unavailable) and "hold is over" in answer.why for answer in answers] == [True] * 4
    assert (one.store.inner.read("demo"), one.store.inner.read("ended")) == before
    assert one.service.names() == ()
    assert not one.service.leads
    assert one.ask(0.6, steps(1)) == [Unavailable("c2 leads")]
    two.tell(100.1, steps(1))


def test_only_one_coordinates_while_its_hold_lasts() -> None:
    one = at_work(desk())
    two = Desk(one.store, "c2")
    assert two.ask(HOLD_TTL_S - 0.001, join(C)) == [Unavailable("c1 leads")]
    assert (one.service.leads, two.service.leads) == (True, False)
    two.tell(HOLD_TTL_S, join(C))
    assert two.service.leads


def test_a_coordinator_without_a_hold_forgets_what_it_knew() -> None:
    one = at_work(desk())
    two = Desk(one.store, "c2")
    two.pump(HOLD_TTL_S)
    assert one.ask(HOLD_TTL_S, Renew(A)) == [Unavailable("c2 leads")]
    assert not one.service.leads
    assert one.service.job("demo") is None


def test_the_hold_is_renewed_at_a_third_of_its_time_and_not_before() -> None:
    one = desk()
    one.pump(0.0)
    assert one.store.holds == 1
    one.pump(HOLD_TTL_S / 3 - 0.001)
    assert one.store.holds == 1
    one.pump(HOLD_TTL_S / 3)
    assert one.store.holds == 2
    one.pump(HOLD_TTL_S * 2 / 3 - 0.001)
    assert one.store.holds == 2
    one.pump(HOLD_TTL_S * 2 / 3)
    assert one.store.holds == 3
    assert one.service.leads


def test_a_hold_that_cannot_be_renewed_is_in_force_until_its_end() -> None:
    one = at_work(desk())
    one.store.trouble["hold"] = [DOWN, SLOW, DOWN]
    one.tell(1.0, Renew(A))
    one.tell(HOLD_TTL_S - 0.001, join(C))
    assert one.ask(HOLD_TTL_S, Renew(A)) == [Unavailable("the store did not answer: the disk is away")]
    one.tell(HOLD_TTL_S + 0.1, Renew(A))
    assert list(one.job().members) == [A, B, C]


def test_a_coordinator_that_cannot_read_does_not_take_over() -> None:
    one = at_work(desk())
    two = Desk(one.store, "c2")
    one.store.trouble["read_page"] = [DOWN]
    assert two.ask(9.0, join(C)) == [Unavailable("the store did not answer: the disk is away")]
    assert not two.service.leads
    two.tell(9.0, join(C))


def test_a_member_that_takes_over_has_every_job_as_it_was_acknowledged() -> None:
    """P5: what was acknowledged survives the coordinator."""
    one = at_work(desk())
    one.tell(0.0, replace(CREATE, name="other"), job="other")
    one.tell(0.0, steps(3))
    two = Desk(one.store, "c2")
    two.pump(10.0)
    assert two.service.job("demo") == one.service.job("demo")
    assert two.service.job("other") == one.service.job("other")
    assert two.job().durable.step == 3


# ----------------------------------------------------------------------------------- records and tails


def records(one: Desk) -> list[bool]:
    return [write.record is not None for writes in one.store.writes for write in writes]


def test_only_the_first_write_of_a_job_must_bring_a_record() -> None:
    one = at_work(desk())
    one.tell(0.0, steps(2))
    one.tell(0.0, m.Publish(A, 1, checkpoint(one.job().durable)))
    one.tell(0.0, steps(1, one.job().durable), join(C))
    assert records(one) == [True, False, False, False, False]
    assert stored(one.store) == one.job()


LONG = Grid(samples=6000, batch=10, slots=6, epochs=1)
LONG_ORDER = Order(seed=7, samples=6000)


def progress(one: Desk, count: int) -> None:
    for _ in range(count):
        line = lines(one.job().durable, 1, 1, LONG, LONG_ORDER)
        one.tell(0.0, m.Report(A, 0, 1, line))


def progress_to_a_record(one: Desk) -> None:
    written = len(records(one))
    while True not in records(one)[written:]:
        progress(one, 1)


@pytest.mark.parametrize(
    ("members", "tail"), [(2, TAIL_MAX), (4 * TAIL_MAX, TAIL_MAX), (4 * TAIL_MAX + 4, TAIL_MAX + 1)]
)
def test_a_long_tail_brings_a_record_along(members: int, tail: int) -> None:
    """The tail is bounded by a constant, or by a share of the job's size, whichever is more."""
    one = desk()
    names = [A, *(MemberId(f"m{number}") for number in range(members - 1))]
    large = m.Create("demo", JobSpec(1, 100, Target(4)))
    one.tell(0.0, large, *(join(name, terms=Terms(LONG, 7)) for name in names))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A})))
    progress_to_a_record(one)
    written = len(records(one))
    progress(one, tail + 1)
    assert records(one)[written:] == [False] * tail + [True]
    kept = one.store.inner.read("demo")
    assert kept is not None
    assert (kept.tail, kept.revision) == ((), one.revision())


def test_the_tail_is_counted_on_after_a_restart() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A, terms=Terms(LONG, 7)))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A})))
    progress_to_a_record(one)
    progress(one, TAIL_MAX)
    assert not records(one)[-1]
    two = Desk(one.store, "c2")
    two.pump(10.0)
    assert two.job() == one.job()
    line = lines(one.job().durable, 1, 1, LONG, LONG_ORDER)
    two.tell(10.0, m.Report(A, 0, 1, line))
    assert records(one)[-1]


def test_the_log_alone_gives_the_state() -> None:
    one = at_work(desk())
    one.tell(0.0, steps(2))
    one.tell(0.0, drain(B), join(C))
    one.tell(0.0, m.Exited(A, -9))
    state = None
    for entry in one.store.inner.events("demo", 0, 1000):
        state = evolve(state, EVENTS.decode(entry.data))
    assert state == one.job()
    assert encode_state(state) == encode_state(one.job())


def test_a_store_of_any_kind_will_do() -> None:
    """The service asks for nothing but the contract."""
    service = Service(MemoryStore("plain"), "c1", lambda: WALL)
    service.submit("demo", CREATE, 1)
    assert isinstance(service.pump(0.0).replies[0].answer, Accepted)
    assert isinstance(Shaky(MemoryStore("plain")).identity, str)
