import os
import subprocess
import sys
import time

import pytest

from pliant.core.accounting.pauses import CHECKPOINTING, PAUSES_MAX, SWITCHING, Pause
from pliant.core.data.ledger import GENESIS
from pliant.core.messages import Leave, Report
from pliant.train.process import PauseLog, process_age_s
from unit.core.build import A, lines


def report(first: int, count: int) -> Report:
    return Report(A, 0, 1, lines(GENESIS, 1, first + count - 1)[first - 1 :])


def spent(pauses: PauseLog, command: Report) -> tuple[Pause, ...]:
    said = pauses.attach_to(command)
    assert isinstance(said, Report)
    assert said.lines == command.lines
    return said.pauses


def test_a_report_says_what_belongs_to_its_steps_each_time_it_is_said() -> None:
    pauses = PauseLog()
    pauses.add(2, CHECKPOINTING, 0.5)
    pauses.add(3, CHECKPOINTING, 0.25)
    pauses.add(3, SWITCHING, 1.0)
    pauses.add(3, CHECKPOINTING, 0.25)
    for _ in range(2):
        assert spent(pauses, report(3, 4)) == (Pause(3, CHECKPOINTING, 0.5), Pause(3, SWITCHING, 1.0))
    assert spent(pauses, report(1, 2)) == (Pause(2, CHECKPOINTING, 0.5),)


def test_what_is_no_report_of_steps_is_said_as_it_is() -> None:
    pauses = PauseLog()
    pauses.add(1, CHECKPOINTING, 0.5)
    for command in (Leave(A, 0, "done"), Report(A, 0, 1, ()), report(4, 2)):
        assert pauses.attach_to(command) is command


def test_a_moment_is_not_worth_a_word_and_the_oldest_are_forgotten() -> None:
    pauses = PauseLog()
    pauses.add(1, CHECKPOINTING, 0.0001)
    pauses.add(1, SWITCHING, -3.0)
    assert spent(pauses, report(1, 12)) == ()
    for step in range(1, PAUSES_MAX + 6):
        pauses.add(step, CHECKPOINTING, 1.0)
    assert [each.step for each in spent(pauses, report(1, 12))] == [6, 7, 8, 9, 10, 11, 12]


def test_the_first_reduction_of_a_generation_shows_what_the_switch_cost() -> None:
    pauses = PauseLog()
    pauses.reduced(1, 1, 9.0)  # the very first is no switch
    pauses.reduced(2, 1, 0.25)
    pauses.reduced(3, 2, 0.75)
    pauses.reduced(4, 2, 0.5)
    pauses.reduced(5, 3, 0.25)  # quicker than the one before
    assert spent(pauses, report(1, 6)) == (Pause(3, SWITCHING, 0.5),)


def test_what_is_waited_for_is_measured_also_if_it_fails() -> None:
    pauses = PauseLog()
    began = time.monotonic()
    with pytest.raises(ValueError, match="disk"):
        _busy_and_broken(pauses, 0.002)
    (found,) = spent(pauses, report(1, 1))
    assert 0.002 <= found.seconds <= time.monotonic() - began


def _busy_and_broken(pauses: PauseLog, seconds: float) -> None:
    with pauses.during(1, CHECKPOINTING):
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            pass
        raise ValueError("disk")


def test_a_process_knows_its_age() -> None:
    before = time.monotonic()
    program = "from pliant.train.process import process_age_s; print(process_age_s())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    assert 0.0 < float(done.stdout) <= time.monotonic() - before + tick_s
    assert process_age_s() > float(done.stdout)


def test_where_the_system_does_not_tell_there_is_no_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: "none")
    monkeypatch.setattr("pathlib.Path.read_text", lambda _path: "1 (python) S 1")
    assert process_age_s() == 0.0
