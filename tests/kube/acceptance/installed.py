"""Pliant installed on the test cluster as its users install it, and its jobs seen from outside."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from e2e.running import wait_for
from kube.cluster.cluster import KubeCluster
from kube.cluster.images import TRAINER
from kube.cluster.node import Node
from kube.cluster.programs import cache
from tidy.files import ROOT

SYSTEM = "pliant-system"
SCRIPT = Path(__file__).with_name("training.py")
PAGE = ROOT / "docs" / "start-kubernetes.md"
PATIENCE_S = 600.0
LOOK_S = 0.3
STEPS = 2048
STEP_S = 0.2
MEMORY = "300Mi"


def wait_until(true: Callable[[], object], what: str) -> None:
    """Wait for a state of the cluster. Looks are rare: the nodes need the processors."""
    wait_for(true, what, PATIENCE_S, look_s=LOOK_S)


class Installed:
    """The coordinator and the operator in `pliant-system`, installed by the commands of the tutorial."""

    def __init__(self, cluster: KubeCluster, folder: Path) -> None:
        self.cluster = cluster
        self.plane = cluster.plane
        self.folder = folder
        self.workload = "deployment/pliant"
        self._token = ""
        self._context: ssl.SSLContext | None = None

    def install(self) -> None:
        """Run the section "Install" of the tutorial. The images are imported, and a volume is made for the claim."""
        self._make_volume()
        run_commands(self, "2. Install")

    def use(self, workload: str) -> None:
        """Ask the coordinators of another installation from now on."""
        self.workload, self._token = workload, ""

    def shell(self, command: str) -> str:
        """Run a command of a page in the repository, with the programs and credentials of a user; return its output."""
        path = f"{Path(sys.executable).parent}:{cache()}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "HOME": str(self.folder), "KUBECONFIG": str(self.plane.kubeconfig)}
        env.pop("XDG_STATE_HOME", None)
        command = f"set -e -o pipefail\n{command}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=3600, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait_ready(self) -> None:
        self.plane.kubectl("-n", SYSTEM, "rollout", "status", self.workload, "--timeout=280s")

    def _make_volume(self) -> None:
        """Make a volume on the disk of the first node: this cluster has no storage of its own."""
        place = self.folder / "volume"
        place.mkdir(exist_ok=True)
        node = self.cluster.nodes[0].name
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOncePod"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": SYSTEM, "name": "pliant"},
            "local": {"path": str(place)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }
        self.plane.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pliant-home"}, "spec": spec}
        )

    def ask(self, path: str) -> dict[str, Any]:
        """Return an answer of the leading coordinator's API. Raises httpx2.HTTPError."""
        if not self._token:
            self._token = self.inside("cat", "/var/lib/pliant/home/token").strip()
        answers = self._get(path, {"authorization": f"Bearer {self._token}"})
        for answer in answers.values():
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
        raise httpx2.HTTPError("; ".join(each.text for each in answers.values()) or "no coordinator runs")

    def leader(self) -> str:
        """The pod whose coordinator leads; empty if none does."""
        try:
            answers = self._get("/healthz", {})
        except httpx2.HTTPError:
            return ""
        return next((pod for pod, answer in answers.items() if answer.status_code == 200), "")

    def _get(self, path: str, headers: dict[str, str]) -> dict[str, httpx2.Response]:
        """Ask every coordinator at the address of its pod. The certificate has the name localhost."""
        if self._context is None:
            self._context = ssl.create_default_context(cafile=str(self.state / "ca" / "ca.pem"))
        name = {"sni_hostname": "localhost"}
        with httpx2.Client(verify=self._context, timeout=20.0, trust_env=False) as client:
            return {
                pod: client.get(f"https://{address}:7711{path}", headers=headers, extensions=name)
                for pod, address in self.coordinator_pods().items()
            }

    @property
    def state(self) -> Path:
        """The folder of the user's CA and certificates."""
        return self.folder / ".local" / "state" / "pliant"

    def inside(self, *command: str) -> str:
        """Run a program beside a coordinator."""
        return self.plane.kubectl("-n", SYSTEM, "exec", self.workload, "-c", "coordinator", "--", *command)

    def pliant(self, *args: str) -> str:
        """Run a command of Pliant beside a coordinator, with its admin token."""
        return self.inside("pliant", *args, "--coordinator", "https://localhost:7711")

    def coordinator_pods(self) -> dict[str, str]:
        """The coordinators' pods that run and are not being deleted, with their addresses."""
        listed = self.plane.http().get(f"/api/v1/namespaces/{SYSTEM}/pods").raise_for_status().json()["items"]
        return {
            each["metadata"]["name"]: each["status"]["podIP"]
            for each in listed
            if "deletionTimestamp" not in each["metadata"] and "podIP" in each["status"]
        }


class Job:
    """One ElasticJob."""

    def __init__(self, installed: Installed, namespace: str, name: str) -> None:
        self.installed = installed
        self.plane = installed.plane
        self.namespace = namespace
        self.name = name
        self.key = f"{namespace}.{name}"

    def kubectl(self, *args: str, code: int | None = 0) -> str:
        return self.plane.kubectl("-n", self.namespace, *args, code=code)

    def object(self) -> dict[str, Any]:
        path = f"/apis/pliant.dev/v1alpha1/namespaces/{self.namespace}/elasticjobs/{self.name}"
        found: dict[str, Any] = self.plane.http().get(path).raise_for_status().json()
        return found

    def patch(self, spec: dict[str, Any]) -> None:
        """Change the specification."""
        self.kubectl("patch", "elasticjob", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def condition(self, kind: str) -> tuple[str, str, str]:
        """The status, the reason and the message of a condition."""
        found = self.status().get("conditions", [])
        return next(
            ((each["status"], each["reason"], each["message"]) for each in found if each["type"] == kind), ("", "", "")
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.object().get("status", {})
        return found

    def active(self) -> int:
        return int(self.status().get("workers", {}).get("active", 0))

    def step(self) -> int:
        """The step of the job; 0 while the coordinator is away."""
        try:
            return int(self.installed.ask(f"/v1/jobs/{self.key}")["job"]["step"])
        except (httpx2.HTTPError, ValueError):
            return 0

    def pods(self) -> dict[str, dict[str, Any]]:
        path, selector = f"/api/v1/namespaces/{self.namespace}/pods", f"pliant.dev/job={self.name}"
        listed = self.plane.http().get(path, params={"labelSelector": selector}).raise_for_status().json()["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    def running(self) -> dict[str, str]:
        """The pods that run and are not being deleted, each with its node."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in self.pods().items()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def wait_active(self, number: int) -> None:
        """Wait until this many workers train together and commit steps, and the object says so."""
        wait_until(lambda: self.trains(number), f"{number} active workers of {self.key}")
        begin = self.step()
        wait_until(lambda: self.step() >= begin + 3 and self.trains(number), f"steps of {number} workers of {self.key}")

    def trains(self, number: int) -> bool:
        """Return whether this many workers are in the world now. Launched ones that did not join yet are not."""
        try:
            found = self.installed.ask(f"/v1/jobs/{self.key}")
        except (httpx2.HTTPError, ValueError):
            return False
        is_whole = sum(each["state"] == "active" for each in found["members"]) == found["job"]["size"] == number
        return found["live"] and is_whole and self.active() == number

    def wait_steps(self, more: int) -> None:
        begin = self.step()
        wait_until(lambda: self.step() >= begin + more, f"{more} more steps of {self.key}")

    def wait_state(self, state: str) -> None:
        wait_until(lambda: self.status().get("state") == state, f"{self.key} to be {state}")

    def scale(self, number: int, code: int = 0) -> str:
        return self.kubectl("scale", f"elasticjob/{self.name}", f"--replicas={number}", code=code)

    def finish(self) -> dict[str, str]:
        """Let the training come to its end, and return the hash that each worker printed."""
        for name in self.running():
            self.kubectl("exec", name, "--", "sh", "-c", ": > /tmp/hurry", code=None)
        self.wait_state("Finished")
        wait_until(lambda: not self.running(), f"the last output of {self.key}")
        found: dict[str, str] = {}
        for name in self.pods():
            for line in self.kubectl("logs", name, code=None).splitlines():
                begin = line.find('{"member"')
                if begin >= 0:
                    found[name] = json.loads(line[begin:])["weights"]
        return found

    def events(self) -> list[dict[str, Any]]:
        """The events of the coordinator's job."""
        lines = self.installed.pliant("events", self.key, "--json").splitlines()
        return [json.loads(line)["event"] for line in lines]

    def describe_growth(self, asked_at: float) -> str:
        """Return when the new pod of a growth and its worker were there, in seconds since it was asked for."""
        youngest = max(self.pods().values(), key=lambda pod: pod["metadata"]["creationTimestamp"])
        [state] = youngest["status"]["containerStatuses"]
        started = datetime.fromisoformat(state["state"]["running"]["startedAt"]).timestamp()  # whole seconds
        times = {"container started": started}
        for what, kind in (("agent", "AgentJoined"), ("worker", "MemberJoined"), ("first step", "WorldEntered")):
            times[what] = next(e["at"] for e in self.events() if e["type"] == kind and e["at"] > asked_at)
        parts = (f"{what} {at - asked_at:.1f} s" for what, at in times.items())
        return f"after kubectl scale: {', '.join(parts)}"

    def world_sizes(self) -> list[int]:
        """The number of members of each world so far."""
        return [len(event["world"]["members"]) for event in self.events() if event["type"] == "WorldFormed"]

    def gone(self) -> list[dict[str, Any]]:
        """The events of members that were lost, and did not leave."""
        return [event for event in self.events() if event["type"] == "MemberGone" and event["how"] != "left"]

    def judge(self, expected: str, lost: Sequence[str] = ()) -> None:
        """Check the promises of an ended job: survivors, samples and bits. `lost` are pods that were killed."""
        hashes = self.finish()
        assert hashes, f"no worker of {self.key} printed its weights"
        assert set(hashes.values()) == {expected}, hashes
        audit = json.loads(self.installed.pliant("audit", self.key, "--json"))
        assert audit["ok"], audit
        assert not audit["lost"], audit
        assert not audit["repeated"], audit
        self.check_members(lost)

    def check_members(self, lost: Sequence[str] = ()) -> None:
        """Check that no member was a second process, and that only the killed ones were lost."""
        joined = Counter(event["member"]["id"] for event in self.events() if event["type"] == "MemberJoined")
        assert [member for member, times in joined.items() if times > 1] == []
        assert [
            event for event in self.gone() if not event["member"].startswith(tuple(f"{pod}-" for pod in lost))
        ] == []
        for name, pod in self.pods().items():
            for state in pod["status"].get("containerStatuses", []):
                assert state["restartCount"] == 0, name


def job_manifest(
    namespace: str,
    name: str,
    low: int,
    high: int,
    target: int,
    *,
    script: Path = SCRIPT,
    servers: int = 0,
    **spec: Any,
) -> list[dict[str, Any]]:
    """The objects of a job that runs a script of the tests. `servers` are parameter servers of a task queue."""
    container = {
        "name": "worker",
        "image": TRAINER,
        "command": ["pliant", "run", f"/code/{script.name}", str(STEPS), str(STEP_S)],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "50m", "memory": MEMORY}, **spec.pop("resources", {})},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    template = {"spec": {"containers": [container], "volumes": [{"name": "code", "configMap": {"name": "code"}}]}}
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "code", "namespace": namespace},
        "data": {script.name: script.read_text(encoding="utf-8")},
    }
    workers: dict[str, Any] = {
        "min": low,
        "max": high,
        "target": target,
        "template": template,
        **spec.pop("workers", {}),
    }
    if servers:
        own = {"count": servers, "template": template}
        spec |= {"strategy": "ParameterServer", "mode": "Tasks", "parameterServers": own}
    job = {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"workers": workers, "podsAfterFinish": "Keep", "drain": {"graceSeconds": 20}, **spec},
    }
    return [code, job]


@contextmanager
def elastic_job(
    installed: Installed,
    name: str,
    low: int,
    high: int,
    target: int,
    *,
    prepare: Callable[[Installed, str], None] | None = None,
    **spec: Any,
) -> Iterator[Job]:
    """Start a job in a namespace of its own, and delete both. The namespace enforces restricted pods.

    `prepare` makes what the job needs in the namespace.
    """
    namespace = f"t-{name}"
    installed.plane.namespace(namespace, **{"pod-security.kubernetes.io/enforce": "restricted"})
    if prepare is not None:
        prepare(installed, namespace)
    job = Job(installed, namespace, name)
    installed.plane.apply(*job_manifest(namespace, name, low, high, target, **spec))
    try:
        yield job
    except BaseException:  # why: shown and raised again
        print(describe(job), flush=True)
        raise
    finally:
        job.kubectl("delete", "elasticjob", "--all", "--timeout=60s", code=None)
        installed.plane.kubectl("delete", "namespace", namespace, "--wait=false", code=None)


def node_with_workers(installed: Installed, job: Job) -> tuple[Node, list[str]]:
    """A node that runs workers of a job and not the coordinator, and the pods of these workers."""
    homes = {name: node for name, node in job.running().items() if node != installed.cluster.nodes[0].name}
    assert homes, "all workers are on the coordinator's node"
    chosen = min(homes.values())
    return installed.cluster.node(chosen), [name for name, node in homes.items() if node == chosen]


def describe(job: Job) -> str:
    """Return the state of a job for the report of a failed test."""
    parts = [
        job.kubectl("get", "elasticjob,pods", "-o", "wide", code=None),
        json.dumps(job.status(), indent=1),
        job.kubectl("get", "events", "--sort-by=.lastTimestamp", code=None)[-3000:],
        *(
            job.plane.kubectl("-n", SYSTEM, "logs", job.installed.workload, "-c", name, "--tail=20", code=None)
            for name in ("operator", "coordinator")
        ),
    ]
    parts += [f"--- {name}\n{job.kubectl('logs', name, '--tail=15', code=None)}" for name in job.pods()]
    return "\n".join(parts)


def undisturbed() -> str:
    """The hash of the weights of one worker that nothing happens to."""
    command = [sys.executable, str(SCRIPT), str(STEPS), "0"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900, check=True)
    return str(json.loads(done.stdout.strip().splitlines()[-1])["weights"])


def commands_of(section: str) -> list[str]:
    """The commands of a section of the tutorial, as they stand there."""
    text = PAGE.read_text(encoding="utf-8")
    [part] = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    assert lines, f"{PAGE.name} has no commands in {section}"
    return lines


def run_commands(installed: Installed, section: str) -> None:
    """Run the commands of a section of the tutorial."""
    for command in commands_of(section):
        print(f"  $ {command}", flush=True)
        installed.shell(command)
