"""The keys of JSON log lines, the limit on lines that strangers cause, and the names of metrics."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from pliant.telemetry import CoordinatorMetrics, LogLimiter, configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, own = logging.getLogger(), logging.getLogger("pliant")
    before = (root.handlers[:], root.level, own.level)
    yield io.StringIO()
    root.handlers[:], root.level, own.level = before


def test_a_json_line_has_time_level_logger_and_message(stream: io.StringIO) -> None:
    configure_logging(stream, as_json=True)
    logging.getLogger("pliant.test").warning("disk %s", "full")
    line = json.loads(stream.getvalue())
    assert isinstance(line.pop("time"), float)
    assert line == {"level": "warning", "logger": "pliant.test", "message": "disk full"}


def test_a_json_line_of_an_exception_has_the_traceback(stream: io.StringIO) -> None:
    configure_logging(stream, as_json=True)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("pliant.test").exception("failed")
    assert json.loads(stream.getvalue())["error"].endswith("ValueError: broken")


def test_a_line_is_said_so_often_and_then_counted() -> None:
    seldom = LogLimiter(most=2, seconds=10.0)
    assert [seldom.admit(0.0), seldom.admit(1.0), seldom.admit(2.0), seldom.admit(9.9)] == [0, 0, None, None]


def test_after_a_while_it_is_said_again_with_the_number_of_those_that_were_not() -> None:
    seldom = LogLimiter(most=1, seconds=10.0)
    seldom.admit(0.0)
    seldom.admit(1.0)
    seldom.admit(2.0)
    assert seldom.admit(10.0) == 2
    assert seldom.admit(20.0) == 0


def test_metrics_have_the_names_that_people_will_ask_for() -> None:
    metrics = CoordinatorMetrics()
    metrics.events.labels("JobCreated").inc()
    metrics.workers.labels("training").set(3)
    text = metrics.render().decode()
    assert 'pliant_events_total{type="JobCreated"} 1.0' in text
    assert 'pliant_workers{doing="training"} 3.0' in text
    for name in ("pliant_coordinator_leads", "pliant_members", "pliant_watchers", "pliant_pump_seconds_bucket"):
        assert f"\n{name}" in text
    assert "process_resident_memory_bytes" in text
