"""The closing lines of `pliant run`."""

import signal
import time

import pytest

from pliant.agent.closing import (
    Progress,
    describe_away,
    describe_closing,
    describe_closing_away,
    describe_duration,
    describe_wait,
)
from pliant.agent.exit_status import StopSignals
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import JobState, Member
from pliant.core.model.names import AgentId
from pliant.core.model.world import World, WorldKind
from unit.core.build import NOW, TERMS, A, checkpoint, lines

PLACE = "/data/checkpoints"


def test_progress_follows_the_events() -> None:
    progress = Progress()
    committed = lines(GENESIS, 1, 4)
    progress.feed(m.MemberJoined(NOW, Member(A, 1, AgentId("x")), TERMS))
    progress.feed(m.StepsCommitted(NOW, 1, A, committed))
    progress.feed(m.CheckpointPublished(NOW, 1, checkpoint(committed[1].lineage)))
    progress.feed(m.WorldEntered(NOW, 2))
    assert progress == Progress(4, TERMS.grid.total_steps, 2)
    progress.feed(m.WorldFormed(NOW, World(3, WorldKind.ROLLBACK, (A,), (1,), committed[1].lineage)))
    assert progress.step == 2


@pytest.mark.parametrize(
    ("state", "progress", "told"),
    [
        (
            JobState.FINISHED,
            Progress(320, 320, 320),
            [
                "demo finished after 1 min 1 s at step 320 of 320; checkpoint: step 320 in /data/checkpoints",
                "next: `pliant export demo --out model.pt` writes the model to a file",
            ],
        ),
        (
            JobState.RUNNING,
            Progress(103, 320, 103),
            [
                "demo stopped after 1 min 1 s at step 103 of 320; checkpoint: step 103 in /data/checkpoints",
                "All workers have left. The next start resumes at step 103; nothing is lost.",
                "next: start it with the same command",
            ],
        ),
        (
            JobState.FAILED,
            Progress(9, 320, 8),
            [
                "demo failed after 1 min 1 s at step 9 of 320; checkpoint: step 8 in /data/checkpoints",
                "All workers have left. The next start resumes at step 8 (1 step is recomputed).",
                "next: fix the error and run it again",
            ],
        ),
        (
            JobState.CANCELLED,
            Progress(9, 320, None),
            [
                "demo was cancelled after 1 min 1 s at step 9 of 320; no checkpoint",
                "All workers have left. The next start resumes at step 0 (9 steps are recomputed).",
                "next: start it with the same command",
            ],
        ),
        (JobState.FINISHED, Progress(), ["demo finished after 1 min 1 s"]),
        (
            JobState.RUNNING,
            Progress(),
            ["demo stopped after 1 min 1 s", "next: the same command starts the script again"],
        ),
    ],
    ids=str,
)
def test_the_last_lines_tell_how_far_it_is_and_what_to_do(state: JobState, progress: Progress, told: list[str]) -> None:
    assert describe_closing("demo", state, progress, 61.2, PLACE, all_left=True) == told


def test_a_machine_that_leaves_others_behind_says_so() -> None:
    told = describe_closing("demo", JobState.RUNNING, Progress(9, 320, 8), 5.0, PLACE, all_left=False)
    assert told == ["this machine left demo after 5 s; the job goes on without it"]
    asked = describe_closing("demo", JobState.RUNNING, Progress(), 5.0, PLACE, all_left=False, asked="maintenance")
    assert asked == [
        "this machine left demo after 5 s: it was asked to leave (maintenance); the job goes on without it"
    ]


def test_durations_have_two_units_at_most() -> None:
    assert [describe_duration(seconds) for seconds in (0.4, 59.4, 60, 3599, 7380)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "2 h 3 min",
    ]


def test_an_absent_coordinator_is_named_with_the_time_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert describe_away("http://a:1", 1_700_000_000.0) == (
        "the coordinator at http://a:1 has not answered since 22:13:20. Start `pliant run` there again; "
        "this agent reconnects by itself"
    )
    assert describe_closing_away("demo", 1_700_000_000.0) == (
        "this machine left demo. Its coordinator has not answered since 22:13:20 and does not know yet; "
        "`pliant run` on its machine resumes the job"
    )


def test_a_second_sigterm_within_a_second_is_the_same_one() -> None:
    stops = StopSignals(signal.SIGTERM, first_at=10.0)
    assert stops.is_same(signal.SIGTERM, 10.9)
    assert not stops.is_same(signal.SIGTERM, 11.1)
    assert not stops.is_same(signal.SIGINT, 10.1)
    assert not StopSignals(signal.SIGINT, first_at=10.0).is_same(signal.SIGINT, 10.1), "a person pressed it twice"


def test_a_reminder_of_a_wait_tells_of_workers_that_are_starting() -> None:
    why = "waiting: 0 of the 2 workers needed; all workers have left: back to step 857, nothing is lost"
    assert describe_wait(why, 2, 0) == "waiting: 0 of the 2 workers needed; 2 are starting here"
    assert describe_wait(why, 1, 0) == "waiting: 0 of the 2 workers needed; 1 is starting here"
    assert (
        describe_wait("waiting: 1 of the 2 workers needed", 1, 1) == "waiting: 1 of the 2 workers needed; 1 runs here"
    )
