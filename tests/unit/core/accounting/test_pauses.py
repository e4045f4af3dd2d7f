import math
from dataclasses import replace

import pytest

from pliant.core.accounting.pauses import PAUSES_MAX, Pause, accept_pauses
from pliant.core.data.ledger import GENESIS
from pliant.core.messages import MemberJoined, StepsCommitted
from unit.core.build import A, C, join, lines, made, report, running


def test_only_what_belongs_to_durable_steps_is_written_down() -> None:
    told = (Pause(1, "checkpointing", 0.5), Pause(2, "switching", 0.25), Pause(3, "checkpointing", 1.0))
    assert accept_pauses(told, lines(GENESIS, 1, 3)[1:]) == told[1:]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_times_that_make_no_sense_are_left_out(seconds: float) -> None:
    assert accept_pauses([Pause(1, "checkpointing", seconds)], lines(GENESIS, 1, 1)) == ()


def test_other_words_are_left_out_and_there_is_a_limit() -> None:
    told = [Pause(1, "training", 1.0)] + [Pause(1, "switching", 1.0)] * 100
    assert accept_pauses(told, lines(GENESIS, 1, 1)) == (Pause(1, "switching", 1.0),) * PAUSES_MAX


def test_what_a_report_says_stands_beside_the_lines_that_it_made_durable() -> None:
    job = running(2, steps=2)
    said = (Pause(2, "checkpointing", 9.0), Pause(3, "checkpointing", 0.5))
    (event,) = made(job, replace(report(job, A, 1, 2), pauses=said))
    assert isinstance(event, StepsCommitted)
    assert event.pauses == said[1:]


@pytest.mark.parametrize(("said", "written"), [(2.5, 2.5), (-1.0, 0.0), (math.nan, 0.0), (1e12, 0.0)])
def test_a_join_says_how_old_its_process_is(said: float, written: float) -> None:
    (event,) = made(running(2), replace(join(C), age_s=said))
    assert isinstance(event, MemberJoined)
    assert event.age_s == written
