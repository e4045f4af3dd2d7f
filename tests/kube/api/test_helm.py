"""The Helm chart, rendered and installed by Helm itself on a real API server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.cluster.control_plane import ControlPlane, control_plane
from kube.cluster.programs import program, version, why_not_built
from pliant.kube.manifests.install import Installation, manifests
from tidy.files import ROOT

CHART = str(ROOT / "deploy" / "chart")
SYSTEM = "pliant-system"
IMAGE = "registry/pliant:7"
ETCD = {"store": "etcd:e0:2379,e1:2379", "replicas": 2, "etcd": {"secret": "pliant-etcd", "user": "pliant"}}
VALUES: dict[str, tuple[dict[str, Any], Installation]] = {
    "plain": ({}, Installation(IMAGE)),
    "a volume": (
        {"volume": {"size": "5Gi", "storageClassName": "fast"}},
        Installation(IMAGE, storage="5Gi", storage_class="fast"),
    ),
    "two coordinators": (
        ETCD,
        Installation(
            IMAGE, store="etcd:e0:2379,e1:2379", coordinators=2, etcd_secret="pliant-etcd", etcd_user="pliant"
        ),
    ),
    "submissions": (
        {"submissions": {"images": ["team/*"], "namespace": "default"}},
        Installation(IMAGE, submissions=("team/*",)),
    ),
    "no TLS": ({"tlsSecret": ""}, Installation(IMAGE, tls_secret=None)),
}


class Helm:
    """Helm with the credentials of a cluster and folders of its own."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self._folder = folder
        self._env = {**os.environ, "HOME": str(folder), "KUBECONFIG": str(kubeconfig or folder / "none")}

    def run(self, *words: str, values: dict[str, Any] | None = None) -> str:
        command = [program("helm"), *words]
        if values is not None:
            path = self._folder / "values.yaml"
            path.write_text(yaml.safe_dump({"image": IMAGE, **values}), encoding="utf-8")
            command += ["--values", str(path)]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of its own: Helm adopts no object that something else has made."""
    if why := why_not_built():
        pytest.skip(why)
    with control_plane(tmp_path_factory.mktemp("helm")) as started:
        yield started


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what the cluster gets of the objects: options with `=` as two words, no pull policy of containers."""
    found = json.loads(json.dumps(objects))
    for each in found:
        for container in each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            container["args"] = [part for word in container["args"] for part in word.split("=", 1)]
            container.pop("imagePullPolicy", None)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.mark.parametrize("name", VALUES)
def test_the_chart_makes_what_install_prints(tmp_path: Path, name: str) -> None:
    if why := why_not_built():
        pytest.skip(why)
    values, same = VALUES[name]
    where = ("--namespace", SYSTEM, "--include-crds", "--kube-version", version())
    rendered = Helm(tmp_path).run("template", "pliant", CHART, *where, values=values)
    made = by_name([each for each in yaml.safe_load_all(rendered) if each])
    printed = by_name(manifests(same))
    del printed["Namespace", SYSTEM]  # `helm install --create-namespace` makes it
    assert made == printed


def test_helm_installs_the_chart_changes_it_and_removes_it(own_plane: ControlPlane, tmp_path: Path) -> None:
    helm = Helm(tmp_path, own_plane.kubeconfig)
    where = ("--namespace", SYSTEM)
    helm.run("install", "pliant", CHART, *where, "--create-namespace", values={})
    assert own_plane.get("-n", SYSTEM, "deployment", "pliant")["spec"]["replicas"] == 1
    assert own_plane.get("-n", SYSTEM, "pvc", "pliant")["spec"]["accessModes"] == ["ReadWriteOncePod"]
    own_plane.kubectl("wait", "--for=condition=Established", "crd/elasticjobs.pliant.dev", "--timeout=60s")
    own_plane.kubectl("apply", "-f", str(ROOT / "examples" / "kubernetes" / "digits.yaml"))

    helm.run("upgrade", "pliant", CHART, *where, values=ETCD)
    assert own_plane.get("-n", SYSTEM, "statefulset", "pliant")["spec"]["replicas"] == 2
    assert own_plane.kubectl("-n", SYSTEM, "get", "deployments", "-o", "name") == ""
    assert own_plane.get("elasticjob", "digits")["spec"]["workers"]["target"] == 2

    helm.run("uninstall", "pliant", *where, "--wait")
    left = own_plane.kubectl("-n", SYSTEM, "get", "statefulsets,services,serviceaccounts,pvc", "-o", "name").split()
    assert left == ["serviceaccount/default"]
    assert own_plane.get("elasticjob", "digits"), "Helm never removes the definition: jobs outlive it"
