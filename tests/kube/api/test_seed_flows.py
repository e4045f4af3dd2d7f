"""The four ways in which earlier systems start and resize jobs, each by its example, on a real API server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.running import Running, start, token_of
from kube.cluster.control_plane import ControlPlane
from pliant.credentials import write_token
from pliant.kube.api import KubeApi
from pliant.kube.operator import make_operator
from pliant.wire.api import Scope, TokenRequest
from tidy.files import ROOT

EXAMPLES = ROOT / "examples" / "kubernetes"
TURNS = 4


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start(home=tmp_path_factory.mktemp("coordinator"), submissions=("team/*",)) as running:
        yield running


class Site:
    """A namespace with the operator, and the programs of a user."""

    def __init__(self, plane: ControlPlane, namespace: str, coordinator: Running) -> None:
        self.http = plane.http()
        self.namespace = namespace
        self._kubeconfig = plane.kubeconfig
        self._operator = make_operator(
            KubeApi(self.http), coordinator.client(), coordinator.url, None, submissions=namespace
        )

    def run(self, *command: str) -> str:
        """Run a program with the pliant of this environment and the cluster's credentials; return its output."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "KUBECONFIG": str(self._kubeconfig)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def settle(self) -> dict[str, dict[str, Any]]:
        """Let the operator work, and return the pods by name."""
        for _ in range(TURNS):
            self._operator.turn(fresh=True)
        listed = self.http.get(f"/api/v1/namespaces/{self.namespace}/pods").json()["items"]
        return {each["metadata"]["name"]: each["spec"]["containers"][0] for each in listed}

    def job(self, name: str) -> dict[str, Any]:
        path = f"/apis/pliant.dev/v1alpha1/namespaces/{self.namespace}/elasticjobs/{name}"
        found: dict[str, Any] = self.http.get(path).raise_for_status().json()
        return found


@pytest.fixture
def site(jobs_plane: ControlPlane, namespace: str, coordinator: Running) -> Site:
    return Site(jobs_plane, namespace, coordinator)


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_elasticdl_s_submit_starts_workers_and_parameter_servers(site: Site) -> None:
    said = site.run(str(EXAMPLES / "submit.sh"), "team/trainer:1", "--namespace", site.namespace)
    assert "mnist is not seen by an operator yet" in said
    pods = site.settle()
    assert sorted(pods) == ["mnist-ps1", "mnist-w2", "mnist-w3"]
    assert environment(pods["mnist-ps1"])["PLIANT_ROLE"] == "ps"
    assert environment(pods["mnist-w2"])["PET_ROLE"] == "ps:1"
    assert pods["mnist-w2"]["resources"]["limits"] == {"cpu": "1", "memory": "4Gi"}


def test_the_tf_runtime_client_s_post_starts_the_image_s_program(
    site: Site, coordinator: Running, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    write_token(token_file, token_of(coordinator.client().create_token(TokenRequest(Scope.SUBMIT)).token))
    where = ("--master", coordinator.url, "--token-file", str(token_file))
    what = ("--worker-num", "2", "--image", "team/trainer:1", "--task", "mnist")
    said = site.run(sys.executable, str(EXAMPLES / "post.py"), *where, *what)
    assert said == "mnist is accepted: waiting for an operator\n"
    pods = site.settle()
    assert sorted(pods) == ["mnist-w1", "mnist-w2"]
    assert pods["mnist-w1"]["command"] == ["pliant", "run", "--env", "tf"]
    assert coordinator.client().submission("mnist").state.value == "created"


def test_torchelastic_s_manifest_starts_pods_with_two_workers_each(site: Site, jobs_plane: ControlPlane) -> None:
    jobs_plane.kubectl("-n", site.namespace, "apply", "-f", str(EXAMPLES / "torchelastic.yaml"))
    pods = site.settle()
    assert sorted(pods) == ["imagenet-w1", "imagenet-w2"]
    assert {environment(each)["PET_NPROC_PER_NODE"] for each in pods.values()} == {"2"}
    written = yaml.safe_load((EXAMPLES / "torchelastic.yaml").read_text(encoding="utf-8"))["spec"]
    assert written["workers"].items() <= site.job("imagenet")["spec"]["workers"].items()


def test_kungfu_s_resize_by_a_client_changes_the_number_of_pods(site: Site, jobs_plane: ControlPlane) -> None:
    jobs_plane.kubectl("-n", site.namespace, "apply", "-f", str(EXAMPLES / "digits.yaml"))
    assert sorted(site.settle()) == ["digits-w1", "digits-w2"]
    resize = (sys.executable, str(EXAMPLES / "resize.py"), "digits", "--namespace", site.namespace)
    assert site.run(*resize, "--schedule", "0:4") == "step 0: 4 workers\n"
    assert site.job("digits")["spec"]["workers"]["target"] == 4
    assert len(site.settle()) == 4
    assert site.run(*resize, "--schedule", "0:4") == ""  # nothing to do
