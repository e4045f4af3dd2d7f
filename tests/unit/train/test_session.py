"""A member's session: the orders of the machine are carried out in the right thread, wherever they came from.

The machine is the real one, and so is the coordinator's decision (`StandaloneCoordinator`). The tests make groups.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest

from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.job.launches import FENCED_CODE
from pliant.core.member import Phase
from pliant.core.member import signals as s
from pliant.core.messages import Command, Drain, Join, Leave, Report, Stopped, WiringFailed
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World, WorldKind
from pliant.train.coordinator_link import LinkListener
from pliant.train.live.errors import Left
from pliant.train.session import Order, Session
from pliant.train.standalone import StandaloneCoordinator
from unit.core.build import GRID, TERMS, A, B, C, X, world

PATIENCE_S = 60.0
EMPTY: frozenset[MemberId] = frozenset()
VIEW = View(1, JobState.RUNNING, "", True, False, 0.0, (), 0, 0, frozenset(), EMPTY, EMPTY, GENESIS, None)


class Lines:
    """A contact that only takes down what is said."""

    def __init__(self) -> None:
        self.said: list[Command] = []

    def join(self, command: Join) -> None:
        self.said.append(command)

    def start(self, listener: LinkListener) -> None: ...

    def send(self, command: Command) -> None:
        self.said.append(command)

    def close(self) -> None:
        self.said.append(Leave(A, 0, "closed"))


class Made:
    """A group, and the wiring that made it."""

    def __init__(self, which: World, fails: Exception | None = None) -> None:
        self.world = which
        self.fails = fails
        self.may_end = threading.Event()
        self.broken = threading.Event()
        self.disposed = threading.Event()
        self.began = threading.Event()

    def run(self) -> "Made":
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)
        if self.fails is not None:
            raise self.fails
        return self

    def break_off(self) -> None:
        self.broken.set()
        self.may_end.set()

    def dispose(self) -> None:
        self.disposed.set()


class Wires:
    def __init__(self, *, wait: bool = False, fails: Exception | None = None) -> None:
        self.made: dict[int, Made] = {}
        self.news = threading.Condition()
        self._wait, self._fails = wait, fails

    def __call__(self, which: World, key: str) -> Made:
        made = Made(which, self._fails)
        if not self._wait:
            made.may_end.set()
        with self.news:
            self.made[which.number] = made
            self.news.notify_all()
        return made


def session(contact: Lines | StandaloneCoordinator, wires: Wires) -> Session:
    return Session(A, TERMS, contact, None, wires, lambda _below: None)


def until(true: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if true():
            return
        pause.wait(0.005)
    raise AssertionError("waited in vain")


@pytest.fixture
def closing() -> Iterator[list[Session]]:
    made: list[Session] = []
    yield made
    for each in made:
        each.close()


def alone(closing: list[Session]) -> tuple[Session, Wires]:
    contact, wires = StandaloneCoordinator("demo", A), Wires()
    made = session(contact, wires)
    closing.append(made)
    made.start(Join(A, X, TERMS))
    return made, wires


def train_to_the_end(made: Session) -> s.Exit:
    """Do what the training thread does, without a model: each report returns the next order, if it is there."""
    order: Order | None = None
    while True:
        match order or made.wait_for_order():
            case s.Exit() as end:
                return end
            case taken:
                order = made.feed_and_take(answer_to(taken))


def answer_to(order: Order) -> s.Signal:
    """Return what a training thread reports of an order once it has carried it out."""
    match order:
        case s.Restore():
            return s.Restored(1)
        case s.Collect(which, word):
            return s.Returned(which.number, (word,))
        case s.Compute(step, slots, _):
            return s.Computed(frozenset(slots), sum(len(GRID.slot(step, slot)) for slot in slots), 5 * step)
        case s.Apply():
            return s.Boundary(1)
        case _:
            raise AssertionError(order)


def test_a_whole_life(closing: list[Session]) -> None:
    made, wires = alone(closing)
    end = train_to_the_end(made)
    assert end.complete
    assert made.machine.lineage.step == GRID.total_steps
    assert made.machine.phase is Phase.GONE
    assert wires.made[1].broken.is_set()


def test_the_call_that_feeds_a_signal_returns_the_order_it_leads_to(closing: list[Session]) -> None:
    """A step makes three decisions; none of them waits, and none leaves anything in the queue."""
    made, _ = alone(closing)
    order = made.wait_for_order()
    kinds: list[type] = [type(order)]
    while not isinstance(order, s.Exit):
        taken = made.feed_and_take(answer_to(order))
        assert taken is not None, "alone, an order never depends on another thread"
        assert made.take_queued() is None
        order = taken
        kinds.append(type(order))
    assert kinds[:2] == [s.Restore, s.Collect]
    assert kinds[2:-1] == [*[s.Compute, s.Collect, s.Apply] * GRID.total_steps, s.Collect], "the last compares the end"


def test_no_order_yet_is_none_and_the_next_one_is_waited_for(closing: list[Session]) -> None:
    """The recovery world is wired in another thread: the order to enter it crosses threads, in the queue."""
    wires = Wires(wait=True)
    made = session(Lines(), wires)
    closing.append(made)
    told(made, start_of(A, B))
    wires.made[1].may_end.set()
    assert isinstance(made.wait_for_order(), s.Restore)
    assert isinstance(made.feed_and_take(s.Restored(1)), s.Collect)
    assert made.feed_and_take(s.Failed(1, B)) is None
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(made.wait_for_order()), daemon=True)
    thread.start()
    told(made, start_of(A, number=2), sealed=1)
    wires.made[2].may_end.set()
    thread.join(PATIENCE_S)
    assert [type(order) for order in taken] == [s.Restore]


def test_orders_of_other_threads_come_first(closing: list[Session]) -> None:
    """An order that a background thread queued is older than the one that the training thread's signal leads to."""
    made, _ = alone(closing)
    restore = made.wait_for_order()
    collect = made.feed_and_take(answer_to(restore))
    assert isinstance(collect, s.Collect)
    compute = made.feed_and_take(answer_to(collect))
    assert isinstance(compute, s.Compute)
    thread = threading.Thread(target=made.feed, args=(answer_to(compute),))
    thread.start()
    thread.join(PATIENCE_S)
    step = made.take_queued()
    assert isinstance(step, s.Collect)
    thread = threading.Thread(target=made.feed, args=(answer_to(step),))
    thread.start()
    thread.join(PATIENCE_S)
    assert isinstance(made.feed_and_take(s.Tick()), s.Apply), "a tick leads to no order; the queued one is next"
    assert made.take_queued() is None


def test_a_thread_that_waits_for_an_order_is_woken(closing: list[Session]) -> None:
    made, _ = alone(closing)
    assert isinstance(made.wait_for_order(), s.Restore)
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(made.wait_for_order()), daemon=True)
    thread.start()
    made.feed(s.Restored(1))
    thread.join(PATIENCE_S)
    assert isinstance(taken[0], s.Collect)


def told(made: Session, *worlds: World, **more: object) -> None:
    revision = made.machine.view.revision + 1 if made.machine.view else 1
    made.view_received(replace(VIEW, revision=revision, worlds=worlds, **more), ())  # type: ignore[arg-type]


def start_of(*members: MemberId, number: int = 1) -> World:
    return world(number, *members, kind=WorldKind.ROLLBACK)


def test_a_wiring_that_fails_is_reported(closing: list[Session]) -> None:
    class Unreachable(Exception):
        peer = B

    contact = Lines()
    made = session(contact, Wires(fails=Unreachable("no way")))
    closing.append(made)
    told(made, start_of(A, B))
    until(lambda: any(isinstance(each, WiringFailed) for each in contact.said))
    (said,) = [each for each in contact.said if isinstance(each, WiringFailed)]
    assert (said.generation, said.peer) == (1, B)
    assert made.group(1) is None


def test_a_wiring_that_is_outnumbered_is_broken_off_and_its_group_never_used(closing: list[Session]) -> None:
    contact, wires = Lines(), Wires(wait=True)
    made = session(contact, wires)
    closing.append(made)
    told(made, start_of(A, B))
    told(made, start_of(A, B), start_of(A, number=2), sealed=1)
    assert wires.made[1].broken.is_set()
    wires.made[2].may_end.set()
    until(lambda: made.group(2) is not None)
    assert made.group(1) is None
    until(wires.made[1].disposed.is_set)
    assert not any(isinstance(each, WiringFailed) for each in contact.said)


def test_a_member_without_a_state_prepares_memory_before_the_others_can_wait_for_it(closing: list[Session]) -> None:
    asked: queue.Queue[tuple[int, tuple[MemberId, ...], threading.Event]] = queue.Queue()
    ready = threading.Event()

    def prepare(generation: int, donors: tuple[MemberId, ...], stop: threading.Event) -> None:
        asked.put((generation, donors, stop))
        ready.wait(PATIENCE_S)

    wires = Wires()
    made = Session(A, TERMS, Lines(), None, wires, lambda _below: None, prepare_memory=prepare)
    closing.append(made)
    told(made, world(1, A, B, C), holders=frozenset({C}))
    generation, donors, stop = asked.get(timeout=PATIENCE_S)
    assert (generation, donors, stop.is_set()) == (1, (C,), False)
    assert not wires.made[1].began.is_set()
    ready.set()
    until(lambda: made.group(1) is wires.made[1])
    told(made, world(1, A, B, C), world(2, A, C), holders=frozenset({C}))
    assert asked.get(timeout=PATIENCE_S)[0] == 2


def test_a_member_stops_preparing_when_the_generation_is_over(closing: list[Session]) -> None:
    asked: queue.Queue[threading.Event] = queue.Queue()

    def prepare(_generation: int, _donors: tuple[MemberId, ...], stop: threading.Event) -> None:
        asked.put(stop)
        assert stop.wait(PATIENCE_S)

    made = Session(A, TERMS, Lines(), None, Wires(), lambda _below: None, prepare_memory=prepare)
    closing.append(made)
    told(made, world(1, A, C), holders=frozenset({C}))
    first = asked.get(timeout=PATIENCE_S)
    told(made, world(1, A, C), world(2, A, B, C), holders=frozenset({C}))
    assert first.is_set()


@pytest.mark.parametrize(
    ("kind", "holders"),
    [(WorldKind.PLANNED, EMPTY), (WorldKind.RECOVERY, frozenset({B})), (WorldKind.ROLLBACK, frozenset({B}))],
)
def test_nothing_is_prepared_without_a_donor_or_where_the_others_wait(
    closing: list[Session], kind: WorldKind, holders: frozenset[MemberId]
) -> None:
    def prepare(_generation: int, _donors: tuple[MemberId, ...], _stop: threading.Event) -> None:
        raise AssertionError("the wiring must not wait for this")

    wires = Wires()
    made = Session(A, TERMS, Lines(), None, wires, lambda _below: None, prepare_memory=prepare)
    closing.append(made)
    told(made, world(1, A, B, kind=kind), holders=holders)
    until(lambda: made.group(1) is wires.made[1])


def test_what_belongs_to_sealed_generations_is_forgotten(closing: list[Session]) -> None:
    below: list[int] = []
    made = Session(A, TERMS, Lines(), None, Wires(), below.append)
    closing.append(made)
    told(made, start_of(A))
    told(made, start_of(A, number=2), sealed=1)
    assert below
    assert below[-1] == 2


def test_a_broken_group_is_gone_and_whoever_waits_for_a_state_in_it_hears(closing: list[Session]) -> None:
    made, wires = alone(closing)
    assert isinstance(made.wait_for_order(), s.Restore)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(made.wait_for_state(1)), daemon=True)
    thread.start()
    made.feed(s.GraceOver())
    thread.join(PATIENCE_S)
    assert waited == [False]
    assert made.group(1) is None
    assert wires.made[1].broken.is_set()
    assert wires.made[1].disposed.is_set()


def test_fenced_stops_a_member_and_an_older_word_does_not(closing: list[Session]) -> None:
    made, _ = alone(closing)
    assert isinstance(made.wait_for_order(), s.Restore)
    made.feed(s.Restored(1))
    assert made.machine.view is not None
    made.fenced(made.machine.view.revision - 1, "the coordinator came back without knowing us")
    assert made.machine.phase is Phase.COLLECTING
    assert not made.machine.stop_reason
    made.fenced(made.machine.view.revision, "lost")
    collect = made.wait_for_order()
    assert isinstance(collect, s.Collect)
    made.feed(s.Failed(1, None))
    end = made.wait_for_order()
    assert isinstance(end, s.Exit)
    assert (end.code, end.complete) == (75, False)


def test_fenced_before_anything_was_told_is_an_end_too(closing: list[Session]) -> None:
    """Lost between joining and the first view: it must not wait for ever."""
    made = session(Lines(), Wires())
    closing.append(made)
    made.fenced(3, "a is gone for good")
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(made.wait_for_order()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert [type(order) for order in taken] == [s.Exit]


def test_a_notice_is_passed_on_and_its_grace_runs_out(closing: list[Session]) -> None:
    contact = Lines()
    made = session(contact, Wires())
    closing.append(made)
    told(made, start_of(A, B))
    until(lambda: made.machine.phase is not Phase.OUTSIDE)
    made.feed(s.DrainNotice(0.2, "SIGTERM"))
    assert Drain(A, 0.2, "SIGTERM") in contact.said
    until(lambda: made.machine.phase is Phase.GONE)
    orders = list(iter(made.take_queued, None))
    assert isinstance(orders[-1], s.Exit)
    assert orders[-1].why == "the grace period is over"


def test_whoever_waits_says_why_once_for_each_reason(closing: list[Session], caplog: pytest.LogCaptureFixture) -> None:
    made = session(Lines(), Wires())
    closing.append(made)
    logging.getLogger("pliant").propagate = True
    with caplog.at_level(logging.INFO, "pliant.train.session"):
        too_few = "1 of the 2 workers needed"
        for at, why in enumerate((too_few, too_few, f"{too_few}; b was lost", "another reason")):
            made.view_received(replace(VIEW, revision=10 + at, state=JobState.WAITING, why=why), ())
        made.view_received(replace(VIEW, revision=20), ())  # it joins: the next world is not decided yet
        made.view_received(replace(VIEW, revision=21, spare_why="the job has its target number of members"), ())
    assert [record.getMessage() for record in caplog.records] == [
        "waiting: 1 of the 2 workers needed",
        "waiting: another reason",
        "spare: the job has its target number of members",
    ]


def test_signals_from_many_threads_are_taken_one_after_the_other(closing: list[Session]) -> None:
    made, _ = alone(closing)

    def tick() -> None:
        for _ in range(50):
            made.feed(s.Tick())

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    end = train_to_the_end(made)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert end.complete


def test_peers_are_heard_in_their_generation_only(closing: list[Session]) -> None:
    made = session(Lines(), Wires(wait=True))
    closing.append(made)
    told(made, world(2, A, B))
    let_in = s.Admission(2, Lineage(1, 4, 9), (B,))
    made.message_received(3, "let-in", msgspec.msgpack.encode(let_in))
    assert made.machine.admission is None
    made.message_received(2, "let-in", msgspec.msgpack.encode(let_in))
    assert made.machine.admission == let_in


def test_a_joiner_reports_in_the_donors_place(closing: list[Session]) -> None:
    made, _ = alone(closing)
    order: Order | None = made.wait_for_order()
    while not isinstance(order, s.Apply):
        assert order is not None
        order = made.feed_and_take(answer_to(order))
    assert [line.lineage.step for line in made.ledger_lines()] == [1]


def test_stopping_is_said(closing: list[Session]) -> None:
    contact = Lines()
    made = session(contact, Wires())
    closing.append(made)
    told(made, start_of(A, B))
    until(lambda: made.machine.phase is Phase.RESTORING)
    made.feed(s.Restored(1))
    made.feed(s.Failed(1, B))
    (said,) = [each for each in contact.said if isinstance(each, Stopped)]
    assert (said.generation, said.peer) == (1, B)
    assert not any(isinstance(each, Report) for each in contact.said)


def test_a_member_that_waits_in_user_code_learns_that_it_must_not(closing: list[Session]) -> None:
    def why(session: Session) -> tuple[object, str]:
        with pytest.raises(Left) as left:
            session.require_member()
        return left.value.code, left.value.why

    def computing() -> Session:
        made, _ = alone(closing)
        while not isinstance(order := made.wait_for_order(), s.Compute):
            made.feed(answer_to(order))
        made.require_member()
        return made

    fenced, failed, late = computing(), computing(), computing()
    view = replace(VIEW, revision=10**6, known=False)
    fenced.view_received(view, ())
    assert why(fenced)[0] == FENCED_CODE
    failed.view_received(replace(view, known=True, state=JobState.FAILED, why="a slot raised"), ())
    assert why(failed) == (1, "the job is failed: a slot raised")
    late.feed(s.DrainNotice(0.0, "SIGTERM"))
    late.feed(s.GraceOver())
    assert why(late) == (0, "the grace period is over")
