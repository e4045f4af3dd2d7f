"""The status of an ElasticJob: one sentence that is true now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pliant.kube.model import CoordinatorView, ElasticJob, Pod
from pliant.kube.status import Situation, build_status
from unit.kube.objects import elastic_job

VIEW = CoordinatorView(
    "running", "digits-w1.1 was lost (its lease ran out)", "store", 5.0, 4, 4, 9, 100, 0, 3, 0, {}, active=4
)
FAILED = Pod("digits-w1", "u1", 3, "worker", 1, "base", "h", 0.0, "Failed", exit_code=1)


def status(view: CoordinatorView, *pods: Pod, job: ElasticJob | None = None) -> dict[str, Any]:
    made = replace(elastic_job(), status={"coordinatorJob": view.identity})
    return dict(build_status(job or made, pods, view, 100.0, "", Situation()))


def healthy(found: dict[str, Any]) -> tuple[str, str]:
    [each] = [each for each in found["conditions"] if each["type"] == "PodsHealthy"]
    return each["status"], each["reason"]


def test_the_last_change_is_not_the_reason_once_all_workers_train() -> None:
    assert status(VIEW)["reason"] == "all 4 workers train"
    fewer = replace(VIEW, active=3)
    assert status(fewer)["reason"] == "digits-w1.1 was lost (its lease ran out)"
    stopping = replace(VIEW, state="stopping", why="cancelled by a user")
    assert status(stopping)["reason"] == "cancelled by a user"


def test_a_failed_pod_is_a_problem_until_the_job_has_all_its_workers_again() -> None:
    short = status(replace(VIEW, active=3), FAILED)
    assert healthy(short) == ("False", "Crashing")
    assert "the last failure: digits-w1" in short["reason"]
    whole = status(VIEW, FAILED)
    assert healthy(whole) == ("True", "Healthy")
    assert whole["reason"] == "all 4 workers train"
