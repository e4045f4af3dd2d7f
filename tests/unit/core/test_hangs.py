"""The decision that a worker is hung."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pliant.core.hangs import (
    IDLE,
    STOPPED_S,
    WINDOW_S,
    WorkerActivity,
    WorkerSample,
    add_sample,
    describe_hang,
    find_stopped,
    user_code_limit_s,
)
from pliant.core.model.names import MemberId

A = MemberId("a")
STALL_S = 300.0


def hang(workers: Mapping[str, WorkerActivity], now: float, stall_s: float = STALL_S) -> str:
    return describe_hang([replace(each, member=MemberId(name)) for name, each in workers.items()], now, stall_s)


def folded(*samples: WorkerSample) -> WorkerActivity:
    found: WorkerActivity | None = None
    for sample in samples:
        found = add_sample(found, sample)
    assert found is not None
    return found


def every(pause_s: float, count: int, share: float, start: WorkerSample, state: str = "S") -> list[WorkerSample]:
    """Samples of a worker that writes nothing and uses this share of a core."""
    return [
        WorkerSample(A, start.at + pause_s * n, start.cpu_s + pause_s * n * share, start.written, state)
        for n in range(count)
    ]


START = WorkerSample(A, 0.0, 5.0, 100)


@pytest.mark.parametrize("pause_s", [0.5, 1.0, 7.0, 30.0])
def test_one_that_hardly_computes_does_not_move(pause_s: float) -> None:
    count = int(STALL_S / pause_s) + 1
    assert folded(*every(pause_s, count, IDLE / 2, START)).moved_at == 0.0
    assert folded(*every(pause_s, count, IDLE * 2, START)).moved_at > STALL_S - WINDOW_S - 2 * pause_s


def test_output_is_movement_however_little() -> None:
    quiet = every(1.0, 100, 0.0, START)
    assert folded(*quiet, WorkerSample(A, 100.0, 5.0, 101)).moved_at == 100.0


def test_work_after_a_long_pause_is_seen_at_once() -> None:
    quiet = every(1.0, 295, 0.0, START)
    assert folded(*quiet, WorkerSample(A, 296.0, 5.2, 100)).moved_at == 296.0


def test_a_process_that_is_gone_with_its_time_is_movement() -> None:
    assert folded(START, WorkerSample(A, 1.0, 2.0, 100)).moved_at == 1.0


def test_workers_are_stuck_when_none_of_them_moves() -> None:
    still = folded(*every(1.0, 301, 0.0, START))
    busy = folded(*every(1.0, 301, 0.5, START))
    assert hang({}, 1e9) == ""
    assert hang({"a": still, "b": busy}, 301.0) == ""
    assert hang({"a": still, "b": still}, 299.0) == ""
    assert hang({"a": still, "b": still}, 300.0) == (
        "none of the 2 workers here has computed or written anything for 300 s"
    )
    assert hang({"a": still}, 312.4) == "the worker here has neither computed nor written anything for 312 s"
    assert hang({"a": still}, 60.0, stall_s=60.0) != ""


def test_what_the_system_says_of_them_is_told() -> None:
    disk = folded(*every(1.0, 301, 0.0, START, "D"))
    plain = folded(*every(1.0, 301, 0.0, START))
    assert hang({"a": disk, "b": plain}, 300.0).endswith(" for 300 s; a waits for a disk or a device")


def test_a_stopped_worker_is_stuck_though_others_are_busy_waiting_for_it() -> None:
    stopped = folded(START, *every(1.0, 400, 0.0, WorkerSample(A, 50.0, 5.0, 100), "T"))
    busy = folded(*every(1.0, 451, 1.0, START))
    assert hang({"a": stopped, "b": busy}, 349.0) == ""
    assert hang({"a": stopped, "b": busy}, 350.0) == "a has been stopped (SIGSTOP) for 300 s"


def test_one_that_goes_on_after_it_was_stopped_is_not() -> None:
    stopped = every(1.0, 299, 0.0, START, "T")
    assert hang({"a": folded(*stopped, WorkerSample(A, 299.0, 6.0, 100, "R"))}, 320.0) == ""


def test_one_that_a_debugger_holds_is_being_looked_at() -> None:
    held = folded(*every(1.0, 400, 0.0, START, "t"))
    still = folded(*every(1.0, 400, 0.0, START))
    assert hang({"a": held, "b": still}, 400.0) == ""


def test_idle_workers_may_wait_for_others_on_another_machine() -> None:
    still = folded(*every(1.0, 301, 0.0, START))
    assert describe_hang([still], 300.0, STALL_S, all_here=True) != ""
    assert describe_hang([still], 300.0, STALL_S, all_here=False) == ""


# --------------------------------------------------------------------------------------- time in user code


@pytest.mark.parametrize(
    ("grace_s", "longest_s", "alone", "limit_s"),
    [
        (None, 2.0, False, STALL_S),
        (30.0, 0.1, False, 9.0),  # the others need the rest of the grace period to save
        (30.0, 4.0, False, 20.0),  # user code that always takes long is not stuck
        (30.0, 90.0, False, STALL_S),
        (30.0, 0.1, True, STALL_S),  # no other member waits for it
    ],
)
def test_user_code_may_take_stall_s_and_less_when_it_keeps_others_from_saving(
    grace_s: float | None, longest_s: float, alone: bool, limit_s: float
) -> None:
    assert user_code_limit_s(STALL_S, grace_s, longest_s, alone=alone) == pytest.approx(limit_s)


@pytest.mark.parametrize("grace_s", [None, 30.0])
def test_user_code_may_take_any_time_if_stall_s_is_0(grace_s: float | None) -> None:
    assert user_code_limit_s(0.0, grace_s, 1.0, alone=False) == 0.0


# ------------------------------------------------------------------------------------------- stopped workers


def test_a_worker_is_found_once_it_has_been_stopped_for_long_enough() -> None:
    stopped = folded(START, *every(0.5, 5, 0.0, replace(START, at=10.0), "T"))
    assert find_stopped([stopped], 10.0 + STOPPED_S - 0.01) == frozenset()
    assert find_stopped([stopped], 10.0 + STOPPED_S) == {A}


def test_a_worker_that_runs_again_is_not_stopped() -> None:
    again = folded(*every(0.5, 5, 0.0, START, "T"), WorkerSample(A, 2.5, 5.0, 100, "S"))
    assert find_stopped([again], 100.0) == frozenset()


def test_a_worker_that_is_stopped_and_continued_in_turns_makes_progress() -> None:
    """`cpulimit` does that: every sample may show the worker stopped, and it computes in between."""
    limited = folded(*every(0.5, 20, 0.05, START, "T"))
    assert find_stopped([limited], limited.newest.at + STOPPED_S - 0.01) == frozenset()


def test_a_worker_in_a_debugger_is_not_stopped() -> None:
    held = folded(*every(0.5, 20, 0.0, START, "t"))
    assert find_stopped([held], 100.0) == frozenset()
