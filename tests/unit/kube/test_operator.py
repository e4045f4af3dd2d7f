"""The operator's shell: the failure of one object leaves all others alone, and is told."""

from typing import Any

import pytest

from pliant.core.messages import Create
from pliant.core.model.job import JobState
from pliant.core.submissions import SubmissionState
from pliant.errors import NotAllowed, PliantError, Refused, Unreachable
from pliant.kube.actions import CreateJob
from pliant.kube.manifests import companions
from pliant.kube.model import Absent, JobView, Unknown
from pliant.kube.names import INDEX_LABEL, JOB_LABEL
from pliant.kube.observe import read_job
from pliant.kube.operator import Lists, Operator
from pliant.kube.reconcile import job_spec
from pliant.kube.submissions import ReportSubmission, SubmissionFollower
from pliant.wire.api import JobLine, SubmissionReport
from unit.kube.objects import Object, pod_object
from unit.kube.stand_ins import AnsweringApi, AnsweringClient, operator_of, ready_job, waiting_view


def template(**spec: Any) -> Object:
    return {"template": {"spec": {"containers": [{"name": "main", "image": "trainer:1"}], **spec}}}


@pytest.fixture
def every_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def views(_operator: Operator, lists: Lists) -> dict[str, JobView]:
        return {f"research.{each['metadata']['name']}": waiting_view() for each in lists.jobs.items}

    monkeypatch.setattr(Operator, "_read_views", views)


def healthy(item: Object) -> tuple[str, str]:
    [each] = [each for each in item["status"]["conditions"] if each["type"] == "PodsHealthy"]
    return each["status"], each["message"]


@pytest.mark.parametrize(
    "workers",
    [
        {"template": {}},
        {"template": {"spec": {"containers": [{"name": "main", "env": [{"value": "x"}]}]}}},
    ],
)
@pytest.mark.usefixtures("every_job_runs")
def test_a_template_that_makes_no_pod_is_told_in_its_job_and_costs_no_other_job(workers: Object) -> None:
    bad, good = ready_job("bad", workers=workers), ready_job("good")
    api = AnsweringApi(bad, good)
    operator = operator_of(api, AnsweringClient())
    for _ in range(2):
        operator.turn(fresh=True)
    assert api.made("Pod") == {f"good-w{index}" for index in range(1, 5)}
    status, message = healthy(bad)
    assert status == "False"
    assert "CreatePod" in message
    assert healthy(good)[0] == "True"


@pytest.mark.usefixtures("every_job_runs")
def test_a_job_that_cannot_be_decided_is_told_and_costs_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    companion_objects = companions.companion_objects

    def failing(job: Any) -> Any:
        if job.name == "bad":
            raise TypeError("not iterable")
        return companion_objects(job)

    monkeypatch.setattr(companions, "companion_objects", failing)
    bad, good = ready_job("bad"), ready_job("good")
    api = AnsweringApi(bad, good)
    operator_of(api, AnsweringClient()).turn(fresh=True)
    assert len(api.made("Pod")) == 4
    assert "not iterable" in healthy(bad)[1]


@pytest.mark.parametrize("empty", [{"securityContext": None}, {"volumes": None}, {"initContainers": None}])
@pytest.mark.usefixtures("every_job_runs")
def test_an_empty_part_of_a_template_counts_as_missing(empty: Object) -> None:
    api = AnsweringApi(ready_job(workers=template(**empty)))
    operator_of(api, AnsweringClient()).turn(fresh=True)
    assert len(api.made("Pod")) == 4


@pytest.mark.usefixtures("every_job_runs")
def test_a_claim_without_a_specification_goes_to_the_api_server_as_it_is() -> None:
    api = AnsweringApi(ready_job(checkpoints={"volumeClaim": {"spec": None}}))
    operator_of(api, AnsweringClient()).turn(fresh=True)
    assert api.objects["PersistentVolumeClaim", "digits-checkpoints"]["spec"] == {}


@pytest.mark.usefixtures("every_job_runs")
def test_a_pod_that_cannot_be_read_is_left_out() -> None:
    strange = pod_object(labels={JOB_LABEL: "x", INDEX_LABEL: "one"})
    api = AnsweringApi(ready_job(), pods=(strange,))
    operator_of(api, AnsweringClient()).turn(fresh=True)
    assert len(api.made("Pod")) == 4


@pytest.mark.parametrize("error", [NotAllowed("Its scope is too narrow."), Unreachable("No."), Refused("No.", "old")])
def test_a_coordinator_that_lists_no_jobs_is_unknown_with_its_reason(error: PliantError) -> None:
    item = ready_job()
    client = AnsweringClient()
    client.trouble["jobs"] = error
    operator_of(AnsweringApi(item), client).turn(fresh=True)
    assert item["status"]["reason"].startswith(error.why)


def line(name: str) -> JobLine:
    return JobLine(name, JobState.RUNNING, "", 0, 0, 1, 1, 1, 1, 0, None, 0, 1)


@pytest.mark.parametrize(("code", "why"), [("no-job", "The coordinator is changing."), ("bad", "Refused.")])
def test_a_job_that_the_coordinator_refuses_to_show_is_unknown_alone(code: str, why: str) -> None:
    client = AnsweringClient()
    client.lines = (line("research.bad"),)
    client.trouble["research.bad"] = Refused("Refused.", code)
    operator = operator_of(AnsweringApi(ready_job("bad"), ready_job("good")), client)
    views = operator._read_views(operator._read())
    assert views == {"research.bad": Unknown(why), "research.good": Absent("")}


def report(task: str) -> ReportSubmission:
    return ReportSubmission(task, SubmissionReport(1, SubmissionState.CREATED, "so"))


def test_a_submission_that_is_refused_leaves_the_others_and_a_silent_coordinator_none() -> None:
    client = AnsweringClient()
    follower = SubmissionFollower(AnsweringApi(), client, "research")
    client.trouble = {"a": NotAllowed("No."), "b": Unreachable("No answer.")}
    follower.perform([report("a"), report("b"), report("c")])  # the next turn tries the rest again


@pytest.mark.parametrize("only_settings", [True, False])
def test_the_coordinator_is_told_whether_settings_alone_may_change(only_settings: bool) -> None:
    item, client = ready_job(), AnsweringClient()
    job = read_job(item)
    wanted = job_spec(job.spec)
    operator_of(AnsweringApi(item), client).performer.perform(job, item, CreateJob(wanted, only_settings))
    assert client.sent == [("research.digits", Create("research.digits", wanted, only_settings=only_settings))]
