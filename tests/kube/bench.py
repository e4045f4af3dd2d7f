"""`make bench-kube`: the operator with many jobs and one large job, on a real API server with fake nodes.

The API server, its controllers, the scheduler, the coordinator and the operator are real processes. No kubelet runs:
fake nodes report pods as running, and `Agents` joins and leaves for them. Prints a table and, as its last line, one
JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx2

from e2e.running import Running, start, wait_for
from kube.api.test_elastic_job import elastic_job
from kube.cluster import programs
from kube.cluster.control_plane import ControlPlane, control_plane
from kube.cluster.fake_nodes import FakeNodes
from pliant.client import Client
from pliant.core.messages import AgentJoin, AgentLeave, Code
from pliant.core.model.names import AgentId
from pliant.errors import Refused
from pliant.kube.manifests.crd import custom_resource_definition

PATIENCE_S = 3600.0  # no figure fails the run; only a change that never ends does
LOOK_S = 0.2
REPORT_S = 11.0  # the operator sends its counters every 10 s
NODES = 20
SPACE = "bench"
JOBS = f"/apis/pliant.dev/v1alpha1/namespaces/{SPACE}/elasticjobs"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
PROGRAM = str(Path(sys.executable).with_name("pliant"))
TICKS = os.sysconf("SC_CLK_TCK")
WHOLE = {"jobs": 200, "workers": 8, "pods": 1000, "deleted": 100}


class Agents:
    """The agents of all pods: each joins when its pod runs, and leaves when it is asked to or its pod goes."""

    def __init__(self, plane: ControlPlane, client: Client) -> None:
        self._plane = plane
        self._client = client
        self._http = plane.http()
        self._over = threading.Event()
        self._senders = ThreadPoolExecutor(4)
        self._lock = threading.Lock()
        self.joined: set[str] = set()
        self.running: set[str] = set()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    @contextmanager
    def at_work(self) -> Iterator[Agents]:
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._senders.shutdown(cancel_futures=True)

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                listed = self._http.get(PODS).raise_for_status().json()
                with self._lock:
                    self.running.clear()
                for pod in listed["items"]:
                    self._note("ADDED", pod)
                watch = {
                    "watch": "1",
                    "timeoutSeconds": "300",
                    "resourceVersion": listed["metadata"]["resourceVersion"],
                }
                with self._http.stream("GET", PODS, params=watch, timeout=330) as answer:
                    for line in answer.iter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR" or self._over.is_set():
                            break
                        self._note(event["type"], event["object"])
            except (httpx2.HTTPError, RuntimeError):
                self._over.wait(0.5)

    def _note(self, what: str, pod: dict[str, Any]) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        key = f"{SPACE}.{labels['pliant.dev/job']}"
        is_gone = what == "DELETED" or "deletionTimestamp" in pod["metadata"]
        runs = pod["status"].get("phase") == "Running" and not is_gone
        with self._lock:
            (self.running.add if runs else self.running.discard)(name)
        if runs and name not in self.joined:
            self.joined.add(name)
            self._senders.submit(self._send, key, AgentJoin(AgentId(name), 1, "10.0.0.1", name, "1"))
        elif is_gone and name in self.joined:
            self.joined.discard(name)
            self._senders.submit(self._send, key, AgentLeave(AgentId(name)))

    def _send(self, key: str, command: AgentJoin | AgentLeave) -> None:
        try:
            self._client.send(key, command)
        except Refused as error:
            if error.code != Code.NO_JOB:  # its job has ended
                raise

    def leave_as_asked(self, job: str) -> None:
        """Let the agents of one job go that the operator asked to leave."""
        for agent in self._client.job(f"{SPACE}.{job}").agents:
            if agent.draining and agent.id in self.joined:
                self.joined.discard(agent.id)
                self._client.send(f"{SPACE}.{job}", AgentLeave(agent.id))
                body = {"status": {"phase": "Succeeded"}}
                headers = {"content-type": "application/merge-patch+json"}
                self._http.patch(f"{PODS}/{agent.id}/status", json=body, headers=headers)


@dataclass
class Bench:
    """One cluster with its coordinator and operator, and the figures so far."""

    plane: ControlPlane
    coordinator: Running
    operator: subprocess.Popen[bytes]
    agents: Agents
    figures: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.figures[name] = round(value, 3)
        print(f"  {name:42} {value:12.3f}", flush=True)

    def until(self, holds: Callable[[], bool], what: str) -> float:
        """Wait, and return the seconds that it took."""
        began = time.monotonic()

        def looked() -> bool:
            assert self.operator.poll() is None, "the operator ended"
            return holds()

        wait_for(looked, what, PATIENCE_S, look_s=LOOK_S)
        return time.monotonic() - began

    def calls(self) -> int:
        """Return the calls of the operator to the API server so far, watches not counted."""
        threading.Event().wait(REPORT_S)
        found = re.findall(r"^pliant_operator_api_calls_total\{.*\} (\S+)$", self._metrics(), re.MULTILINE)
        return int(sum(float(each) for each in found))

    def _metrics(self) -> str:
        return self.coordinator.admin.get("/metrics").text

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.operator.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self) -> float:
        text = Path(f"/proc/{self.operator.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1024

    # ---------------------------------------------------------------------------------------------- the phases

    def many_jobs(self, jobs: int, workers: int) -> None:
        before = self.calls()
        began = time.monotonic()
        for number in range(jobs):
            self.create(f"j{number}", workers, workers + 4)
        self.until(lambda: len(self.agents.running) == jobs * workers, "all pods")
        self.note("jobs_started_s", time.monotonic() - began)
        self.settle()
        self.note("api_calls_per_pod_at_start", (self.calls() - before) / (jobs * workers))

    def idle(self, seconds: float) -> None:
        calls, cpu, began = self.calls(), self.cpu_s(), time.monotonic()
        threading.Event().wait(seconds)
        took = time.monotonic() - began
        self.note("idle_cpu_percent", 100 * (self.cpu_s() - cpu) / took)
        self.note("idle_memory_mib", self.memory_mib())
        self.note("idle_api_calls_per_s", (self.calls() - calls) / (took + REPORT_S))

    def resize(self, job: str, workers: int) -> None:
        """Scale one job up and down again, and count the calls that each takes beyond those of an idle operator."""
        idle = self.figures["idle_api_calls_per_s"]
        for name, size in (("grow", workers + 4), ("shrink", workers)):
            before, began = self.calls(), time.monotonic()
            self.plane.kubectl("-n", SPACE, "scale", f"elasticjob/{job}", f"--replicas={size}")
            asked = time.monotonic()

            def holds(size: int = size) -> bool:
                self.agents.leave_as_asked(job)
                own = [each for each in list(self.agents.running) if each.startswith(f"{job}-w")]
                return len(own) == size

            self.until(holds, f"{size} pods of {job}")
            self.note(f"{name}_by_4_s", time.monotonic() - asked)
            calls = self.calls()
            self.note(f"{name}_by_4_api_calls", calls - before - idle * (time.monotonic() - began))

    def delete_all(self, name: str) -> None:
        began = time.monotonic()
        self.plane.http().delete(JOBS).raise_for_status()
        self.until(lambda: not self.plane.http().get(JOBS, params={"limit": "1"}).json()["items"], "no jobs")
        self.until(lambda: not self.agents.running, "no pods")
        self.note(name, time.monotonic() - began)

    def large_job(self, pods: int, deleted: int) -> None:
        began = time.monotonic()
        self.create("large", pods, pods)
        self.until(lambda: len(self.agents.running) == pods, "all pods of the large job")
        self.note("large_job_started_s", time.monotonic() - began)
        self.settle()
        before, victims = self.calls(), sorted(self.agents.running)[:deleted]
        began = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            for answer in pool.map(lambda name: self.plane.http().delete(f"{PODS}/{name}"), victims):
                answer.raise_for_status()
        gone = set(victims)
        self.until(lambda: len(self.agents.running - gone) == pods, "the replacements")
        self.note("deleted_pods_remade_s", time.monotonic() - began)
        self.note("api_calls_per_remade_pod", (self.calls() - before) / deleted)
        self.note("large_job_memory_mib", self.memory_mib())

    def create(self, job: str, target: int, most: int) -> None:
        made = elastic_job(job, workers={"min": 1, "max": most, "target": target})
        self.plane.http().post(JOBS, json=made).raise_for_status()

    def settle(self) -> None:
        """Wait until the operator has noted every agent, and nothing is left to do."""

        def quiet() -> bool:
            found = self.plane.http().get(PODS).json()["items"]
            return all("pliant.dev/joined" in (each["metadata"].get("annotations") or {}) for each in found)

        self.until(quiet, "the agents of all pods at the operator")


@contextmanager
def operator_process(plane: ControlPlane, coordinator: Running, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator as a process of its own."""
    command = [PROGRAM, "kube", "operator", "--coordinator", coordinator.url, "--kubeconfig", str(plane.kubeconfig)]
    with log.open("wb") as out:
        env = {**os.environ, "PLIANT_TOKEN_FILE": str(coordinator.home / "token")}
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@click.command()
@click.option("--jobs", type=click.IntRange(1), default=WHOLE["jobs"], show_default=True)
@click.option(
    "--workers", type=click.IntRange(1, 100), default=WHOLE["workers"], show_default=True, help="Of each job."
)
@click.option(
    "--pods", type=click.IntRange(1, 4096), default=WHOLE["pods"], show_default=True, help="Of the large job."
)
@click.option(
    "--deleted", type=click.IntRange(1), default=WHOLE["deleted"], show_default=True, help="At once, of these."
)
@click.option("--idle-s", type=click.FloatRange(1.0), default=60.0, show_default=True)
def main(jobs: int, workers: int, pods: int, deleted: int, idle_s: float) -> None:
    """Measure the operator, and print one JSON object at the end."""
    if why := programs.why_not_buildable():
        print(json.dumps({"ok": True, "skipped": why}), flush=True)
        return
    programs.main()
    sizes = {"jobs": jobs, "workers": workers, "pods": pods, "deleted": min(deleted, pods)}
    folder = Path(tempfile.mkdtemp(prefix="pliant-bench-kube-"))
    figures: dict[str, float] = {}
    try:
        with (
            control_plane(folder / "plane", scheduler=True) as plane,
            start(home=folder / "coordinator", lease_ttl_s=3600.0) as coordinator,
        ):
            plane.apply(custom_resource_definition())
            plane.kubectl("wait", "--for=condition=Established", "crd/elasticjobs.pliant.dev", "--timeout=60s")
            plane.namespace(SPACE)
            client = coordinator.client(patience_s=60.0)
            with (
                FakeNodes(plane, NODES, "bench"),
                Agents(plane, client).at_work() as agents,
                operator_process(plane, coordinator, folder / "operator.log") as operator,
            ):
                bench = Bench(plane, coordinator, operator, agents, figures)
                bench.many_jobs(jobs, workers)
                bench.idle(idle_s)
                bench.resize("j0", workers)
                bench.delete_all("jobs_deleted_s")
                bench.large_job(pods, sizes["deleted"])
                bench.delete_all("large_job_deleted_s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"ok": True, "sizes": sizes, "is_whole": sizes == WHOLE, **figures}), flush=True)


if __name__ == "__main__":
    main()
