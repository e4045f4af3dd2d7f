"""Submissions over HTTP to a real coordinator: what is refused, what is kept, and what each token may do."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from e2e.running import Running, start, token_of
from pliant.core.submissions import SubmissionState
from pliant.credentials import Token
from pliant.wire.api import Scope, SubmissionReport, TokenRequest

GOOD: dict[str, Any] = {"task": "digits", "image": "team/trainer:1", "size_min": 1, "size_max": 8}


@pytest.fixture(scope="module")
def accepting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("accepting")
    with start(f"sqlite:{home}/store.db", home=home, submissions=("team/*", "fixed:1")) as running:
        yield running


def token(running: Running, scope: Scope = Scope.SUBMIT) -> Token:
    return token_of(running.client().create_token(TokenRequest(scope)).token)


def post(http: httpx2.Client, body: dict[str, Any], path: str = "/v1/submissions") -> tuple[int, dict[str, Any]]:
    answer = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    return answer.status_code, answer.json()


def test_a_coordinator_accepts_no_submissions_unless_it_was_told_to(tmp_path: Path) -> None:
    with start(home=tmp_path) as running:
        status, answer = post(running.http(token(running)), GOOD)
        assert (status, answer["code"]) == (403, "submissions-off")
        assert "--accept-submissions" in answer["why"]
        assert post(running.admin, GOOD)[1]["code"] == "submissions-off"  # not even from an admin


@pytest.mark.parametrize(
    ("change", "status", "code", "why"),
    [
        ({"image": "evil:1"}, 403, "image-not-allowed", "does not accept the image evil:1"),
        ({"image": "fixed:1x"}, 403, "image-not-allowed", "does not accept"),
        ({"task": "../x"}, 422, "bad", "task must have"),
        ({"size_min": 9}, 422, "bad", "1 <= MIN <= MAX"),
        ({"size_min": "1"}, 422, "bad", "size_min"),
        ({"hostNetwork": True}, 422, "bad", "hostNetwork"),
        ({"template": {"spec": {"hostPID": True}}}, 422, "bad", "template"),
        ({"environment": [["PLIANT_COORDINATOR", "http://evil"]]}, 422, "bad", "the operator sets"),
        ({"command": ["x" * 5000]}, 422, "bad", "4096 characters"),
        ({"command": ["x" * (1 << 20)]}, 413, "too-large", "1048576 bytes"),
    ],
)
def test_a_submission_that_is_not_allowed_is_refused_with_its_reason(
    accepting: Running, change: dict[str, Any], status: int, code: str, why: str
) -> None:
    found, answer = post(accepting.http(token(accepting)), {**GOOD, **change})
    assert (found, answer["code"]) == (status, code)
    assert why in answer["why"]
    assert accepting.client().submissions() == ()


def test_a_submission_is_kept_and_each_token_sees_and_stops_only_what_it_may(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/store.db"
    with start(store, home=tmp_path, submissions=("team/*",)) as running:
        own, other, reader = token(running), token(running), token(running, Scope.READ)
        assert post(running.http(own), GOOD)[1]["state"] == "accepted"
        again = post(running.http(own), GOOD)[1]
        assert again["number"] == 1
        taken, answer = post(running.http(other), GOOD)
        assert (taken, "image" in answer["why"]) == (409, False)
        assert post(running.http(reader), GOOD)[0] == 403
        assert post(running.http(other), {}, "/v1/submissions/digits/stop")[0] == 409
        assert running.http(own).get("/v1/submissions").status_code == 403  # the contents are for the operator
        assert running.http(own).get("/v1/jobs").status_code == 200
        running.kill()
    with start(store, home=tmp_path, submissions=("team/*",)) as running:
        [entry] = running.client().submissions()
        assert entry.wanted is not None
        assert (entry.line.task, entry.wanted.image) == ("digits", "team/trainer:1")
        body = SubmissionReport(1, SubmissionState.CREATED, "made", "research.digits", "digits is Running")
        running.client().report_submission("digits", body)
        shown = running.http(own).get("/v1/submissions/digits").json()
        assert (shown["state"], shown["job"], shown["status"]) == ("created", "research.digits", "digits is Running")
        assert not {"image", "command", "environment"} & shown.keys()
        assert post(running.http(own), {}, "/v1/submissions/digits/stop")[1]["state"] == "stopping"
        assert running.http(own).get("/v1/submissions/other").status_code == 404
