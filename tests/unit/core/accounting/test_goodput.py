"""The use of worker-seconds, from logs that are written by hand."""

from collections.abc import Iterable

import pytest

from pliant.core import messages as m
from pliant.core.accounting.activity import Category, categories_of, running_workers
from pliant.core.accounting.goodput import Goodput
from pliant.core.accounting.pauses import Pause
from pliant.core.data.ledger import GENESIS, LedgerLine
from pliant.core.messages import (
    AgentGone,
    AgentJoined,
    AgentReadied,
    Event,
    Launched,
    LaunchOver,
    SeatEnded,
    SeatRefilled,
)
from pliant.core.model.job import JobSpec, JobState, Mode, Target
from pliant.core.model.launch import Launch, Seat, SeatEnd
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import WorldKind
from unit.core.build import TERMS, A, B, C, X, Y, checkpoint, lines, member, world

CREATED = m.JobCreated(0.0, "demo", JobSpec(1, 4, Target(2)))
RELAUNCHED = m.JobCreated(0.0, "demo", JobSpec(1, 4, Target(2), None, 3, Mode.RELAUNCH))
BOTH = frozenset({A, B})


def joined(at: float, name: MemberId, number: int, age_s: float = 0.0, agent: AgentId = X) -> m.MemberJoined:
    return m.MemberJoined(at, member(name, number, agent), TERMS, age_s)


def committed(
    at: float, generation: int, steps: tuple[LedgerLine, ...], spent: tuple[Pause, ...] = (), by: MemberId = A
) -> m.StepsCommitted:
    return m.StepsCommitted(at, generation, by, steps, spent)


def two_train(until: float = 4.0) -> tuple[Event, ...]:
    """Two members: joined at 1, in a world at 2, with the state at 3, and six steps done at 4."""
    first = world(1, A, B, kind=WorldKind.ROLLBACK)
    return (
        CREATED,
        joined(1.0, A, 1, age_s=0.5),
        joined(1.0, B, 2, age_s=5.0),
        m.StateChanged(1.0, JobState.STARTING, "a world forms"),
        m.WorldFormed(2.0, first),
        m.WorldEntered(2.5, 1),
        m.HoldersChanged(2.5, 1, frozenset({A})),
        m.HoldersChanged(3.0, 1, BOTH),
        m.StateChanged(3.0, JobState.RUNNING, "it trains"),
        committed(until, 1, lines(GENESIS, 1, 6)),
    )


def folded(*events: Event) -> Goodput:
    found = Goodput()
    for event in events:
        found.add(event)
    return found


def spent(found: Goodput, name: MemberId, until: float | None = None) -> dict[str, float]:
    """Return what that worker's time was spent on, without what it was not."""
    (worker,) = (each for each in found.workers(until) if each.name == name)
    assert sum(worker.seconds.values()) == pytest.approx(worker.counted_until - worker.started_at)
    return {category.value: seconds for category, seconds in worker.seconds.items() if seconds}


def near(**seconds: float) -> object:
    return pytest.approx(seconds)


def launch(number: int, *names: str, over: str = "", agent: AgentId = X) -> Launch:
    seats = tuple(Seat(MemberId(name), agent, "worker", "127.0.0.1:1") for name in names)
    return Launch(number, seats, "the job starts", restarts=number - 1, over=over)


def kinds(found: Goodput) -> list[tuple[bool, float | None]]:
    return [(change.planned, change.pause_s) for change in found.progress.changes]


def test_a_worker_starts_waits_receives_and_trains() -> None:
    found = folded(*two_train())
    # A was the first with the state, and compared again when B had it.
    assert spent(found, A) == near(starting=0.5, waiting=1.0, switching=1.0, training=1.0)
    # B's process is older than the job: what it did before is not the job's.
    assert spent(found, B) == near(starting=1.0, waiting=1.0, switching=0.5, transfer=0.5, training=1.0)
    assert (found.progress.steps, found.progress.samples, found.progress.samples_ever) == (6, 60, 60)
    assert found.training_s() == pytest.approx(1.0)
    assert kinds(found) == []


def test_what_still_runs_is_counted_until_one_asks() -> None:
    found = folded(*two_train())
    assert spent(found, A, until=9.0)["training"] == pytest.approx(6.0)
    assert found.training_s(9.0) == pytest.approx(6.0)
    assert spent(found, A, until=1.0)["training"] == pytest.approx(1.0)  # never before the newest event
    assert spent(found, A)["training"] == pytest.approx(1.0)  # asking changed nothing


def test_before_anything_happened_there_is_nothing() -> None:
    assert Goodput().workers() == []
    assert Goodput().training_s(5.0) == 0.0


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    found = folded(*two_train(), m.StateChanged(1.0, JobState.RUNNING, "set back"))
    assert spent(found, A)["training"] == pytest.approx(1.0)


def test_a_member_beyond_the_target_is_a_spare() -> None:
    found = folded(*two_train(), joined(5.0, C, 3), m.StateChanged(7.0, JobState.RUNNING, "as it was"))
    assert spent(found, C) == near(spare=2.0)


def test_a_joiner_receives_and_a_planned_change_costs_what_its_members_say() -> None:
    more = lines(lines(GENESIS, 1, 6)[-1].lineage, 2, 2)
    said = (Pause(8, "switching", 0.25), Pause(8, "checkpointing", 0.5))
    found = folded(
        *two_train(),
        joined(5.0, C, 3),
        m.WorldFormed(5.0, world(2, A, B, C)),
        m.WorldEntered(6.0, 2),
        m.HoldersChanged(6.5, 2, frozenset({A, B, C})),
        committed(8.0, 2, more, said),
    )
    assert spent(found, C) == near(transfer=1.5, training=0.75, switching=0.25, checkpointing=0.5)
    assert spent(found, A)["training"] == pytest.approx(4.25)
    assert kinds(found) == [(True, 0.25)]


def test_no_more_is_taken_off_than_there_was() -> None:
    more = lines(lines(GENESIS, 1, 6)[-1].lineage, 1, 1)
    found = folded(*two_train(), committed(5.0, 1, more, (Pause(7, "checkpointing", 99.0),)))
    assert spent(found, A) == near(starting=0.5, waiting=1.0, switching=1.0, training=1.0, checkpointing=1.0)


def test_a_switch_that_no_member_said_anything_about_has_no_pause() -> None:
    more = lines(lines(GENESIS, 1, 6)[-1].lineage, 2, 1)
    found = folded(
        *two_train(),
        m.WorldFormed(5.0, world(2, A)),
        m.WorldEntered(6.0, 2),
        m.StateChanged(8.0, JobState.RUNNING, "1 of 2"),
        m.MemberGone(8.0, B, "left", "resized"),
        committed(9.0, 2, more),
    )
    assert spent(found, B) == near(starting=1.0, waiting=1.0, switching=2.5, transfer=0.5, training=3.0)
    assert kinds(found) == [(True, None)]


def test_a_pause_that_was_measured_is_not_replaced_by_one_that_was_said() -> None:
    more = lines(lines(GENESIS, 1, 6)[-1].lineage, 2, 1)
    found = folded(*two_train(), *_recovery(6.0, 7.0), committed(8.0, 2, more, (Pause(7, "switching", 0.1),), by=B))
    assert kinds(found) == [(False, 3.0)]


def _recovery(broken: float, entered: float) -> tuple[Event, ...]:
    return (
        m.MemberGone(broken, A, "lost", "killed"),
        m.WorldFormed(broken, world(2, B, kind=WorldKind.RECOVERY, base=lines(GENESIS, 1, 6)[-1].lineage)),
        m.WorldEntered(entered, 2),
    )


def test_a_loss_is_a_pause_for_the_others_and_the_end_of_one() -> None:
    """Both stood still since the report at 4, for all that any member knows."""
    found = folded(*two_train(), *_recovery(6.0, 7.0))
    assert spent(found, A, until=9.0) == near(starting=0.5, waiting=1.0, switching=3.0, training=1.0)
    assert spent(found, B, until=9.0) == near(starting=1.0, waiting=1.0, switching=3.5, transfer=0.5, training=3.0)
    assert kinds(found) == [(False, 3.0)]
    assert found.training_s() == pytest.approx(1.0)
    assert found.training_s(9.0) == pytest.approx(3.0)


def test_a_world_that_is_broken_does_not_train_since_its_last_report() -> None:
    found = folded(*two_train(), m.StateChanged(5.0, JobState.RUNNING, "as it was"))
    assert (spent(found, A)["training"], found.training_s()) == (2.0, 2.0)  # no member knows yet
    found.add(m.WorldBroken(14.0, 1, True, "B does not answer"))
    assert spent(found, A, until=16.0) == near(starting=0.5, waiting=1.0, switching=13.0, training=1.0)
    assert found.training_s(16.0) == pytest.approx(1.0)
    for event in _recovery(16.0, 17.0):
        found.add(event)
    assert kinds(found) == [(False, 13.0)]


def test_a_world_that_breaks_before_its_first_report_stood_still_since_it_began() -> None:
    base = lines(GENESIS, 1, 6)[-1].lineage
    found = folded(
        *two_train(),
        *_recovery(6.0, 7.0),
        m.WorldBroken(9.0, 2, True, "B stopped"),
        m.WorldFormed(9.0, world(3, B, kind=WorldKind.RECOVERY, base=base)),
        m.WorldEntered(10.0, 3),
    )
    assert kinds(found) == [(False, 3.0), (False, 3.0)]
    assert spent(found, B) == near(starting=1.0, waiting=1.0, switching=6.5, transfer=0.5, training=1.0)
    assert found.training_s() == pytest.approx(1.0)


def test_a_planned_world_that_fails_before_it_is_entered_stops_no_member() -> None:
    found = folded(
        *two_train(),
        joined(5.0, C, 3),
        m.WorldFormed(5.0, world(2, A, B, C)),
        m.WorldBroken(6.0, 2, False, "C could not reach A"),
        m.MemberGone(7.0, C, "lost", "killed"),
    )
    assert spent(found, A, until=8.0)["training"] == pytest.approx(5.0)
    assert found.training_s(8.0) == pytest.approx(5.0)


def test_a_job_that_waits_makes_every_member_wait() -> None:
    found = folded(*two_train(), m.StateChanged(5.0, JobState.WAITING, "2 of at least 3"))
    assert spent(found, A, until=8.0)["waiting"] == pytest.approx(4.0)


def test_a_world_that_holds_waits() -> None:
    found = folded(*two_train(), m.WorldFormed(5.0, world(2, A, B, hold=True)), m.WorldEntered(5.0, 2))
    assert spent(found, A, until=8.0)["waiting"] == pytest.approx(4.0)


def test_a_world_that_was_left_behind_is_no_news() -> None:
    """A report of a world that is not open any more divides no member's time."""
    after = lines(GENESIS, 1, 6)[-1].lineage
    found = folded(*two_train(), *_recovery(5.0, 6.0), committed(7.0, 1, lines(after, 1, 1)))
    assert spent(found, B)["training"] == pytest.approx(2.0)
    assert found.progress.steps == 7


def _rolled_back() -> tuple[Event, ...]:
    """Step 6 was durable; every member goes back to 4 at 6, after two seconds at what never became durable."""
    base = lines(GENESIS, 1, 4)[-1].lineage
    return (
        *two_train(),
        m.CheckpointPublished(4.0, 1, checkpoint(base)),
        m.WorldFormed(6.0, world(2, A, B, kind=WorldKind.ROLLBACK, base=base)),
        m.WorldEntered(7.0, 2),
        m.HoldersChanged(7.0, 2, BOTH),
    )


def test_steps_done_again_are_recomputing_and_the_rest_is_training() -> None:
    base = lines(GENESIS, 1, 4)[-1].lineage
    found = folded(*_rolled_back())
    assert (found.progress.steps, found.progress.samples, found.progress.highest_step) == (4, 40, 6)
    assert spent(found, A, until=9.0) == near(starting=0.5, waiting=1.0, switching=4.0, training=1.0, recomputing=2.0)
    found.add(committed(11.0, 2, lines(base, 2, 4)))  # steps 5 and 6 again, 7 and 8 for the first time
    assert spent(found, A) == near(starting=0.5, waiting=1.0, switching=4.0, training=3.0, recomputing=2.0)
    done = found.progress
    assert (done.recomputed_steps, done.recomputed_samples, done.steps, done.samples, done.samples_ever) == (
        2,
        20,
        8,
        80,
        100,
    )
    assert (done.rollbacks, done.checkpoints, kinds(found)) == (1, 1, [(False, 3.0)])


@pytest.mark.parametrize(("how", "word"), [("left", "recomputing"), ("lost", "switching")])
def test_who_leaves_while_recomputing_was_recomputing_and_of_who_is_lost_no_member_can_say_so(
    how: str, word: str
) -> None:
    before = spent(folded(*_rolled_back()), A)
    after = spent(folded(*_rolled_back(), m.MemberGone(8.0, A, how, "killed")), A)
    assert {key: after[key] - before.get(key, 0.0) for key in after if after[key] != before.get(key)} == {word: 1.0}


def test_every_member_ends_with_the_job() -> None:
    found = folded(*two_train(), m.StateChanged(6.0, JobState.FINISHED, "all steps are committed"))
    assert spent(found, A, until=99.0)["training"] == pytest.approx(3.0)
    assert found.training_s(99.0) == pytest.approx(3.0)


def _second_attempt(*, onward: bool) -> Goodput:
    again = m.JobCreated(20.0, "demo", JobSpec(1, 4, Target(2)), attempt=2, resumes=onward)
    base = lines(GENESIS, 1, 6)[-1].lineage if onward else GENESIS
    events: Iterable[Event] = (
        *two_train(),
        m.CheckpointPublished(4.0, 1, checkpoint(base)),
        m.StateChanged(5.0, JobState.FAILED, "too many failures"),
        again,
        joined(21.0, C, 3, age_s=9.0),
        m.WorldFormed(21.0, world(2, C, kind=WorldKind.ROLLBACK, base=base)),
        m.WorldEntered(22.0, 2),
        m.HoldersChanged(22.0, 2, frozenset({C})),
        committed(24.0, 2, lines(base, 2, 1), by=C),
    )
    return folded(*events)


def test_an_attempt_that_goes_on_keeps_the_ledger() -> None:
    found = _second_attempt(onward=True)
    assert spent(found, C) == near(starting=1.0, switching=1.0, training=2.0)
    assert spent(found, A)["training"] == pytest.approx(2.0)
    assert (found.created_at, found.now, found.progress.attempts) == (0.0, 24.0, 2)
    assert (found.progress.steps, found.progress.rollbacks, found.progress.samples_ever) == (7, 1, 70)


def test_an_attempt_that_begins_afresh_has_a_ledger_of_its_own() -> None:
    found = _second_attempt(onward=False)
    assert (found.progress.steps, found.progress.recomputed_steps, found.progress.rollbacks) == (1, 0, 0)
    assert found.progress.samples_ever == 70


def test_workers_of_an_agent_that_comes_back_ended_by_the_last_event() -> None:
    agent = AgentJoined(0.5, X, 4, run_id="1")
    events = two_train()
    back = AgentJoined(1000.0, X, 4, run_id="2")
    known = m.StateChanged(6.0, JobState.RUNNING, "as it was")
    found = folded(events[0], agent, *events[1:], known, back, m.MemberGone(1000.5, A, "lost", "its process ended"))
    assert spent(found, A) == near(starting=0.5, waiting=1.0, switching=3.0, training=1.0)
    assert found.training_s() == pytest.approx(1.0)
    base = lines(GENESIS, 1, 6)[-1].lineage
    for event in (
        m.MemberGone(1000.5, B, "lost", "its process ended"),
        joined(1001.0, C, 3),
        m.WorldFormed(1001.0, world(2, C, kind=WorldKind.ROLLBACK, base=base)),
        m.WorldEntered(1002.0, 2),
        m.HoldersChanged(1004.0, 2, frozenset({C})),
    ):
        found.add(event)
    assert kinds(found) == [(False, 1000.0)]  # since the last report


def test_an_agent_that_comes_back_without_having_had_any_member_in_the_world_stops_no_member() -> None:
    events = (
        *two_train(),
        AgentJoined(4.0, Y, 1, run_id="1"),
        joined(5.0, C, 3, agent=Y),
        AgentJoined(6.0, Y, 1, run_id="2"),
    )
    found = folded(*events)
    assert (spent(found, A)["training"], found.training_s()) == (3.0, 3.0)
    assert spent(found, C) == {}  # it ended as soon as it was there


def test_an_agent_that_only_says_more_about_itself_is_the_same_one() -> None:
    agent = AgentJoined(0.5, X, 4, run_id="1")
    events = two_train()
    found = folded(
        events[0], agent, *events[1:], AgentJoined(10.0, X, 2, run_id="1"), AgentJoined(10.0, Y, 2, run_id="1")
    )
    assert spent(found, A)["training"] == pytest.approx(7.0)


# ------------------------------------------------------------------------------------------ launched workers


def test_launched_workers_train_until_they_are_stopped() -> None:
    found = folded(
        RELAUNCHED,
        AgentJoined(0.5, X, 2),
        Launched(1.0, launch(1, "x-g1.0", "x-g1.1")),
        LaunchOver(5.0, 1, "1 worker instead of 2"),
        SeatEnded(6.0, 1, SeatEnd(MemberId("x-g1.0"), 0)),
        AgentReadied(7.0, X, (1, 2)),
        Launched(8.0, launch(2, "x-g2.0")),
        SeatEnded(9.0, 2, SeatEnd(MemberId("x-g2.0"), 0)),
        m.StateChanged(9.0, JobState.FINISHED, "its worker ended with exit code 0"),
    )
    assert spent(found, MemberId("x-g1.0")) == near(training=4.0, switching=1.0)
    assert spent(found, MemberId("x-g1.1")) == near(training=4.0, switching=2.0)
    assert spent(found, MemberId("x-g2.0")) == near(training=1.0)
    assert kinds(found) == [(True, 3.0)]


def test_a_launch_that_went_wrong_is_an_unplanned_change() -> None:
    found = folded(
        RELAUNCHED,
        Launched(1.0, launch(1, "x-g1.0", "x-g1.1")),
        SeatEnded(5.0, 1, SeatEnd(MemberId("x-g1.0"), -9)),
        LaunchOver(5.0, 1, "it was killed"),
        Launched(8.0, launch(2, "x-g2.0")),
    )
    assert spent(found, MemberId("x-g1.1")) == near(training=4.0, switching=3.0)
    assert kinds(found) == [(False, 3.0)]


def test_with_an_agent_go_the_workers_that_it_launched() -> None:
    found = folded(
        RELAUNCHED,
        AgentJoined(0.5, X, 2),
        Launched(1.0, launch(1, "x-g1.0")),
        AgentGone(3.0, X, "its lease ran out", lost=True),
        m.StateChanged(9.0, JobState.WAITING, "0 of the 1 workers needed"),
    )
    assert spent(found, MemberId("x-g1.0")) == near(training=2.0)


def test_a_seat_that_is_refilled_leaves_the_others_alone() -> None:
    found = folded(
        RELAUNCHED,
        Launched(1.0, launch(1, "x-g1.0", "x-g1.1")),
        SeatEnded(3.0, 1, SeatEnd(MemberId("x-g1.1"), 1)),
        SeatRefilled(3.0, 1, 1, MemberId("x-g1.1.1")),
        m.StateChanged(6.0, JobState.FINISHED, "the chief ended"),
    )
    assert spent(found, MemberId("x-g1.0")) == near(training=5.0)
    assert spent(found, MemberId("x-g1.1")) == near(training=2.0)
    assert spent(found, MemberId("x-g1.1.1")) == near(training=3.0)


def test_launched_workers_that_join_were_starting_until_then() -> None:
    found = folded(
        m.JobCreated(0.0, "demo", JobSpec(1, 4, Target(3), None, 3, Mode.AUTO)),
        AgentJoined(0.5, X, 3),
        Launched(1.0, launch(1, "a", "b", "c")),
        joined(3.0, A, 1),
        m.StateChanged(3.0, JobState.WAITING, "1 of the 2 workers needed"),
        joined(4.0, B, 2),
        m.StateChanged(6.0, JobState.WAITING, "2 of the 3 workers needed"),
    )
    assert spent(found, A) == near(starting=2.0, waiting=3.0)
    assert spent(found, B) == near(starting=3.0, waiting=2.0)
    assert spent(found, C) == near(starting=2.0)  # it never joined: no member knows what became of it
    assert found.training_s() == 0.0
    assert kinds(found) == []


def test_every_category_has_a_word_of_its_own() -> None:
    assert [category.value for category in Category] == [
        "training",
        "recomputing",
        "checkpointing",
        "switching",
        "transfer",
        "waiting",
        "starting",
        "spare",
    ]


def test_what_workers_do_now_can_be_told_from_the_job_alone() -> None:
    job = folded(*two_train(), joined(5.0, C, 3)).job
    assert job is not None
    assert categories_of(job, running_workers(job)) == {A: Category.TRAINING, B: Category.TRAINING, C: Category.SPARE}


def test_the_workers_of_a_launch_are_those_that_have_not_ended() -> None:
    assert folded(RELAUNCHED).job is not None
    first = folded(RELAUNCHED, Launched(1.0, launch(1, "x-g1.0", "x-g1.1"))).job
    assert first is not None
    assert running_workers(first) == ["x-g1.0", "x-g1.1"]
    ended = SeatEnded(5.0, 1, SeatEnd(MemberId("x-g1.0"), 0))
    later = folded(RELAUNCHED, Launched(1.0, launch(1, "x-g1.0", "x-g1.1")), ended).job
    assert later is not None
    assert categories_of(later, running_workers(later)) == {"x-g1.1": Category.TRAINING}
