"""Decide what the operator does for one ElasticJob. Pure: the same observation gives the same actions.

Everything is derived from whole lists and from the object's own status. An observation that is missing or old leads to
no creation and no deletion. A pod with members is deleted only after its agent has left the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pliant.core.model.checkpoint import CheckpointPolicy
from pliant.core.model.job import JobSpec, Mode, Target
from pliant.kube import actions as a
from pliant.kube.manifests import companions
from pliant.kube.model import (
    Absent,
    CoordinatorView,
    ElasticJob,
    JobSettings,
    JobView,
    Pod,
    RoleSpec,
    Unknown,
    is_same_job,
    is_unmade,
)
from pliant.kube.names import FINALIZER, OPERATOR, PARAMETER_SERVER, pod_name
from pliant.kube.scaling import RolePods, is_replacing, plan_change, pods_max, sort_pods, surge_of
from pliant.kube.status import Situation, build_status, changed, has_failed, restarts_after

FAILED_KEPT = 5  # pods that failed, kept for their logs while the job runs
SERVER_GRACE_S = 15  # a pod's time beyond the grace of its agent
SUSPENDED = "the ElasticJob is suspended"
SHRINK = "the ElasticJob needs fewer pods"
LATE = "it did not start within pendingSeconds"


@dataclass(frozen=True, slots=True)
class Observation:
    """One job at one moment: its object, then its pods, then the coordinator's view, read in this order."""

    job: ElasticJob
    pods: tuple[Pod, ...]
    pods_revision: int  # of the list of pods
    view: JobView
    now: float
    refusal: str = ""  # the API server's words when it last refused a pod of this job


def reconcile(seen: Observation) -> tuple[a.Action, ...]:
    """Return the next actions. The operator carries them out in order and stops at the first one that fails."""
    job = seen.job
    if job.spec.managed_by not in (None, OPERATOR):
        return ()
    if seen.pods_revision < job.revision:
        return ()  # the list is older than the object, so it may lack pods that exist
    if job.deleting:
        return _delete(seen)
    if FINALIZER not in job.finalizers:
        return (a.AddFinalizer(),)
    if isinstance(seen.view, Unknown):
        return _write(seen, Situation())
    if job.ended:
        return _after_end(seen)
    if isinstance(seen.view, Absent):
        if not is_unmade(job.status.get("coordinatorJob")):
            return _write(seen, Situation())
        return (*_write(seen, Situation(), guard=True), *_prepare(seen), a.CreateJob(job_spec(job.spec)))
    if not is_same_job(job.status.get("coordinatorJob"), seen.view):
        return _write(seen, Situation())
    if seen.view.ended:
        return _write(seen, Situation())
    return _run(seen, seen.view)


def report_refusal(seen: Observation) -> tuple[a.Action, ...]:
    """Return the status alone, with the refusal: for a job that cannot be decided about."""
    return _write(seen, Situation())


def job_spec(settings: JobSettings, extra_spares: int = 0) -> JobSpec:
    """Return the settings of the coordinator's job. Servers that run the user's script count as workers there."""
    more, is_pooled = settings.seated_servers, bool(settings.queue)
    return JobSpec(
        size_min=settings.size_min + more,
        size_max=settings.size_max + more,
        target=Target(settings.desired + more),
        max_restarts=settings.max_restarts,
        mode=Mode.RELAUNCH if more else Mode(settings.mode.lower()),
        spares=0 if more else settings.spares + extra_spares,
        roles=((PARAMETER_SERVER, more),) if more else (),
        checkpoints=CheckpointPolicy(0, _save_every_s(settings), keep=settings.checkpoint_keep),
        queue=settings.queue,
        priority=settings.priority,
        suspended=is_pooled and settings.suspend,
        sizes=settings.sizes if is_pooled else (),
        unit=settings.workers.processes if is_pooled else 1,
    )


def _save_every_s(settings: JobSettings) -> float:
    """Return the seconds between checkpoints; 0: none.

    Each parameter server saves a part. Without a claim the parts would lie in different pods, where nothing reads them.
    """
    has_claim = settings.claim is not None or settings.claim_spec is not None
    return float(settings.checkpoint_every_s) if has_claim or settings.servers is None else 0.0


def _prepare(seen: Observation) -> tuple[a.Action, ...]:
    """Return the actions that make the objects which pods need."""
    job = seen.job
    fill = (a.FillTarget(job.spec.desired),) if job.spec.target is None else ()
    return (*fill, *(a.EnsureObject(each) for each in companions.companion_objects(job)))


def _run(seen: Observation, view: CoordinatorView) -> tuple[a.Action, ...]:
    """Return the actions for a job that goes on."""
    job, spec = seen.job, seen.job.spec
    if view.state == "stopping":  # the coordinator refuses agents now, and pods that end are no failures
        clean = _clean(seen, view)
        return (*_write(seen, Situation(), guard=bool(clean)), *clean)
    wanted = job_spec(spec, _extra_spares(seen, view))
    restarts = restarts_after(job, seen.pods, seen.now)
    if why := restarts.failure or _deadline(seen):
        return (*_write(seen, Situation(restarts=restarts)), a.CancelJob(why, failed=True))
    settings: tuple[a.Action, ...] = ()
    if isinstance(view.spec, JobSpec) and replace(view.spec, target=None) != replace(wanted, target=None):
        settings = (a.CreateJob(wanted, only_settings=True),)
    elif view.target != spec.desired + spec.seated_servers and not spec.suspend:
        settings = (a.ResizeJob(spec.desired + spec.seated_servers),)
    marks = tuple(
        a.MarkJoined(pod.name, pod.uid)
        for pod in seen.pods
        if pod.name in view.agents and not (pod.joined or pod.ended or pod.deleting_at)
    )
    needs = (*_prepare(seen), a.EnsureToken(companions.token_secret(job.name)), *settings, *marks)
    if spec.suspend:
        moves, reserved = _empty(seen, view, SUSPENDED), _Reserved((), ())
    else:
        moves, reserved = _fill(seen, view)
    clean = _clean(seen, view)
    late = any(isinstance(each, a.DeletePod) and each.why == LATE for each in clean)
    held_until = seen.now + spec.pending_s if late else _held_until(job)
    situation = Situation(restarts, reserved.all, reserved.highest, held_until, _silent(seen, view))
    return (*_write(seen, situation, guard=bool(moves or clean)), *needs, *moves, *clean)


def _extra_spares(seen: Observation, view: CoordinatorView) -> int:
    """Return the workers that stand by, beyond those that the user wants, while pods of an older template are replaced.

    So a new worker is ready before an old one leaves.
    """
    role = seen.job.spec.workers
    live = sort_pods(_of_role(seen, role.role), view.agents).live
    if not (view.live and is_replacing(live, role.hash)):
        return 0
    return surge_of(seen.job.spec.wanted_pods(role.role)) * role.processes


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Pods to create, as (role, index, tier); `kept` were reserved before."""

    kept: tuple[tuple[str, int, str], ...]
    new: tuple[tuple[str, int, str], ...]

    @property
    def all(self) -> tuple[tuple[str, int, str], ...]:
        return (*self.kept, *self.new)

    @property
    def highest(self) -> int:
        return max((index for _, index, _ in self.all), default=0)


def _fill(seen: Observation, view: CoordinatorView) -> tuple[tuple[a.Action, ...], _Reserved]:
    """Return the actions that bring each role to its number of pods, and the pods whose names are reserved for that.

    A name is reserved in the status before its pod is created. So an operator that was killed in between, or a second
    one, creates the same pod and not one more. A name whose place was taken meanwhile, by pods of a node that returned,
    is given up.
    """
    job, spec = seen.job, seen.job.spec
    kept: list[tuple[str, int, str]] = []
    new: list[tuple[str, int, str]] = []
    moves: list[a.Action] = []
    present = {pod.name for pod in seen.pods}
    index = max([job.status.get("lastIndex", 0), *(pod.index for pod in seen.pods)])
    for role in spec.roles:
        pods = _of_role(seen, role.role)
        sorted_pods = sort_pods(pods, view.agents)
        waiting = [
            (name, number, tier)
            for name, number, tier in _reservations(job)
            if name == role.role
            and (exists := pod_name(job.name, name, number)) not in present
            and exists not in view.agents
        ]
        count = spec.wanted_pods(role.role, view.granted)
        most = pods_max(sorted_pods.live, count, role.hash, surge_of(count))
        waiting = waiting[: max(0, most - len(sorted_pods.live))]
        phantoms = tuple(_phantom(job, role, number, tier, seen.now) for _, number, tier in waiting)
        live = (*sorted_pods.live, *phantoms)
        base = count if role.role == PARAMETER_SERVER else spec.base_pods
        change = plan_change(live, count, base, role.hash, view)
        if role.role == PARAMETER_SERVER and spec.is_task_queue:
            change = replace(change, remove=_servers_to_remove(change.remove, view))
        joined = sum(pod.name in view.agents for pod in live)
        if seen.now < _held_until(job) and joined >= base:
            change = replace(change, create=())
        dropped = {pod.index for pod in change.remove if pod in phantoms}
        kept += [each for each in waiting if each[1] not in dropped]
        for tier in change.create:
            index += 1
            new.append((role.role, index, tier))
        moves += _removals(change.remove, phantoms, view, spec.grace_s)
        moves += _notices(seen, sorted_pods, view)
    creations = [a.CreatePod(*each) for each in (*kept, *new)]
    return (*creations, *moves), _Reserved(tuple(kept), tuple(new))


def _servers_to_remove(chosen: Sequence[Pod], view: CoordinatorView) -> tuple[Pod, ...]:
    """Return which of Pliant's own servers may go now.

    Those that hold nothing may, and one more while every row has its copies.
    """
    starting = tuple(pod for pod in chosen if pod.name not in view.agents)
    running = tuple(pod for pod in chosen if pod.name in view.agents)
    return (*starting, *(running[:1] if view.tables_whole else ()))


def _phantom(job: ElasticJob, role: RoleSpec, index: int, tier: str, now: float) -> Pod:
    """Return the pod that a reservation stands for."""
    return Pod(pod_name(job.name, role.role, index), "", 0, role.role, index, tier, role.hash, now)


def _reservations(job: ElasticJob) -> list[tuple[str, int, str]]:
    return [(each["role"], each["index"], each["tier"]) for each in job.status.get("reserved", ())]


def _of_role(seen: Observation, role: str) -> tuple[Pod, ...]:
    return tuple(pod for pod in seen.pods if pod.role == role)


def _removals(
    pods: Sequence[Pod], phantoms: Sequence[Pod], view: CoordinatorView, grace_s: float, why: str = SHRINK
) -> list[a.Action]:
    """Return how each pod goes: an agent is asked to leave; a pod that never started is deleted if that still holds.

    A pod that runs and whose agent has not joined yet is left alone until it has.
    """
    found: list[a.Action] = []
    for pod in pods:
        if pod in phantoms:
            continue
        if pod.name in view.agents:
            found.append(a.DrainPod(pod.name, grace_s, why, immediate=why == SUSPENDED))
        elif pod.phase == "Pending" and not pod.joined:
            found.append(a.DeletePod(pod.name, pod.uid, why, revision=pod.revision))
    return found


def _notices(seen: Observation, pods: RolePods, view: CoordinatorView) -> list[a.Action]:
    """Return drains for pods that others take away, with the time that is really left."""
    found: list[a.Action] = []
    for pod in pods.leaving:
        agent = view.agents.get(pod.name)
        if agent is None:
            continue
        if pod.deleting_at is not None:
            grace_s = max(0.0, pod.deleting_at - seen.now - 1.0)
            is_shorter = pod.deletion_grace_s is not None and agent.grace_s > pod.deletion_grace_s
            if not agent.draining or is_shorter:
                found.append(a.DrainPod(pod.name, grace_s, pod.disrupted or "its pod is being deleted", grace_s < 5.0))
        elif not agent.draining:
            why = pod.disrupted or f"its node has the taint {pod.node_leaving}"
            found.append(a.DrainPod(pod.name, float(seen.job.spec.grace_s), why))
    return found


def _empty(seen: Observation, view: CoordinatorView, why: str) -> tuple[a.Action, ...]:
    """Return the actions that let every pod go."""
    going = [pod for pod in seen.pods if not (pod.ended or pod.deleting_at)]
    staying = [pod for pod in going if pod.name not in view.agents or not view.agents[pod.name].draining]
    return tuple(_removals(staying, (), view, seen.job.spec.grace_s, why))


def _clean(seen: Observation, view: CoordinatorView | Absent) -> tuple[a.Action, ...]:
    """Return deletions of pods that have ended or are lost. None of them has an agent at the coordinator."""
    agents = view.agents if isinstance(view, CoordinatorView) else {}
    spec = seen.job.spec
    failed = sorted((pod for pod in seen.pods if pod.phase == "Failed" or has_failed(pod)), key=lambda pod: -pod.index)
    found: list[a.Action] = []
    for pod in seen.pods:
        if pod.name in agents:
            continue
        if pod.node_lost:
            found += _give_up(seen, pod)
        elif pod.deleting_at is not None:
            continue
        elif pod.ended and pod not in failed[:FAILED_KEPT]:
            found.append(a.DeletePod(pod.name, pod.uid, "its agent has left"))
        elif pod.joined and not pod.ended and _silent_s(seen, pod) >= spec.unreachable_s:
            found.append(a.DeletePod(pod.name, pod.uid, "its agent is lost"))
        elif not pod.joined and not pod.ended and seen.now - pod.created_at >= spec.pending_s:
            found.append(a.DeletePod(pod.name, pod.uid, LATE, revision=pod.revision))
    return tuple(found)


def _give_up(seen: Observation, pod: Pod) -> tuple[a.Action, ...]:
    """Return the deletion by force of a pod whose node has not answered for `unreachableSeconds`."""
    since = pod.lost_since if pod.lost_since is not None else seen.now
    if seen.now - since < seen.job.spec.unreachable_s:
        return ()
    return (a.DeletePod(pod.name, pod.uid, "its node does not answer", force=True),)


def _silent_s(seen: Observation, pod: Pod) -> float:
    since = seen.job.status.get("silent", {}).get(pod.name)
    return 0.0 if since is None else seen.now - since


def _silent(seen: Observation, view: CoordinatorView) -> dict[str, float]:
    """Return the pods that run and whose agents are gone, with the time since when."""
    before = seen.job.status.get("silent", {})
    gone = [pod for pod in seen.pods if pod.joined and pod.phase == "Running" and pod.name not in view.agents]
    return {pod.name: before.get(pod.name, seen.now) for pod in gone}


def _held_until(job: ElasticJob) -> float:
    """Return until when no pod beyond the minimum is created, because the last one could not start."""
    is_changed = job.status.get("observedGeneration") != job.generation
    return 0.0 if is_changed else float(job.status.get("heldUntil", 0.0))


def _deadline(seen: Observation) -> str:
    limit = seen.job.spec.deadline_s
    if limit is None or seen.job.spec.suspend:
        return ""
    started = seen.job.status.get("activeSince")
    active = seen.job.status.get("activeSeconds", 0.0) + (0.0 if started is None else seen.now - started)
    return f"activeDeadlineSeconds ({limit}) is over" if active >= limit else ""


def _after_end(seen: Observation) -> tuple[a.Action, ...]:
    """Return the actions after the job's end: nothing is created again, whatever happens to its pods."""
    job = seen.job
    if job.spec.ttl_s is not None and seen.now >= job.status.get("completionSeconds", seen.now) + job.spec.ttl_s:
        return (a.DeleteObject(),)
    policy = job.spec.pods_after_finish  # agents stay on record after the end, so the record does not count here
    found: list[a.Action] = []
    for pod in seen.pods:
        kept = policy == "Keep" or (policy == "KeepFailed" and pod.phase == "Failed")
        if pod.ended and kept:
            continue
        if pod.node_lost:
            found += _give_up(seen, pod)
        elif pod.deleting_at is not None:
            continue
        elif pod.ended or pod.phase == "Pending" or seen.now >= _ended_at(job, seen.now) + job.spec.grace_s:
            found.append(a.DeletePod(pod.name, pod.uid, "the job has ended"))
    return (*_write(seen, Situation(), guard=bool(found)), *found)


def _ended_at(job: ElasticJob, now: float) -> float:
    return float(job.status.get("completionSeconds", now))


def _delete(seen: Observation) -> tuple[a.Action, ...]:
    """Return the actions for an object that is being deleted: end the coordinator's job first, then let go of it."""
    job, view = seen.job, seen.view
    if FINALIZER not in job.finalizers:
        return ()
    if isinstance(view, Unknown):
        return _write(seen, Situation())
    is_own = isinstance(view, CoordinatorView) and is_same_job(job.status.get("coordinatorJob"), view)
    if isinstance(view, CoordinatorView) and is_own and not view.ended:
        cancel = () if view.state == "stopping" else (a.CancelJob("the ElasticJob was deleted"),)
        return (*cancel, *_clean(seen, view))
    forget = (a.ForgetJob(),) if is_own else ()
    made = job.spec.claim_spec is not None and not job.spec.keep_claim
    claim = (a.DeleteClaim(companions.claim_name(job.name)),) if made else ()
    return (*forget, *claim, a.RemoveFinalizer())


def _write(seen: Observation, situation: Situation, *, guard: bool = False) -> tuple[a.Action, ...]:
    """Return the new status, if it says anything new, and events for what changed in it.

    With `guard`, the status is written in any case. The write fails if the object has changed since it was read, so an
    operator that acts on an old observation goes no further.
    """
    status = build_status(seen.job, seen.pods, seen.view, seen.now, seen.refusal, situation)
    if status == seen.job.status and not guard:
        return ()
    return (a.WriteStatus(status), *changed(seen.job.status, status))
