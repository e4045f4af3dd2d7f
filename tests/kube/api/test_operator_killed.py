"""The operator killed at every call that writes, on a real API server with a real coordinator.

Fake nodes report pods as running. The test acts as the agent of each pod and as its member, so that every pod has
something to lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from e2e.examples import TERMS
from e2e.running import Running, start, wait_for
from kube.api.test_elastic_job import PATH, create, elastic_job
from kube.cluster.control_plane import ControlPlane
from kube.cluster.fake_nodes import FakeNodes
from pliant.client import Client
from pliant.core.messages import AgentJoin, AgentLeave, Command, Join, Leave
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import PliantError, Refused
from pliant.kube.api import KubeApi
from pliant.kube.operator import Operator, make_operator
from pliant.wire import api

PATIENCE_S = 120.0
TURNS_MAX = 60
MERGE = {"content-type": "application/merge-patch+json"}

# Hundreds of lives of an operator: minutes on a free machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Running]:
    with start(home=tmp_path / "home", lease_ttl_s=3600.0) as running:
        yield running


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[str]:
    with FakeNodes(plane, 1, "killed") as nodes:
        yield nodes.names[0]


class Killed(BaseException):
    """The operator's process ends here."""


@dataclass
class Fuse:
    """The call at which an operator dies: before it is sent, or before its answer is read. 0: it does not die."""

    left: int = 0
    answered: bool = False

    def pass_through(self, call: Callable[[], Any], what: str) -> Any:
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                if self.answered:
                    with suppress(PliantError):  # it dies before it reads a refusal, too
                        call()
                raise Killed(what)
        return call()


class MortalApi(KubeApi):
    """The API server as an operator sees it. A deletion of a pod with members is noted."""

    def __init__(self, site: Site, fuse: Fuse) -> None:
        super().__init__(site.http)
        self._site = site
        self._fuse = fuse

    def _request(self, method: str, path: str, **rest: Any) -> httpx2.Response:
        if method == "GET":
            return super()._request(method, path, **rest)
        if method == "DELETE" and "/pods/" in path:
            self._site.note_deletion(path.rpartition("/")[2])
        found: httpx2.Response = self._fuse.pass_through(
            lambda: super(MortalApi, self)._request(method, path, **rest), f"{method} {path}"
        )
        return found


class MortalClient(Client):
    """The coordinator as an operator sees it."""

    def __init__(self, coordinator: Running, fuse: Fuse) -> None:
        super().__init__([coordinator.url], coordinator.token)
        self._fuse = fuse

    def send(self, job: str, command: Command, patience_s: float | None = None) -> api.Done:
        done: api.Done = self._fuse.pass_through(
            lambda: super(MortalClient, self).send(job, command, patience_s), type(command).__name__
        )
        return done

    def create_token(self, request: api.TokenRequest) -> api.CreatedToken:
        made: api.CreatedToken = self._fuse.pass_through(
            lambda: super(MortalClient, self).create_token(request), "create_token"
        )
        return made

    def delete(self, name: str, ended_before: float | None = None) -> api.Done:
        done: api.Done = self._fuse.pass_through(lambda: super(MortalClient, self).delete(name, ended_before), "delete")
        return done


class Site:
    """One namespace with its coordinator, on which operators live and die."""

    def __init__(self, plane: ControlPlane, namespace: str, coordinator: Running, node: str = "") -> None:
        self.plane = plane
        self.http = plane.http()
        self.namespace = namespace
        self.job = ""
        self._node = node
        self._coordinator = coordinator
        self.client = coordinator.client()
        self.names: set[str] = set()  # of every pod that ever was
        self.broken: list[str] = []

    # ------------------------------------------------------------------------------------------ the cluster

    def begin(self, job: str, target: int) -> None:
        self.job = job
        container = {"name": "worker", "image": "none:1", "command": ["pliant", "run", "x.py"]}
        spec = {"containers": [container], **({"nodeName": self._node} if self._node else {})}
        workers = {"min": 1, "max": 4, "target": target, "template": {"spec": spec}}
        create(self.plane, self.namespace, elastic_job(job, workers=workers)).raise_for_status()

    def patch(self, spec: dict[str, Any]) -> None:
        path = f"{PATH.format(self.namespace)}/{self.job}"
        self.http.patch(path, json={"spec": spec}, headers=MERGE).raise_for_status()

    def delete(self) -> None:
        self.http.delete(f"{PATH.format(self.namespace)}/{self.job}").raise_for_status()

    def exists(self) -> bool:
        return self.http.get(f"{PATH.format(self.namespace)}/{self.job}").status_code != 404

    def pods(self) -> dict[str, dict[str, Any]]:
        listed = self.http.get(f"/api/v1/namespaces/{self.namespace}/pods").json()["items"]
        found = {pod["metadata"]["name"]: pod for pod in listed}
        self.names |= found.keys()
        return found

    def live(self) -> list[str]:
        ended = ("Succeeded", "Failed")
        return [name for name, pod in self.pods().items() if pod["status"]["phase"] not in ended]

    # -------------------------------------------------------------------------------------- agents and members

    @property
    def key(self) -> str:
        return f"{self.namespace}.{self.job}"

    def status(self) -> api.JobStatus | None:
        try:
            return self.client.job(self.key)
        except Refused:
            return None

    def note_deletion(self, pod: str) -> None:
        found = self.status()
        if found is None or found.job.state.ended:
            return
        members = [each.id for each in found.members if each.agent == pod]
        if members:
            self.broken.append(f"{pod} was deleted while {members} were in the job")

    def play(self) -> None:
        """Do what the agent and the member of each pod would do now."""
        found = self.status()
        if found is None or found.job.state.ended:
            return
        agents = {str(each.id): each.draining for each in found.agents}
        members = {str(each.agent): each.id for each in found.members}
        for name, pod in self.pods().items():
            is_going = agents.get(name, False) or "deletionTimestamp" in pod["metadata"]
            if name not in agents:
                was_there = "pliant.dev/joined" in pod["metadata"].get("annotations", {})
                if pod["status"]["phase"] == "Running" and not is_going and not was_there:
                    self.client.send(self.key, AgentJoin(AgentId(name), 1, "10.0.0.1", name, "1"))
                    self.client.send(self.key, Join(MemberId(f"{name}.1"), AgentId(name), TERMS))
            elif is_going:
                if name in members:
                    self.client.send(self.key, Leave(members[name], 0, "it was asked to"))
                self.client.send(self.key, AgentLeave(AgentId(name)))
                path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
                self.http.patch(path, json={"status": {"phase": "Succeeded"}}, headers=MERGE)

    def is_settled(self, wanted: int) -> bool:
        found = self.status()
        if len(self.live()) != wanted:
            return False
        if not wanted:
            return True
        assert found is not None
        return len(found.agents) == len(found.members) == wanted and not any(each.draining for each in found.agents)

    # ----------------------------------------------------------------------------------------------- operators

    def operator(self, fuse: Fuse) -> tuple[Operator, MortalClient]:
        client = MortalClient(self._coordinator, fuse)
        return make_operator(MortalApi(self, fuse), client, self._coordinator.url, None), client

    def settle(self, wanted: int, *, gone: bool = False) -> None:
        """Run a new operator until the pods are as wanted, and stay so."""
        operator, client = self.operator(Fuse())

        def turn() -> bool:
            operator.turn(fresh=True)
            self.play()
            return self.is_settled(wanted) and (not gone or not self.exists())

        wait_for(turn, f"{wanted} pods", PATIENCE_S)
        before = sorted(self.live())
        operator.turn(fresh=True)
        assert sorted(self.live()) == before
        client.close()
        assert not self.broken, self.broken

    def die_at(self, call: int, *, answered: bool, is_done: Callable[[], bool]) -> bool:
        """Run an operator that dies at its Nth writing call. Return False if the change was over before."""
        fuse = Fuse(call, answered)
        operator, client = self.operator(fuse)
        try:
            for _ in range(TURNS_MAX):
                operator.turn(fresh=True)
                self.play()
                if is_done():
                    return False
        except Killed:
            return True
        finally:
            client.close()
        raise AssertionError("the operator does not come to rest")


@dataclass(frozen=True)
class Change:
    """A change, and the pods that the job has afterwards."""

    name: str
    make: Callable[[Site], None]
    wanted: int
    gone: bool = False


CHANGES = (
    Change("grow", lambda site: site.patch({"workers": {"target": 4}}), 4),
    Change("shrink", lambda site: site.patch({"workers": {"target": 1}}), 1),
    Change("suspend", lambda site: site.patch({"suspend": True}), 0),
    Change("resume", lambda site: site.patch({"suspend": False}), 1),
    Change("delete", lambda site: site.delete(), 0, gone=True),
)
PLACES = 5  # two at the beginning, two for the growth, one after the suspension


@pytest.mark.parametrize("answered", [False, True], ids=["before the call", "after the call"])
def test_an_operator_killed_at_every_call_asks_first_and_makes_each_pod_once(
    jobs_plane: ControlPlane, namespace: str, coordinator: Running, node: str, answered: bool
) -> None:
    site = Site(jobs_plane, namespace, coordinator, node)
    call, deaths = 1, 0
    open_changes = {change.name for change in CHANGES}
    while open_changes:
        site.begin(f"job-{call}", 2)
        site.settle(2)
        for change in CHANGES:
            change.make(site)
            if change.name in open_changes:

                def is_done(change: Change = change) -> bool:
                    return site.is_settled(change.wanted) and (not change.gone or not site.exists())

                if site.die_at(call, answered=answered, is_done=is_done):
                    deaths += 1
                else:
                    open_changes.discard(change.name)
            site.settle(change.wanted, gone=change.gone)
        made = {each for each in site.names if each.startswith(f"job-{call}-")}
        assert len(made) == PLACES, f"two pods for one place: {sorted(made)}"
        print(f"killed at call {call}: left are {sorted(open_changes)}", flush=True)
        call += 1
    print(f"{deaths} operators were killed, at up to {call - 2} calls of a change", flush=True)
    assert deaths > 2 * len(CHANGES)


def test_an_operator_without_its_coordinator_creates_and_deletes_nothing(
    jobs_plane: ControlPlane, namespace: str, coordinator: Running
) -> None:
    site = Site(jobs_plane, namespace, coordinator)
    site.begin("job", 2)
    operator, own_client = site.operator(Fuse())

    def both() -> bool:
        operator.turn(fresh=True)
        return len(site.live()) == 2

    wait_for(both, "two pods", PATIENCE_S)
    own_client.close()
    before = sorted(site.live())
    coordinator.kill()
    site.patch({"workers": {"target": 4}})
    client = coordinator.client(patience_s=0.5)
    make_operator(KubeApi(site.http), client, coordinator.url, None).turn(fresh=True)
    assert sorted(site.live()) == before
    conditions = jobs_plane.get("-n", namespace, "elasticjob", "job")["status"]["conditions"]
    assert [each["status"] for each in conditions if each["type"] == "CoordinatorReady"] == ["False"]
