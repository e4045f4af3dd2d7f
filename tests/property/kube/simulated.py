"""A simulated cluster for the operator's decisions: an API server, kubelets, a coordinator, and faults.

It follows the rules that matter to an operator. The API server checks uids, revisions and names. Pods are scheduled,
started and lost by chance. The agent of a pod joins the coordinator, gets members, and leaves when it is asked to.
Operators may act on old observations, and may be killed between any two calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pliant.core.model.job import JobSpec
from pliant.kube import actions as a
from pliant.kube.model import (
    Absent,
    AgentView,
    CoordinatorView,
    ElasticJob,
    JobView,
    Pod,
    Unknown,
    read_settings,
)
from pliant.kube.names import pod_index, pod_name
from pliant.kube.reconcile import SHRINK, Observation, reconcile

Reconcile = Callable[[Observation], Sequence[a.Action]]

NAMESPACE, NAME, STORE = "research", "digits", "store-1"
START = 1_000_000.0
DEAD_NODE = "node-0"  # once lost, it does not return at the end


class Broken(AssertionError):
    """A promise of the operator does not hold."""


class Conflict(Exception):
    """The API server refuses a call, because the object is not as the caller believes."""


def template(image: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", "image": image}]}}


@dataclass
class SimAgent:
    """An agent at the coordinator."""

    members: int = 0
    draining: bool = False
    holds: bool = False


@dataclass
class SimPod:
    """A pod, and its process: `agent_runs` until it ends or its node is lost."""

    pod: Pod
    agent_runs: bool = False
    started_at: float = 0.0


@dataclass
class Cluster:
    """Everything there is. Each change of an object has a new revision."""

    seed: int
    decide: Reconcile = reconcile
    spec: dict[str, Any] = field(default_factory=lambda: {"workers": {"min": 1, "max": 6, "target": 2}})
    image: str = "a"
    now: float = START
    revision: int = 1
    uids: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    exists: bool = True
    generation: int = 1
    object_revision: int = 1
    pods: dict[str, SimPod] = field(default_factory=dict)
    lost_nodes: dict[str, float] = field(default_factory=dict)
    job: JobSpec | None = None
    job_state: str = "waiting"
    target: int = 0
    agents: dict[str, SimAgent] = field(default_factory=dict)
    coordinator_away: bool = False
    seen_names: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    most_wanted: int = 0
    calls: int = 0
    log: list[str] = field(default_factory=list)
    images_that_start: set[str] = field(default_factory=lambda: {"a", "b"})
    template_changed: bool = False
    granted: int | None = None  # None: the job is in no queue

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    # ------------------------------------------------------------------------------------------- the objects

    def _next(self) -> int:
        self.revision += 1
        return self.revision

    def elastic_job(self) -> ElasticJob:
        spec = {**self.spec, "workers": {**self.spec["workers"], "template": template(self.image)}}
        return ElasticJob(
            NAMESPACE,
            NAME,
            "uid-job",
            self.object_revision,
            self.generation,
            START,
            self.deleting,
            self.finalizers,
            read_settings(spec),
            self.status,
        )

    def edit(self, **workers: int) -> None:
        """Change the object as a user does."""
        self.spec = {**self.spec, "workers": {**self.spec["workers"], **workers}}
        self.generation += 1
        self.object_revision = self._next()

    def suspend(self, value: bool) -> None:
        self.spec = {**self.spec, "suspend": value}
        self.generation += 1
        self.object_revision = self._next()

    def change_image(self, image: str) -> None:
        self.image = image
        self.template_changed = True
        self.generation += 1
        self.object_revision = self._next()

    def delete_object(self) -> None:
        self.deleting = True
        self.exists = bool(self.finalizers)
        self.object_revision = self._next()

    # ---------------------------------------------------------------------------------------- observations

    def view(self) -> JobView:
        if self.coordinator_away:
            return Unknown("It does not answer.")
        if self.job is None:
            return Absent(STORE)
        agents = {
            name: AgentView(
                each.members,
                0 if each.draining else each.members,
                each.holds,
                each.draining,
                wanted=int(name in self.staffed()),
                ready=0 if each.draining else each.members,
            )
            for name, each in self.agents.items()
        }
        active = sum(each.active for each in agents.values())
        return CoordinatorView(
            self.job_state,
            "so it is",
            STORE,
            7.0,
            self.target,
            active,
            3,
            10,
            0,
            1,
            0,
            agents,
            active,
            spec=self.job,
            granted=self.granted,
            granted_why="" if self.granted is None else f"{self.granted} for now",
        )

    def observe(self) -> Observation:
        """Read the object, then the pods, then the coordinator."""
        job = self.elastic_job()
        pods = tuple(self._shown(each) for each in self.pods.values())
        return Observation(job, pods, self.revision, self.view(), self.now)

    def _shown(self, each: SimPod) -> Pod:
        since = self.lost_nodes.get(each.pod.node)
        return replace(each.pod, node_lost=since is not None, lost_since=since)

    # -------------------------------------------------------------------------------------------- the calls

    def perform(self, seen: Observation, item: dict[str, int], action: a.Action) -> None:
        """Carry out one call, with the checks of the real servers. `item` has the revision that the caller knows."""
        self.calls += 1
        self.log.append(f"{self.now - START:6.0f} {type(action).__name__} {getattr(action, 'pod', '')}")
        match action:
            case a.AddFinalizer() | a.RemoveFinalizer() | a.WriteStatus() | a.FillTarget():
                self._write(seen, item, action)
            case a.CreateJob(spec, only_settings):
                self._require_coordinator()
                if self.job is not None and self.job_state in ("finished", "failed", "cancelled"):
                    if not only_settings:
                        raise Broken("an ended job was started again")
                    return
                self.job, self.target = spec, self.target or (spec.target.size if spec.target else spec.size_max)
            case a.ResizeJob(target):
                self._require_coordinator()
                self.target = target
            case a.CancelJob():
                self._require_coordinator()
                self._end("cancelled")
            case a.ForgetJob():
                self._require_coordinator()
                self.job = None
            case a.DrainPod(pod):
                self._require_coordinator()
                if pod in self.agents:
                    self.agents[pod].draining = True
            case a.MarkJoined(pod, uid):
                if pod in self.pods and self.pods[pod].pod.uid == uid:
                    self._change(pod, joined=True)
            case a.CreatePod():
                self._create(seen, action)
            case a.DeletePod():
                self._delete(action)
            case a.DeleteObject():
                self.deleting = True
                self.object_revision = self._next()
            case _:
                pass

    def _require_coordinator(self) -> None:
        if self.coordinator_away:
            raise Conflict("the coordinator is away")

    def _write(self, seen: Observation, item: dict[str, int], action: a.Action) -> None:
        if not self.exists or item["revision"] != self.object_revision:
            raise Conflict("the object changed")
        match action:
            case a.AddFinalizer():
                self.finalizers = ("pliant.dev/coordinator",)
            case a.RemoveFinalizer():
                self.finalizers = ()
                if self.deleting:
                    self.exists = False
            case a.WriteStatus(status):
                before = self.status.get("state")
                if before in ("Finished", "Failed", "Cancelled") and status.get("state") != before:
                    raise Broken(f"an ended job became {status.get('state')}")
                self.status = dict(status)
                self.seen_names |= {pod.name for pod in seen.pods}
            case _:
                pass
        item["revision"] = self.object_revision = self._next()

    def _create(self, seen: Observation, action: a.CreatePod) -> None:
        name = pod_name(NAME, action.role, action.index)
        if name in self.pods or not self.exists:
            return
        if self.status.get("state") in ("Finished", "Failed", "Cancelled"):
            raise Broken(f"{name} was created after the end")
        if isinstance(seen.view, Unknown):
            raise Broken(f"{name} was created without a view of the coordinator")
        if name in self.ever and name in self.seen_names:
            raise Broken(f"the name {name} was used again")
        self.ever.add(name)
        self.uids += 1
        role = next(each for each in seen.job.spec.roles if each.role == action.role)
        pod = Pod(name, f"uid-{self.uids}", self._next(), action.role, action.index, action.tier, role.hash, self.now)
        self.pods[name] = SimPod(pod)
        self._check_places()

    def _check_places(self) -> None:
        """No two pods for one place: never more pods that are to stay than were ever wanted."""
        live = [each for each in self.pods.values() if self._counts(each)]
        surge = max(1, self.most_wanted // 4) if self.template_changed else 0
        if len(live) > self.most_wanted + surge:
            names = ", ".join(each.pod.name for each in live)
            raise Broken(f"{len(live)} pods for {self.most_wanted} places: {names}")

    def _counts(self, each: SimPod) -> bool:
        agent = self.agents.get(each.pod.name)
        if each.pod.ended or each.pod.deleting_at is not None or (agent is not None and agent.draining):
            return False
        return agent is not None or not (each.pod.joined or each.pod.node in self.lost_nodes or each.started_at)

    def _delete(self, action: a.DeletePod) -> None:
        each = self.pods.get(action.pod)
        if each is None or each.pod.uid != action.uid:
            return
        if action.revision is not None and each.pod.revision != action.revision:
            raise Conflict("the pod changed")
        agent = self.agents.get(action.pod)
        ended = self.job_state in ("finished", "failed", "cancelled")
        if agent is not None and agent.members and not agent.draining and not ended:
            raise Broken(f"{action.pod} was deleted with members and without consent: {action.why}")
        if action.force:
            del self.pods[action.pod]
        else:
            self._terminate(action.pod)

    def _terminate(self, name: str, grace_s: float = 75.0) -> None:
        each = self.pods[name]
        if each.pod.phase == "Pending" or each.pod.ended:
            del self.pods[name]
        elif each.pod.deleting_at is None:
            self._change(name, deleting_at=self.now + grace_s, deletion_grace_s=grace_s)
            if name in self.agents and each.pod.node not in self.lost_nodes:
                self.agents[name].draining = True  # by SIGTERM

    def _change(self, name: str, **fields: Any) -> None:
        each = self.pods[name]
        each.pod = replace(each.pod, revision=self._next(), **fields)

    def _end(self, state: str) -> None:
        if self.job_state not in ("finished", "failed", "cancelled"):
            self.job_state = state

    # ------------------------------------------------------------------------------------------- the passing time

    def advance(self, seconds: float) -> None:
        """Let kubelets, agents and the coordinator work for a while."""
        self.now += seconds
        for name in [*self.pods]:
            self._live_on(name)
        for name in [*self.agents]:
            self._agent_lives_on(name)
        trains = [each for each in self.agents.values() if each.members]
        if trains and not any(each.holds for each in trains):
            trains[0].holds = True
        for each in trains:
            each.holds = each.holds or self.chance.random() < 0.5
        ended = self.job_state in ("finished", "failed", "cancelled")
        if not ended and self.job is not None:
            self.job_state = "running" if trains else "waiting"

    def _live_on(self, name: str) -> None:
        each = self.pods[name]
        lost = each.pod.node in self.lost_nodes
        if each.pod.phase == "Pending" and not each.pod.scheduled and self.chance.random() < 0.7:
            node = f"node-{self.chance.randrange(3)}"
            if node not in self.lost_nodes:
                self._change(name, scheduled=True, node=node)
        elif each.pod.phase == "Pending" and each.pod.scheduled and not lost and self.chance.random() < 0.7:
            if self.image_of(each.pod) in self.images_that_start:
                self._change(name, phase="Running")
                each.started_at, each.agent_runs = self.now, True
        elif each.agent_runs and not lost and name not in self.agents and not each.pod.joined:
            if self.job_state in ("finished", "failed", "cancelled") or each.pod.deleting_at is not None:
                self._finish(name, "Failed", 3)
            elif self.job is not None and not self.coordinator_away and self.chance.random() < 0.7:
                self.agents[name] = SimAgent()
        if name in self.pods and each.pod.deleting_at is not None and self.now >= each.pod.deleting_at and not lost:
            self.agents.pop(name, None)
            del self.pods[name]

    def image_of(self, pod: Pod) -> str:
        for image in ("a", "b", "bad"):
            spec = {**self.spec, "workers": {**self.spec["workers"], "template": template(image)}}
            if read_settings(spec).workers.hash == pod.hash:
                return image
        return "a"

    def _agent_lives_on(self, name: str) -> None:
        agent, each = self.agents[name], self.pods.get(name)
        if self.coordinator_away:
            return
        if each is None or each.pod.node in self.lost_nodes:
            if self.chance.random() < 0.5:
                del self.agents[name]  # its lease expired
        elif self.job_state in ("finished", "failed", "cancelled"):
            if not each.pod.ended and self.chance.random() < 0.6:
                self._finish(name, "Succeeded", 0)  # and the agent stays on the coordinator's record
        elif agent.draining:
            if self.chance.random() < 0.6:
                del self.agents[name]
                self._finish(name, "Succeeded", 0)
        elif self.granted == 0:
            agent.members, agent.holds = 0, False  # the coordinator let them save and leave
        elif not agent.members and name in self.staffed() and self.chance.random() < 0.8:
            agent.members = 1

    def staffed(self) -> list[str]:
        """The agents that should run a worker: the earliest, up to the target and the spares."""
        most = self.target + (self.job.spares if self.job is not None else 0)
        staying = [name for name, each in self.agents.items() if not each.draining]
        return staying[: most if self.granted is None else min(most, self.granted)]

    def _finish(self, name: str, phase: str, code: int) -> None:
        each = self.pods[name]
        each.agent_runs = False
        if each.pod.deleting_at is not None:
            del self.pods[name]
        else:
            self._change(name, phase=phase, exit_code=code)

    # ----------------------------------------------------------------------------------------------- faults

    def lose_node(self, node: str) -> None:
        self.lost_nodes.setdefault(node, self.now)

    def node_returns(self, node: str) -> None:
        self.lost_nodes.pop(node, None)
        for each in self.pods.values():
            if each.pod.node == node and each.pod.name not in self.agents and each.agent_runs and not each.pod.ended:
                self._finish_later(each)

    def _finish_later(self, each: SimPod) -> None:
        """Fence the agent of a node that was away: the coordinator has given it up."""
        if each.pod.joined:
            each.agent_runs = False
            if each.pod.deleting_at is None:
                self._change(each.pod.name, phase="Failed", exit_code=75)

    def crash_pod(self, name: str, code: int = 1) -> None:
        if name in self.pods and self.pods[name].pod.phase == "Running":
            self.agents.pop(name, None)
            self._finish(name, "Failed", code)

    # ---------------------------------------------------------------------------------------------- operators

    def note_wanted(self) -> None:
        spec = self.elastic_job().spec
        self.most_wanted = max(self.most_wanted, spec.wanted_pods("worker"))

    def operate(self, seen: Observation | None = None, stop_after: int | None = None) -> int:
        """Run one pass of an operator, on an observation of now or of before. It is killed after some calls.

        Return how many calls it made.
        """
        self.note_wanted()
        if not self.exists:
            return 0
        seen = seen or self.observe()
        item = {"revision": seen.job.revision}
        actions = self.decide(seen)
        if isinstance(seen.view, Unknown):
            for each in actions:
                if not isinstance(each, a.WriteStatus | a.PublishEvent | a.AddFinalizer):
                    raise Broken(f"{type(each).__name__} without a view of the coordinator")
        if isinstance(seen.view, CoordinatorView):
            self._check_asked(seen, seen.view, actions)
        made = 0
        for action in actions:
            if stop_after is not None and made >= stop_after:
                break
            made += 1
            try:
                self.perform(seen, item, action)
            except Conflict:
                break
        return made

    # ------------------------------------------------------------------------------------------- the promises

    def _check_asked(self, seen: Observation, view: CoordinatorView, actions: Sequence[a.Action]) -> None:
        """No shrink and no replacement asks an agent to leave that is needed: new pods must have joined before.

        An agent whose worker should run and does not may leave for one pod of the current template that is ready.
        """
        asked = {each.pod for each in actions if isinstance(each, a.DrainPod) and each.why == SHRINK}
        staying = [
            pod
            for pod in seen.pods
            if pod.name in view.agents and not (view.agents[pod.name].draining or pod.ended or pod.deleting_at)
            if pod.name not in asked
        ]
        wanted = seen.job.spec.wanted_pods("worker", view.granted)
        complete = {name for name, agent in view.agents.items() if agent.is_complete}
        idle = {name for name, agent in view.agents.items() if view.granted is not None and not agent.wanted}
        ready = complete | idle  # a full pool has no room for the worker of an idle agent until another one leaves
        if view.granted is not None and asked & ready and len(staying) < wanted:
            raise Broken(f"{sorted(asked)} were asked to leave: {len(staying)} joined pods for {wanted} places")
        if view.granted is None and asked & ready and len(ready - asked) < wanted:
            raise Broken(f"{sorted(asked & ready)} were asked to leave: {len(ready - asked)} ready for {wanted} places")
        new = [pod for pod in staying if pod.name in ready and pod.hash == seen.job.spec.workers.hash]
        if len(staying) < wanted and len(asked - ready) > len(new):
            raise Broken(f"{sorted(asked - ready)} were asked to leave: {len(new)} new pods are ready")

    def settle(self, passes: int = 60) -> None:
        """Let everything work without faults, then check that the cluster is as it should be."""
        self.coordinator_away = False
        if self.granted:
            self.granted += 2  # the last worker of a job in a queue is replaced when another one has room
        for node in [*self.lost_nodes]:
            if node != DEAD_NODE:
                self.node_returns(node)
        for _ in range(passes):
            self.advance(15.0)
            self.operate()
        self.check_settled()

    def check_settled(self) -> None:
        left = [each.pod for each in self.pods.values() if not each.pod.ended]
        if self.deleting:
            if self.exists:
                raise Broken(f"the deleted object is still there; {self._describe()}")
            if self.job is not None:
                raise Broken(f"the coordinator's job is left; {self._describe()}")
            return
        spec = self.elastic_job().spec
        if self.status.get("state") in ("Finished", "Failed", "Cancelled"):
            if left:
                raise Broken(f"pods are left after the end: {self._describe()}")
            return
        wanted = 0 if spec.suspend else spec.wanted_pods("worker", self.granted)
        good = [pod for pod in left if pod.hash == spec.workers.hash and pod.name in self.agents]
        if len(left) != wanted or len(good) != wanted:
            raise Broken(f"{len(left)} pods, {len(good)} of them joined, {wanted} wanted: {self._describe()}")
        if self.decide(self.observe()):
            pending = [type(each).__name__ for each in self.decide(self.observe())]
            if pending not in (["WriteStatus"],) and set(pending) - {"EnsureObject", "EnsureToken", "WriteStatus"}:
                raise Broken(f"there is still something to do: {pending}")

    def _describe(self) -> str:
        pods = "; ".join(
            f"{name} {each.pod.phase} node={each.pod.node} del={each.pod.deleting_at} agent={self.agents.get(name)}"
            for name, each in self.pods.items()
        )
        return f"status={self.status.get('state')} job={self.job_state} {pods}\n" + "\n".join(self.log[-30:])


def index_of(name: str) -> int:
    found = pod_index(NAME, name)
    assert found is not None
    return found[1]


def run_schedule(seed: int, decide: Reconcile = reconcile, steps: int = 60, *, queue: bool = False) -> Cluster:
    """Run a cluster through random faults and settle it. Raises Broken if a promise does not hold.

    With `queue` the job is in a queue, and its grant changes.
    """
    cluster = Cluster(seed, decide)
    chance, grants = random.Random(seed * 7919 + 1), random.Random(seed * 104729 + 1)
    if queue:
        cluster.spec, cluster.granted = {**cluster.spec, "queue": "batch"}, 0
    kept: list[Observation] = []
    ended = False
    for _ in range(steps):
        draw = chance.random()
        names = sorted(cluster.pods)
        if queue and grants.random() < 0.2:
            cluster.granted = grants.randrange(7)
        if draw < 0.35:
            cluster.operate(stop_after=chance.choice([None, None, 1, 2, 3, 4, 5, 6, 8]))
        elif draw < 0.45 and kept:
            cluster.operate(chance.choice(kept), stop_after=chance.choice([None, 2, 5]))
        elif draw < 0.70:
            cluster.advance(chance.choice([1.0, 5.0, 20.0]))
        elif draw < 0.76 and not (ended or cluster.status.get("state") in ("Finished", "Failed", "Cancelled")):
            cluster.edit(target=chance.randrange(1, 7))
            cluster.note_wanted()
        elif draw < 0.80:
            cluster.coordinator_away = not cluster.coordinator_away
        elif draw < 0.84:
            node = f"node-{chance.randrange(3)}"
            cluster.node_returns(node) if node in cluster.lost_nodes else cluster.lose_node(node)
        elif draw < 0.88 and names:
            cluster._terminate(chance.choice(names), chance.choice([5.0, 75.0]))
        elif draw < 0.91 and names:
            cluster.crash_pod(chance.choice(names), chance.choice([137, 143, 75]))
        elif draw < 0.94:
            cluster.suspend(not cluster.spec.get("suspend", False))
        elif draw < 0.96:
            cluster.change_image(chance.choice(["a", "b", "bad"]))
        elif draw < 0.965 and not cluster.deleting:
            cluster.delete_object()
        elif draw < 0.975:
            ended = True
            cluster._end("finished")
        if chance.random() < 0.3:
            kept = [*kept[-3:], cluster.observe()]
    if cluster.image == "bad":
        cluster.change_image("b")
    if cluster.spec.get("suspend"):
        cluster.suspend(chance.random() < 0.5)
    cluster.settle()
    return cluster
