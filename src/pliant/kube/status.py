"""The status of an ElasticJob: its state, its counters, its conditions, and events for what changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pliant.kube.actions import PublishEvent
from pliant.kube.model import Absent, CoordinatorView, ElasticJob, JobView, Pod, Unknown, is_same_job, is_unmade
from pliant.kube.names import JOB_LABEL, PARAMETER_SERVER, ROLE_LABEL, WORKER

STATES = {
    "starting": "Starting",
    "waiting": "Waiting",
    "running": "Running",
    "stopping": "Running",
    "finished": "Finished",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
PROGRESS_EVERY_S = 10.0  # progress alone is written no more often
REASON_MAX = 256
COUNTED_KEPT = 50  # names of pods that are gone
DRAINED_CODES = frozenset({0, 129, 130, 131, 143})  # an agent that was told to leave
NOT_COUNTED_CODES = frozenset({5, 75, 137})  # coordinator away, fenced, killed from outside
REFUSED_CODE = 3


@dataclass(frozen=True, slots=True)
class Restarts:
    """Pods that failed by themselves, and pods that were taken away. `failure` is why the job must end."""

    counted: int = 0
    disruptions: int = 0
    recent: tuple[float, ...] = ()
    pods: tuple[str, ...] = ()  # those already counted
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """The additions of this pass to the status. None: as it was."""

    restarts: Restarts | None = None
    reserved: tuple[tuple[str, int, str], ...] | None = None
    index: int = 0
    held_until: float | None = None
    silent: Mapping[str, float] | None = None


def has_failed(pod: Pod) -> bool:
    """Return whether a pod ended other than by leaving. A pod that never joined had nothing to leave."""
    if pod.phase == "Succeeded":
        return not pod.joined and pod.deleting_at is None
    return pod.phase == "Failed" and pod.exit_code not in DRAINED_CODES


def restarts_after(job: ElasticJob, pods: Sequence[Pod], now: float) -> Restarts:
    """Count the pods that ended since the last pass. Each pod counts once, as a failure or as a disruption."""
    before = job.status.get("restarts", {})
    seen = [*before.get("pods", ())]
    counted, disruptions = before.get("counted", 0), before.get("disruptions", 0)
    recent = [at for at in before.get("recent", ()) if now - at < job.spec.restart_window_s]
    for pod in pods:
        is_taken = _is_taken(pod)
        if pod.name in seen or not (is_taken or has_failed(pod)):
            continue
        seen.append(pod.name)
        if is_taken or (pod.exit_code in NOT_COUNTED_CODES and pod.oom_limit is None) or pod.exit_code is None:
            disruptions += 1
            continue
        counted += 1
        recent.append(now)
    kept = {*seen[-COUNTED_KEPT:], *(pod.name for pod in pods)}  # a pod that is still there is not counted again
    failure = _failure(job, pods, len(recent))
    return Restarts(counted, disruptions, tuple(recent), tuple(name for name in seen if name in kept), failure)


def _is_taken(pod: Pod) -> bool:
    return bool(pod.disrupted or pod.node_lost or pod.node_leaving)


def _failure(job: ElasticJob, pods: Sequence[Pod], recent: int) -> str:
    """Return why the job must end; empty if it goes on.

    It follows from what is there, and not from what is new: the pass that counted a pod may have ended before its
    other actions.
    """
    known = (pod for pod in pods if has_failed(pod) and pod.exit_code is not None and not _is_taken(pod))
    failed = sorted(known, key=lambda pod: pod.index)
    for pod in failed:
        if pod.exit_code in job.spec.fatal_exit_codes:
            return f"{pod.name} ended with the fatal exit code {pod.exit_code}"
    if recent <= job.spec.max_restarts:
        return ""
    last = f"; the last is {_end(failed[-1])}" if failed else ""
    return f"{recent} pods failed within {job.spec.restart_window_s} s{last}"


def _end(pod: Pod) -> str:
    if pod.oom_limit is not None:
        return f"{pod.name}, out of memory (limit {pod.oom_limit})"
    if pod.exit_code == REFUSED_CODE:
        return f"{pod.name}, exit code {pod.exit_code}, refused: its log has the reason"
    if pod.exit_code == 0:
        return f"{pod.name}, exit code 0, and it never joined: its first container must run `pliant run`"
    return f"{pod.name}, exit code {pod.exit_code}"


def build_status(
    job: ElasticJob, pods: Sequence[Pod], view: JobView, now: float, refusal: str, added: Situation
) -> dict[str, Any]:
    """Return the whole status."""
    before = job.status
    status = {**before, "observedGeneration": job.generation}
    status["selector"] = f"{JOB_LABEL}={job.name},{ROLE_LABEL}={WORKER}"
    _add_memory(status, added)
    present = {(pod.role, pod.index) for pod in pods}  # a pod that was seen is never created again
    status["reserved"] = [x for x in status.get("reserved", ()) if (x["role"], x["index"]) not in present]
    status["lastIndex"] = max([before.get("lastIndex", 0), added.index, *(pod.index for pod in pods)])
    if not job.ended:
        _add_state(status, job, pods, view, now)
    if isinstance(view, CoordinatorView) and not job.ended and is_same_job(status.get("coordinatorJob"), view):
        _add_progress(status, view, now)
    status["workers"] = _worker_counts(job, pods, view, before.get("workers", {}))
    if job.spec.servers is not None:
        ready = sum(pod.role == PARAMETER_SERVER and pod.joined and not pod.ended for pod in pods)
        status["parameterServers"] = {"ready": ready}
    conditions = _conditions(job, pods, view, refusal, status)
    status["conditions"] = _with_times(before.get("conditions", ()), conditions, job.generation, now)
    status["reason"] = _reason(job, view, status)[:REASON_MAX]
    return status


def _add_memory(status: dict[str, Any], added: Situation) -> None:
    """Add what the next pass must know."""
    if added.restarts is not None:
        found = added.restarts
        status["restarts"] = {
            "counted": found.counted,
            "disruptions": found.disruptions,
            "recent": list(found.recent),
            "pods": list(found.pods),
        }
    if added.reserved is not None:
        status["reserved"] = [{"role": role, "index": index, "tier": tier} for role, index, tier in added.reserved]
    if added.held_until is not None:
        status["heldUntil"] = added.held_until
    if added.silent is not None:
        status["silent"] = dict(added.silent)


def _add_state(status: dict[str, Any], job: ElasticJob, pods: Sequence[Pod], view: JobView, now: float) -> None:
    running = any(not pod.ended for pod in pods)
    if isinstance(view, Absent) and is_unmade(status.get("coordinatorJob")):
        status["coordinatorJob"] = {"store": view.store}  # before the job is made, so that it is known as its own
    if isinstance(view, CoordinatorView) and is_same_job(status.get("coordinatorJob"), view):
        status["coordinatorJob"] = view.identity
        status["state"] = "Suspended" if job.spec.suspend and not view.ended else STATES[view.state]
        if view.ended:
            status["completionTime"] = _time(now)
            status["completionSeconds"] = now
            status["reserved"] = []
    status.setdefault("state", "Suspended" if job.spec.suspend else "Starting")
    ended = status["state"] in ("Finished", "Failed", "Cancelled")
    if job.spec.suspend or ended or (_waits_in_queue(view) and not running):
        if ended or not running:
            since = status.pop("activeSince", None)
            if since is not None:
                status["activeSeconds"] = status.get("activeSeconds", 0.0) + now - since
    elif "activeSince" not in status and not isinstance(view, Unknown) and not _waits_in_queue(view):
        status["activeSince"] = now
        status["startTime"] = _time(now)


def _waits_in_queue(view: JobView) -> bool:
    return isinstance(view, CoordinatorView) and view.granted == 0


def _add_progress(status: dict[str, Any], view: CoordinatorView, now: float) -> None:
    status["worldGeneration"] = view.generation
    found: dict[str, Any] = {"step": view.step, "epoch": view.epoch}
    if view.total_steps:
        found["percent"] = 100 * view.step // view.total_steps
    before = status.get("progress", {})
    if {**found, "seconds": before.get("seconds")} != before and (
        now - before.get("seconds", 0.0) >= PROGRESS_EVERY_S or view.ended
    ):
        status["progress"] = {**found, "seconds": now}
    if view.checkpoint_step is not None:
        status["checkpoint"] = {"step": view.checkpoint_step}


def _worker_counts(job: ElasticJob, pods: Sequence[Pod], view: JobView, before: Mapping[str, Any]) -> dict[str, Any]:
    mine = [pod for pod in pods if pod.role == WORKER and not pod.ended]
    pending = sum(pod.phase == "Pending" for pod in mine)
    counts: dict[str, Any] = {**before, "pods": len(mine), "pending": pending}
    if isinstance(view, CoordinatorView):
        counts["granted"] = job.spec.within(view.granted)
        active, spare = _active_and_spare(job, view)
        counts |= {"active": active, "spare": spare, "joining": view.joining, "draining": view.draining}
    return counts


def _active_and_spare(job: ElasticJob, view: CoordinatorView) -> tuple[int, int]:
    """Return the workers that train and those that stand by. A worker of a task queue that waits for a shard trains."""
    if view.ended:
        return 0, view.spare
    if job.spec.is_task_queue:
        ready = sum(agent.ready for agent in view.agents.values() if agent.capacity)
        return min(ready, job.spec.desired), max(0, ready - job.spec.desired)
    servers = job.spec.seated_servers if view.size else 0
    return max(0, view.active - servers), view.spare


# ---------------------------------------------------------------------------------------------- conditions


@dataclass(frozen=True, slots=True)
class _Condition:
    kind: str
    status: str
    reason: str
    message: str


def _conditions(
    job: ElasticJob, pods: Sequence[Pod], view: JobView, refusal: str, status: Mapping[str, Any]
) -> list[_Condition]:
    state = status["state"]
    counts = status["workers"]
    granted = view.granted if isinstance(view, CoordinatorView) else None
    is_complete = state == "Running" and counts.get("active", 0) >= job.spec.within(granted)
    found = [_coordinator(job, view, status), _pods_healthy(pods, refusal, ended=job.ended, is_complete=is_complete)]
    if isinstance(view, Unknown):
        return found
    why = view.why if isinstance(view, CoordinatorView) else "the coordinator has no such job"
    ended = state in ("Finished", "Failed", "Cancelled")
    found.append(_Condition("Running", _flag(state == "Running"), state, why))
    found.append(_at_target(job, status, ended=ended))
    if granted is not None and not ended:
        found.append(_granted(job, granted, view))
    left = sum(not pod.ended for pod in pods)
    if job.spec.suspend and not ended:
        done = "Suspended" if not left else "Suspending"
        found.append(
            _Condition("Suspended", _flag(not left), done, f"{left} pods are left" if left else "no pod is left")
        )
    elif any(each["type"] == "Suspended" for each in status.get("conditions", ())):
        found.append(_Condition("Suspended", "False", "Resumed", "spec.suspend is false"))
    if ended:
        found.append(
            _Condition("Finished", _flag(state == "Finished"), "Succeeded" if state == "Finished" else state, why)
        )
        found.append(_Condition("Failed", _flag(state == "Failed"), state, why))
    return found


def _coordinator(job: ElasticJob, view: JobView, status: Mapping[str, Any]) -> _Condition:
    if isinstance(view, Unknown):
        why = f"{view.why} No pod is created or deleted until it answers; running workers go on."
        return _Condition("CoordinatorReady", "False", "Unreachable", why)
    known = status.get("coordinatorJob")
    is_same = isinstance(view, CoordinatorView) and is_same_job(known, view)
    if not (job.ended or is_same or is_unmade(known)):
        why = "The coordinator's store was replaced or its job deleted. Delete this ElasticJob and create it again."
        return _Condition("CoordinatorReady", "False", "StoreChanged", why)
    if isinstance(view, CoordinatorView) and not (job.ended or is_same):
        why = (
            f"The coordinator had a job {job.key} before. Delete it with `pliant jobs delete {job.key}`, or rename "
            "this ElasticJob."
        )
        return _Condition("CoordinatorReady", "False", "NameTaken", why)
    return _Condition("CoordinatorReady", "True", "Answers", f"the job is {job.key} there")


def _pods_healthy(pods: Sequence[Pod], refusal: str, *, ended: bool, is_complete: bool) -> _Condition:
    """Return whether pods have a problem. A failed pod is one until the job has all its workers again."""
    if refusal and not ended:
        kind = "QuotaExceeded" if "quota" in refusal else "Refused"
        return _Condition("PodsHealthy", "False", kind, refusal)
    troubled = [] if ended else [pod for pod in pods if pod.problem is not None and not pod.ended]
    if troubled:
        reason, message = troubled[0].problem or ("", "")
        more = f" ({len(troubled)} pods)" if len(troubled) > 1 else ""
        return _Condition("PodsHealthy", "False", reason, f"{troubled[0].name}: {message}{more}")
    if lost := [pod for pod in pods if pod.node_lost and not pod.ended]:
        why = f"{lost[0].name}: node {lost[0].node} does not answer"
        return _Condition("PodsHealthy", "False", "NodeUnreachable", why)
    failed = (pod for pod in pods if has_failed(pod) and pod.exit_code is not None)
    bad = sorted(failed, key=lambda pod: pod.index)
    if bad and is_complete:
        return _Condition("PodsHealthy", "True", "Healthy", f"the last failure: {_end(bad[-1])}")
    if bad and not ended:
        reason = "OutOfMemory" if bad[-1].oom_limit is not None else "Crashing"
        return _Condition("PodsHealthy", "False", reason, f"the last failure: {_end(bad[-1])}")
    return _Condition("PodsHealthy", "True", "Healthy", "no pod has a problem")


def _at_target(job: ElasticJob, status: Mapping[str, Any], *, ended: bool) -> _Condition:
    counts = status["workers"]
    active, wanted = counts.get("active", 0), job.spec.desired
    if active == wanted and not ended:
        return _Condition("AtTarget", "True", "AtTarget", "1 worker" if active == 1 else f"{active} workers")
    if ended:
        return _Condition("AtTarget", "False", "Ended", "the job has ended")
    reason = "Draining" if counts.get("draining") else "Waiting"
    if active > wanted:
        return _Condition(
            "AtTarget", "False", reason, f"{active} workers, {wanted} wanted; {active - wanted} will leave"
        )
    pending = "1 pod is pending" if counts["pending"] == 1 else f"{counts['pending']} pods are pending"
    return _Condition("AtTarget", "False", reason, f"{active} of {wanted} workers; {pending}")


def _granted(job: ElasticJob, granted: int, view: JobView) -> _Condition:
    """Return what the pool grants a job in a queue, with the pool's reason."""
    assert isinstance(view, CoordinatorView)
    why = view.granted_why or view.why
    if not granted:
        return _Condition("Granted", "False", "Waiting", why)
    workers = job.spec.within(granted)
    reason = "Granted" if workers == job.spec.desired else "Partly"
    return _Condition("Granted", "True", reason, f"{workers} of {job.spec.desired} workers: {why}")


def _flag(value: bool) -> str:
    return "True" if value else "False"


def _with_times(
    before: Sequence[Mapping[str, Any]], found: Sequence[_Condition], generation: int, now: float
) -> list[dict[str, Any]]:
    """Return the conditions as they are stored. A condition that this pass cannot judge stays as it was."""
    old = {each["type"]: each for each in before}
    result: list[dict[str, Any]] = []
    for each in found:
        last = old.pop(each.kind, None)
        same = last is not None and last["status"] == each.status
        result.append(
            {
                "type": each.kind,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
                "observedGeneration": generation,
                "lastTransitionTime": last["lastTransitionTime"] if same and last is not None else _time(now),
            }
        )
    return sorted([*result, *(dict(each) for each in old.values())], key=lambda each: str(each["type"]))


def _reason(job: ElasticJob, view: JobView, status: Mapping[str, Any]) -> str:
    """Return one sentence for the column WHY: what is wrong first, else what the coordinator says.

    The coordinator's words are about the last change. They are not shown once the job runs with all its workers.
    """
    conditions = {each["type"]: each for each in status["conditions"]}
    for kind in ("CoordinatorReady", "PodsHealthy"):
        if conditions[kind]["status"] == "False" and not job.ended:
            counts = status["workers"]
            head = f"{counts.get('active', 0)} of {job.spec.desired}: " if kind == "PodsHealthy" else ""
            return f"{head}{conditions[kind]['message']}"
    if isinstance(view, CoordinatorView):
        is_complete = conditions["AtTarget"]["status"] == "True" and view.state == "running"
        if is_complete:
            return f"all {job.spec.desired} workers train"
        is_held = "Granted" in conditions and status["workers"].get("active", 0) == job.spec.within(view.granted)
        return conditions["Granted"]["message"] if is_held and not view.ended else view.why
    return str(status.get("reason", "")) if isinstance(view, Absent) and job.ended else "the coordinator's job is made"


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[PublishEvent, ...]:
    """Return events for conditions whose status or reason changed."""
    old = {each["type"]: (each["status"], each["reason"]) for each in before.get("conditions", ())}
    found = []
    for each in after["conditions"]:
        if old.get(each["type"]) == (each["status"], each["reason"]):
            continue
        if each["type"] not in old and each["status"] == "False":
            is_news = each["type"] in ("CoordinatorReady", "PodsHealthy")
            if not is_news:
                continue
        warning = each["type"] in ("CoordinatorReady", "PodsHealthy") and each["status"] == "False"
        failed = each["type"] == "Failed" and each["status"] == "True"
        found.append(PublishEvent(each["reason"], each["message"], warning or failed))
    return tuple(found)


def _time(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
