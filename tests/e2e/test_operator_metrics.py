"""The operator's metrics, which a real coordinator serves with its own."""

import pytest

from e2e.running import Running
from pliant.errors import PliantError
from pliant.telemetry import OperatorMetrics


def test_the_coordinator_serves_what_its_operator_reported(coordinator: Running) -> None:
    assert "pliant_operator" not in coordinator.client().metrics()
    metrics = OperatorMetrics()
    metrics.reconciles.inc(3)
    metrics.calls.labels("GET", "200").inc()
    metrics.errors.labels("api").inc()
    metrics.turns.observe(0.1)
    coordinator.client().report_operator_metrics(metrics.render())
    served = coordinator.client().metrics()
    assert "pliant_operator_reconciles_total 3.0" in served
    assert served.count("# TYPE pliant_operator_api_calls_total counter") == 1
    assert "pliant_coordinator_leads 1.0" in served


@pytest.mark.parametrize("text", ["pliant_jobs 9", "pliant_operator_x 1\n\npliant_jobs 9", "pliant_operator_x" * 9000])
def test_a_report_cannot_contain_other_metrics(coordinator: Running, text: str) -> None:
    with pytest.raises(PliantError, match="pliant_operator_"):
        coordinator.client().report_operator_metrics(text)
    assert "pliant_jobs 9" not in coordinator.client().metrics()
