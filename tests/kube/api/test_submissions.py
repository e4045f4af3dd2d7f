"""Submissions to a real coordinator become ElasticJobs on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from e2e.running import Running, start, token_of
from kube.cluster.control_plane import ControlPlane
from pliant.cli.main import cli
from pliant.core.submissions import Submission, bad_submission
from pliant.credentials import write_token
from pliant.errors import NotAllowed
from pliant.kube.api import KubeApi
from pliant.kube.operator import Operator, make_operator
from pliant.kube.submission import submitted_job
from pliant.wire.api import Scope, TokenRequest

JOBS = "/apis/pliant.dev/v1alpha1/namespaces/{}/elasticjobs"
WANTED = Submission("digits", "team/trainer:1", 1, 4, ("pliant", "run", "train.py"))


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Running]:
    with start(home=tmp_path / "home", submissions=("team/*",)) as running:
        yield running


class Submitter:
    """A user with a token of scope submit and the command line, and the operator of the cluster."""

    def __init__(self, plane: ControlPlane, namespace: str, coordinator: Running, folder: Path) -> None:
        self.http = plane.http()
        self.path = JOBS.format(namespace)
        self._url = coordinator.url
        self._token_file = folder / "submit-token"
        made = coordinator.client().create_token(TokenRequest(Scope.SUBMIT)).token
        write_token(self._token_file, token_of(made))
        self.operator: Operator = make_operator(
            KubeApi(self.http), coordinator.client(), coordinator.url, None, namespace
        )

    def run(self, *words: str) -> Result:
        where = ["--coordinator", self._url, "--token-file", str(self._token_file)]
        cut = words.index("--") if "--" in words else len(words)
        return CliRunner().invoke(cli, [*words[:cut], *where, *words[cut:]])

    def turn(self) -> None:
        self.operator.turn(fresh=False)


def test_a_submitted_job_is_created_shown_and_stopped(
    jobs_plane: ControlPlane, namespace: str, coordinator: Running, tmp_path: Path
) -> None:
    user = Submitter(jobs_plane, namespace, coordinator, tmp_path)
    user.turn()  # so that the operator has older lists
    sent = user.run("submit", "--image", "team/trainer:1", "--task", "digits", "--workers", "1:4", "--", "x", "y")
    assert sent.exit_code == 0, sent.output
    assert "digits is accepted: waiting for an operator" in sent.output
    user.turn()
    job = user.http.get(f"{user.path}/digits").json()
    assert job["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] == ["x", "y"]
    for _ in range(4):
        user.turn()
    pods = user.http.get(f"/api/v1/namespaces/{namespace}/pods").json()["items"]
    assert len(pods) == 4
    shown = user.run("kube", "status", "digits")
    assert "digits is Waiting (0 of 4 workers, step 0)" in shown.output, shown.output
    counted = user.operator.metrics.render()
    assert 'pliant_operator_api_calls_total{method="POST",status="201"}' in counted
    assert "pliant_operator_queue_depth 0.0" in counted
    refused = user.run("submit", "--image", "evil:1", "--workers", "1").exception
    assert isinstance(refused, NotAllowed)
    assert "does not accept the image evil:1" in refused.why
    stopped = user.run("kube", "stop", "digits", "--json")
    assert json.loads(stopped.output)["state"] == "stopping"
    for _ in range(6):
        user.operator.turn(fresh=True)
    assert user.http.get(f"{user.path}/digits").status_code == 404
    assert "digits is ended: it was stopped" in user.run("kube", "status", "digits").output


def test_a_name_that_the_cluster_has_already_is_refused(
    jobs_plane: ControlPlane, namespace: str, coordinator: Running, tmp_path: Path
) -> None:
    user = Submitter(jobs_plane, namespace, coordinator, tmp_path)
    made = user.http.post(user.path, json=submitted_job(WANTED, namespace))
    assert made.status_code == 201, made.text
    assert user.run("submit", "--image", "team/trainer:1", "--task", "digits", "--workers", "1:4").exit_code == 0
    user.operator.turn(fresh=True)
    shown = user.run("kube", "status", "digits").output
    assert "digits is refused: there is another job digits in the cluster" in shown


CASES = [
    ({}, True),
    ({"task": "a" * 40}, True),
    ({"task": "a" * 41}, False),
    ({"task": "A"}, False),
    ({"size_max": 4096, "processes": 64, "servers": 256}, True),
    ({"size_max": 4097}, False),
    ({"processes": 65}, False),
    ({"servers": 257}, False),
    ({"size_min": 5}, False),
    ({"target": 5}, False),
    ({"claim": "saves"}, True),
]


def test_the_coordinator_and_the_api_server_agree_on_what_is_valid(
    jobs_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.kube.submission.bad_submission", lambda _: "")
    path = f"{JOBS.format(namespace)}?dryRun=All"
    for change, holds in CASES:
        wanted = replace(WANTED, **change)  # type: ignore[arg-type]  # each case has values of the right types
        assert (bad_submission(wanted) == "") is holds, change
        answer = jobs_plane.http().post(path, json=submitted_job(wanted, namespace))
        assert (answer.status_code == 201) is holds, (change, answer.text)
