"""The values that `reconcile` reads: an ElasticJob, its pods, and the coordinator's view of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pliant.kube.names import PARAMETER_SERVER, WORKER, coordinator_name, template_hash

ENDED = ("Finished", "Failed", "Cancelled")


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """The pods of one role: how many processes each runs, and their template."""

    role: str
    processes: int
    template: Mapping[str, Any]
    hash: str


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The specification of an ElasticJob, with all defaults."""

    strategy: str
    suspend: bool
    size_min: int
    size_max: int
    target: int | None  # None: the operator fills it once
    spares: int
    sizes: tuple[int, ...]
    workers: RoleSpec
    servers: RoleSpec | None
    server_count: int
    grace_s: int
    eviction: str
    max_restarts: int
    restart_window_s: int
    fatal_exit_codes: tuple[int, ...]
    pending_s: int
    unreachable_s: int
    deadline_s: int | None
    ttl_s: int | None
    pods_after_finish: str
    priority_class: str | None
    surplus_class: str | None
    mode: str
    claim: str | None
    claim_spec: Mapping[str, Any] | None
    keep_claim: bool
    checkpoint_every_s: int
    checkpoint_keep: int
    managed_by: str | None
    queue: str
    priority: int

    @property
    def roles(self) -> tuple[RoleSpec, ...]:
        return (self.workers,) if self.servers is None else (self.servers, self.workers)

    @property
    def is_task_queue(self) -> bool:
        """Return whether the job is a task queue, whose parameter servers are Pliant's own."""
        return self.mode == "Tasks"

    @property
    def seated_servers(self) -> int:
        """The parameter servers that run the user's script, so that they count as workers at the coordinator."""
        return 0 if self.is_task_queue else self.server_count

    @property
    def desired(self) -> int:
        """The number of workers wanted, at most the target, as one of `sizes` if they are given."""
        size = min(max(self.size_max if self.target is None else self.target, self.size_min), self.size_max)
        return self._allowed(size)

    def within(self, granted: int | None) -> int:
        """The number of workers wanted, or fewer if the pool grants fewer. None: the job is in no queue."""
        return self.desired if granted is None else min(self.desired, self._allowed(granted))

    def _allowed(self, size: int) -> int:
        return max((each for each in self.sizes if each <= size), default=size)

    def wanted_pods(self, role: str, granted: int | None = None) -> int:
        if role == PARAMETER_SERVER:
            return self.server_count
        workers = self.within(granted)
        spares = self.spares if granted is None else min(self.spares, granted - workers)
        return math.ceil((workers + spares) / self.workers.processes)

    @property
    def base_pods(self) -> int:
        """The number of worker pods without which the job is below its minimum."""
        return math.ceil(self.size_min / self.workers.processes)


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """An ElasticJob as the API server has it. `status` is the operator's own, from its last pass."""

    namespace: str
    name: str
    uid: str
    revision: int  # resourceVersion
    generation: int
    created_at: float
    deleting: bool
    finalizers: tuple[str, ...]
    spec: JobSettings
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of this job in the coordinator."""
        return coordinator_name(self.namespace, self.name)

    @property
    def ended(self) -> bool:
        return self.status.get("state") in ENDED


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a job. `agent` is its name, too. Times are seconds since the epoch; None: not so."""

    name: str
    uid: str
    revision: int
    role: str
    index: int
    tier: str
    hash: str
    created_at: float
    phase: str = "Pending"  # Pending, Running, Succeeded, Failed, Unknown
    scheduled: bool = False
    deleting_at: float | None = None  # when its grace period is over
    deletion_grace_s: float | None = None
    node: str = ""
    node_lost: bool = False  # its node does not answer
    node_leaving: str = ""  # the taint by which its node is about to go
    disrupted: str = ""  # the reason of its condition DisruptionTarget
    joined: bool = False  # its agent was seen at the coordinator
    exit_code: int | None = None
    oom_limit: str | None = None  # the memory limit at which it was killed
    problem: tuple[str, str] | None = None  # reason and message of why it does not start
    lost_since: float | None = None  # when its node was first seen lost

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as the coordinator knows it."""

    members: int
    active: int
    holds: bool
    draining: bool
    grace_s: float = 0.0
    wanted: int | None = None  # the workers that it should run; None: not known
    ready: int = 0  # members that train or stand by
    capacity: int = 1  # 0: it runs a parameter server and no worker

    @property
    def is_complete(self) -> bool:
        """Return whether all workers that it should run are ready, or its parameter server is."""
        least = (self.wanted or 0) if self.capacity else 1
        return 0 < least <= self.ready


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """A job as the coordinator knows it. `state` is the coordinator's word, such as `running`."""

    state: str
    why: str
    store: str
    created_at: float
    target: int
    size: int
    step: int
    total_steps: int | None
    epoch: int
    generation: int
    failures: int
    agents: Mapping[str, AgentView]
    active: int = 0
    spare: int = 0
    joining: int = 0
    draining: int = 0
    spec: object = None
    checkpoint_step: int | None = None
    granted: int | None = None  # the workers that the pool grants; None: the job is in no queue
    granted_why: str = ""
    live: bool = True  # its workers are members themselves
    tables_whole: bool = True  # every row of its parameter servers has its copies, and none moves

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "failed", "cancelled")

    @property
    def identity(self) -> dict[str, Any]:
        """The store and the time of creation, which no other job of this name shares."""
        return {"store": self.store, "createdAt": self.created_at}


@dataclass(frozen=True, slots=True)
class Absent:
    """The coordinator answers, and has no job of that name."""

    store: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The coordinator does not answer."""

    why: str


JobView = CoordinatorView | Absent | Unknown


def is_unmade(known: Mapping[str, Any] | None) -> bool:
    """Return whether a status names no job of the coordinator, or one that the operator was about to make."""
    return known is None or "createdAt" not in known


def is_same_job(known: Mapping[str, Any] | None, view: CoordinatorView) -> bool:
    """Return whether the coordinator's job is the one that an ElasticJob made. `known` is `coordinatorJob` there.

    A job that the status does not name was there before. A status with the store alone announced a job where none was.
    """
    if known is None:
        return False
    return known == ({"store": view.store} if is_unmade(known) else view.identity)


def read_settings(spec: Mapping[str, Any]) -> JobSettings:
    """Return the settings of a validated specification. The API server has filled in the schema's defaults."""
    workers, servers = spec["workers"], spec.get("parameterServers")
    drain, failure = spec.get("drain", {}), spec.get("failure", {})
    checkpoints = spec.get("checkpoints") or {}
    grace_s = drain.get("graceSeconds", 60)
    shared = (grace_s, checkpoints.get("claimName"), bool(checkpoints.get("volumeClaim")))
    return JobSettings(
        strategy=spec.get("strategy", "AllReduce"),
        suspend=spec.get("suspend", False),
        size_min=workers["min"],
        size_max=workers["max"],
        target=workers.get("target"),
        spares=workers.get("spares", 0),
        sizes=tuple(sorted(workers.get("sizes", ()))),
        workers=_role(WORKER, workers, *shared),
        servers=None if servers is None else _role(PARAMETER_SERVER, servers, *shared),
        server_count=0 if servers is None else servers["count"],
        grace_s=grace_s,
        eviction=drain.get("blockEviction", "BelowMin"),
        max_restarts=failure.get("maxRestarts", 3),
        restart_window_s=failure.get("restartWindowSeconds", 3600),
        fatal_exit_codes=tuple(failure.get("fatalExitCodes", ())),
        pending_s=failure.get("pendingSeconds", 600),
        unreachable_s=failure.get("unreachableSeconds", 60),
        deadline_s=spec.get("activeDeadlineSeconds"),
        ttl_s=spec.get("ttlSecondsAfterFinished"),
        pods_after_finish=spec.get("podsAfterFinish", "KeepFailed"),
        priority_class=spec.get("priorityClassName"),
        surplus_class=spec.get("surplusPriorityClassName"),
        mode=spec.get("mode", "Auto"),
        claim=checkpoints.get("claimName"),
        claim_spec=checkpoints.get("volumeClaim"),
        keep_claim=checkpoints.get("onDelete", "Retain") == "Retain",
        checkpoint_every_s=checkpoints.get("everySeconds", 600),
        checkpoint_keep=checkpoints.get("keep", 3),
        managed_by=spec.get("managedBy"),
        queue=spec.get("queue", ""),
        priority=spec.get("priority", 0),
    )


def _role(role: str, spec: Mapping[str, Any], *shared: object) -> RoleSpec:
    processes = spec.get("processesPerPod", 1)
    return RoleSpec(role, processes, spec["template"], template_hash(spec["template"], processes, *shared))
