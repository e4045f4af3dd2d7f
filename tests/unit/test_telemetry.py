"""What strangers can make us log is bounded, and what is counted has its name."""

from pliant.telemetry import CoordinatorMetrics, LogLimiter


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
