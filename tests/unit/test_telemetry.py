"""The keys of JSON log lines, the limit on lines that strangers cause, and the names of metrics."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from pliant.core import messages as m
from pliant.core.accounting.pauses import Pause
from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import MemberId
from pliant.telemetry import CoordinatorMetrics, JobSample, LogLimiter, configure_logging
from unit.core.build import lines


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


def sample(job: str, **values: int | None) -> JobSample:
    given = {"step": 3, "total_steps": None, "checkpoint_step": None, "size": 2, "target": 4, **values}
    return JobSample(job, "waiting", waiting_s=1.5, **given)  # type: ignore[arg-type]


def values(metrics: CoordinatorMetrics) -> dict[str, float]:
    """The samples with a job's label, as a scrape reads them."""
    found = [line.rpartition(" ") for line in metrics.render().decode().splitlines() if 'job="' in line]
    return {name: float(value) for name, _, value in found}


def test_each_job_has_its_values_under_its_name() -> None:
    metrics = CoordinatorMetrics()
    metrics.count_event("digits", m.WorkerFailed(1.0, MemberId("a"), 1))
    metrics.count_event("digits", m.MemberGone(1.0, MemberId("a"), "lost", "killed"))
    metrics.count_event("digits", m.MemberGone(1.0, MemberId("b"), "left", "as planned"))
    metrics.count_event("digits", m.WorldEntered(1.0, 1))
    pauses = (Pause(1, "switching", 0.5), Pause(1, "switching", 1.0))
    metrics.count_event("digits", m.StepsCommitted(1.0, 1, MemberId("a"), lines(GENESIS, 1, 1), pauses))
    metrics.sample_jobs([sample("digits", total_steps=10)])
    assert values(metrics) == {
        'pliant_job_state{job="digits",state="waiting"}': 1.0,
        'pliant_job_step{job="digits"}': 3.0,
        'pliant_job_total_steps{job="digits"}': 10.0,
        'pliant_job_size{job="digits"}': 2.0,
        'pliant_job_target{job="digits"}': 4.0,
        'pliant_job_waiting_seconds{job="digits"}': 1.5,
        'pliant_job_failures_total{job="digits"}': 1.0,
        'pliant_job_lost_members_total{job="digits"}': 1.0,
        'pliant_job_changes_total{job="digits"}': 1.0,
        'pliant_job_pause_seconds_count{job="digits",kind="switching"}': 2.0,
        'pliant_job_pause_seconds_sum{job="digits",kind="switching"}': 1.5,
    }


def test_a_job_that_is_not_sampled_any_more_leaves_nothing_behind() -> None:
    metrics = CoordinatorMetrics()
    metrics.count_event("old", m.WorkerFailed(1.0, MemberId("a"), 1))
    metrics.sample_jobs([sample("old")])
    metrics.sample_jobs([sample("new")])
    assert {name for name in values(metrics) if '"old"' in name} == set()
    assert values(metrics)['pliant_job_failures_total{job="new"}'] == 0.0


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
