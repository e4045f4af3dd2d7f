"""Submissions: an image and numbers become an ElasticJob, and nothing else can be chosen."""

from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from pliant.cli.main import cli
from pliant.core.model.job import Mode
from pliant.core.submissions import Submission
from pliant.errors import BadInput
from pliant.kube.observe import read_job
from pliant.kube.submission import describe_job, same_submission, submitted_job
from unit.kube.objects import job_object

WANTED = Submission("digits", "trainer:1", 1, 8, ("pliant", "run", "train.py"), target=2)


def stored(job: dict[str, Any]) -> dict[str, Any]:
    meta = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**job, "metadata": {**job["metadata"], **meta}}


def test_a_submission_becomes_a_job_that_the_operator_reads() -> None:
    job = read_job(stored(submitted_job(WANTED, "research")))
    assert (job.key, job.spec.size_min, job.spec.size_max, job.spec.target) == ("research.digits", 1, 8, 2)
    assert job.spec.workers.template["spec"]["containers"][0]["command"] == ["pliant", "run", "train.py"]


def test_without_a_command_the_image_s_exec_py_runs() -> None:
    made = submitted_job(replace(WANTED, command=()), "research")
    container = made["spec"]["workers"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["pliant", "run", "--env", "tf"]


def test_parameter_servers_choose_the_strategy() -> None:
    made = submitted_job(replace(WANTED, servers=2), "research")
    assert made["spec"]["strategy"] == "ParameterServer"
    assert made["spec"]["parameterServers"]["count"] == 2


def test_a_task_queue_has_pliant_s_own_servers() -> None:
    job = read_job(stored(submitted_job(replace(WANTED, servers=2, mode=Mode.TASKS), "research")))
    assert job.spec.is_task_queue
    assert (job.spec.server_count, job.spec.seated_servers) == (2, 0)
    assert not same_submission(submitted_job(WANTED, "research"), submitted_job(replace(WANTED, mode=Mode.TASKS), "r"))


def test_a_live_job_with_servers_is_refused() -> None:
    with pytest.raises(BadInput, match="in a cluster a live job has no parameter servers"):
        submitted_job(replace(WANTED, servers=2, mode=Mode.LIVE), "research")


def test_limits_and_variables_are_set() -> None:
    made = submitted_job(replace(WANTED, limits=(("nvidia.com/gpu", "1"),), environment=(("A", "b"),)), "research")
    container = made["spec"]["workers"]["template"]["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert container["env"] == [{"name": "A", "value": "b"}]


@pytest.mark.parametrize("task", ["", "Digits", "1st", "a_b", "x" * 41, "a-"])
def test_a_task_that_cannot_name_pods_is_refused(task: str) -> None:
    with pytest.raises(BadInput, match="task must have"):
        submitted_job(replace(WANTED, task=task), "research")


def test_the_same_submission_is_known_again_after_a_resize() -> None:
    made = submitted_job(WANTED, "research")
    later = {**made, "spec": {**made["spec"], "workers": {**made["spec"]["workers"], "target": 7}}}
    assert same_submission(later, made)
    assert not same_submission(submitted_job(replace(WANTED, image="other:1"), "research"), made)
    assert not same_submission(job_object(strategy="AllReduce"), made)


def test_one_line_describes_a_job() -> None:
    job = submitted_job(WANTED, "research")
    assert describe_job(job) == "digits is not seen by an operator yet (0 of 2 workers)"
    status = {"state": "Running", "reason": "2 workers", "workers": {"active": 2}, "progress": {"step": 9}}
    assert describe_job({**job, "status": status}) == "digits is Running (2 of 2 workers, step 9): 2 workers"


def test_a_variable_without_a_value_is_refused() -> None:
    done = CliRunner().invoke(cli, ["submit", "--image", "x", "--workers", "1", "--env", "A"])
    assert "'A' is not NAME=VALUE" in done.output
