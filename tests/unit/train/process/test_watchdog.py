"""A training thread that is stuck is named once, with where it is stuck, and its process ends."""

import itertools
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from pliant.train.process import StallWatchdog

PATIENCE_S = 60.0


class Ear(logging.Handler):
    """Collects what is logged, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.news = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        self.news.release()


@pytest.fixture
def ear() -> Iterator[Ear]:
    found = Ear()
    logger = logging.getLogger("pliant.train.process")
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)


def stuck_here(ear: Ear) -> None:
    assert ear.news.acquire(timeout=PATIENCE_S)


def test_it_is_named_with_its_stack(ear: Ear) -> None:
    since = time.monotonic()
    watch = StallWatchdog("m1", lambda: 0.04, lambda: since)
    try:
        stuck_here(ear)
    finally:
        watch.close()
    assert "m1 has been in the training loop's body" in ear.said[0]
    assert "stuck_here" in ear.said[0]
    assert "test_watchdog.py" in ear.said[0]


def test_once_for_each_time_it_is_stuck(ear: Ear) -> None:
    since = [time.monotonic()]
    watch = StallWatchdog("m1", lambda: 0.02, lambda: since[0])
    try:
        assert ear.news.acquire(timeout=PATIENCE_S)
        assert not ear.news.acquire(timeout=0.1)
        since[0] = time.monotonic()
        assert ear.news.acquire(timeout=PATIENCE_S)
    finally:
        watch.close()


def test_its_process_ends_after_its_stack_is_logged(ear: Ear) -> None:
    since, ended = time.monotonic(), threading.Event()
    watch = StallWatchdog("m1", lambda: 0.04, lambda: since, ended.set)
    try:
        assert ended.wait(PATIENCE_S)
    finally:
        watch.close()
    assert len(ear.said) == 2
    assert ear.said[1] == "m1 ends, so that the others go on; stall_s=0 allows any time"


def test_a_limit_that_becomes_shorter_counts_from_the_start(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grace period began while user code was running."""
    monkeypatch.setattr("pliant.train.process.WATCH_S", 0.02)
    since, ended, limits_s = time.monotonic() - 60.0, threading.Event(), [0.0]
    watch = StallWatchdog("m1", lambda: limits_s[0], lambda: since, ended.set)
    try:
        assert not ended.wait(0.1)  # there is no limit
        limits_s[0] = 9.0
        assert ended.wait(PATIENCE_S)
    finally:
        watch.close()


def test_nobody_is_named_outside_user_code_or_in_time(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.train.process.WATCH_S", 0.005)
    asked = threading.Semaphore(0)
    inside = itertools.cycle([True, False])

    def busy_since() -> float | None:
        asked.release()
        return time.monotonic() if next(inside) else None

    watch = StallWatchdog("m1", lambda: PATIENCE_S, busy_since)
    try:
        for _ in range(4):
            assert asked.acquire(timeout=PATIENCE_S)
    finally:
        watch.close()
    assert not ear.said


def test_close_ends_its_thread() -> None:
    threads = threading.active_count()
    StallWatchdog("m1", lambda: 300.0, lambda: None).close()
    assert threading.active_count() == threads
