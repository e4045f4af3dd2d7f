"""The operator: observe, call `reconcile`, carry out its actions. Watches only wake it; whole lists are the truth."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pliant.client import Client
from pliant.core.messages import Code
from pliant.credentials import is_missing
from pliant.errors import PliantError, Refused
from pliant.kube import actions as a
from pliant.kube.api import ELASTIC_JOBS, ApiRefused, ApiUnreachable, KubeApi, Listing, NameTaken
from pliant.kube.manifests.companions import owners
from pliant.kube.model import Absent, CoordinatorView, ElasticJob, JobView, Pod, Unknown
from pliant.kube.names import JOB_LABEL, PLURAL
from pliant.kube.observe import cluster_slots, lost_nodes, read_job, read_pod, read_view
from pliant.kube.perform import Performer
from pliant.kube.reconcile import Observation, reconcile, report_refusal
from pliant.kube.submissions import ReportSubmission, SubmissionFollower
from pliant.telemetry import OperatorMetrics
from pliant.wire.api import OpenSubmission

log = logging.getLogger(__name__)

POLL_S = 1.0  # between looks at the coordinator
RELIST_S = 30.0  # whole lists are read at least this often
RETRY_S = 2.0  # after a call that failed
REPORT_S = 10.0  # between reports of the metrics
EVERY_REVISION = 2**63


@dataclass(frozen=True, slots=True)
class Lists:
    """Jobs, then pods, then nodes, read in this order."""

    jobs: Listing
    pods: Listing
    nodes: Listing
    at: float


@dataclass(frozen=True, slots=True)
class JobActions:
    """The actions for one job. `item` is its object as the API server sent it."""

    job: ElasticJob
    item: dict[str, Any]
    actions: tuple[a.Action, ...]


@dataclass(slots=True)
class Operator:
    """Runs until it is stopped. It acts only while its coordinator leads, so several may run."""

    api: KubeApi
    client: Client
    performer: Performer
    follower: SubmissionFollower | None = None  # None: no submissions
    clock: Callable[[], float] = time.time
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    _reported_at: float = 0.0
    _slots: int | None = None  # as last reported; None: never
    _slots_at: float = 0.0
    _wake: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lists: Lists | None = None
    _views: dict[str, tuple[int, CoordinatorView]] = field(default_factory=dict)
    _refusals: dict[str, str] = field(default_factory=dict)
    _logged: set[tuple[str, str]] = field(default_factory=set)

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Work until `stop` is called, from another thread or a signal handler."""
        watched: tuple[tuple[str, dict[str, str]], ...] = (
            (f"{ELASTIC_JOBS}/{PLURAL}", {}),
            ("/api/v1/pods", {"labelSelector": JOB_LABEL}),
            ("/api/v1/nodes", {}),
        )
        for path, params in watched:
            threading.Thread(target=self._watch, args=(path, params), name=f"watch {path}", daemon=True).start()
        self._wake.set()
        while not self._stop.is_set():
            woken = self._wake.wait(POLL_S)
            self._wake.clear()
            try:
                with self.metrics.turns.time():
                    self.turn(fresh=woken)
                self._report_metrics()
            except PliantError as error:
                self.metrics.errors.labels("api").inc()
                log.warning("nothing was done: %s", error.why)
                self._lists = None
                self._stop.wait(RETRY_S)
                self._wake.set()

    def _report_metrics(self) -> None:
        """Send the metrics to the coordinator now and then. If it does not answer, it gets them the next time."""
        if self.clock() - self._reported_at < REPORT_S:
            return
        self._reported_at = self.clock()
        try:
            self.client.report_operator_metrics(self.metrics.render())
        except PliantError as error:
            log.info("the metrics were not sent: %s", error.why)

    def _report_slots(self, lists: Lists, seen: list[tuple[Observation, Any]]) -> None:
        """Tell the coordinator's pool how many slots the nodes lend, if that changed or was not told for a while.

        If the coordinator does not answer, it gets the number the next time. Nor is anything reported while the view of
        a job is unknown: the slots in use on closed nodes are unknown then.
        """
        if any(each.job.spec.queue and isinstance(each.view, Unknown) for each, _ in seen):
            return
        slots = cluster_slots(lists.nodes.items, ((each.job, each.pods, each.view) for each, _ in seen))
        if slots == self._slots and self.clock() - self._slots_at < RELIST_S:
            return
        try:
            self.client.report_cluster(slots)
            self._slots, self._slots_at = slots, self.clock()
        except PliantError as error:
            log.info("the slots of the nodes were not reported: %s", error.why)

    def turn(self, *, fresh: bool) -> None:
        """Do what is to be done now. Without `fresh`, whole lists are read only if there is something to do."""
        if not self._leads():
            return
        entries = () if self.follower is None else self.follower.read()
        lists = self._lists
        if (
            lists is not None
            and not fresh
            and self.clock() - lists.at < RELIST_S
            and self._write_only(lists)
            and self._follow(entries, lists, fresh=False)
        ):
            return
        lists = self._lists = self._read()
        self._follow(entries, lists, fresh=True)
        seen = self._observations(lists, self._read_views(lists), lists.pods.revision)
        self._report_slots(lists, seen)
        self._act(self._plans(seen))

    def _follow(self, entries: tuple[OpenSubmission, ...], lists: Lists, *, fresh: bool) -> bool:
        """Do what submissions need. With older lists only report; return False if there is more to do."""
        if self.follower is None:
            return True
        actions = self.follower.plan(entries, lists.jobs.items)
        if not fresh and any(not isinstance(each, ReportSubmission) or not each.only_status for each in actions):
            return False
        self.follower.perform(actions)
        return True

    def _leads(self) -> bool:
        """Return whether to act. A coordinator that does not answer is reported; a standby's operator keeps quiet."""
        try:
            return self.client.about(patience_s=0.0).leads
        except Refused as error:
            if error.code == "other-store":
                self.client.store = None
                self._views.clear()
            return True
        except PliantError:
            return True

    def _read(self) -> Lists:
        return Lists(self.api.jobs(), self.api.pods(), self.api.nodes(), self.clock())

    def _read_views(self, lists: Lists) -> dict[str, JobView]:
        """Return the coordinator's view of each job. One whose revision is the same is not read again."""
        keys = [job.key for item in lists.jobs.items if (job := self._job(item)) is not None]
        try:
            lines = {line.name: line.revision for line in self.client.jobs()}
            store = self.client.store or ""
            views = {key: self._read_view(key, lines.get(key), store) for key in keys}
        except PliantError as error:
            return {key: Unknown(error.why) for key in keys}
        self._views = {key: known for key, known in self._views.items() if key in views}
        return views

    def _read_view(self, key: str, revision: int | None, store: str) -> JobView:
        """Return the view of one job. A refusal is about this job alone."""
        if revision is None:
            return Absent(store)
        known = self._views.get(key)
        try:
            if known is None or known[0] != revision or known[1].store != store:
                self._views[key] = known = (revision, read_view(self.client.job(key), store))
        except Refused as error:
            is_deleted = error.code == Code.NO_JOB  # a moment ago
            return Unknown("The coordinator is changing." if is_deleted else error.why)
        return known[1]

    def _job(self, item: dict[str, Any]) -> ElasticJob | None:
        """Return a job; None for one that this version cannot read, which is logged once."""
        try:
            return read_job(item)
        except (KeyError, TypeError, ValueError) as error:
            self._log_once(item, f"the ElasticJob cannot be read: {error!r}")
            return None

    def _pod(self, item: dict[str, Any], nodes: dict[str, Any], lost: dict[str, float]) -> Pod | None:
        """Return a pod; None for one that cannot be read."""
        try:
            return read_pod(item, nodes, lost)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            self._log_once(item, f"the pod cannot be read: {error!r}")
            return None

    def _log_once(self, item: dict[str, Any], text: str) -> None:
        meta = item.get("metadata", {})
        if (about := (str(meta.get("uid")), text)) not in self._logged:
            self._logged.add(about)
            log.error("%s/%s: %s", meta.get("namespace"), meta.get("name"), text)

    def _observations(self, lists: Lists, views: dict[str, JobView], revision: int) -> list[tuple[Observation, Any]]:
        nodes = {node["metadata"]["name"]: node for node in lists.nodes.items}
        lost = lost_nodes(lists.nodes.items)
        pods: dict[tuple[str, str], list[Pod]] = defaultdict(list)  # by owner: every user may set our labels
        for item in lists.pods.items:
            if (pod := self._pod(item, nodes, lost)) is not None:
                for uid in {*owners(item)}:
                    pods[item["metadata"]["namespace"], uid].append(pod)
        found = []
        for item in lists.jobs.items:
            job = self._job(item)
            if job is None:
                continue
            own = tuple(sorted(pods[job.namespace, job.uid], key=lambda pod: pod.index))
            refusal = self._refusals.get(job.uid, "")
            view = views[job.key]
            found.append((Observation(job, own, revision, view, self.clock(), refusal), item))
        return found

    def _plans(self, seen: list[tuple[Observation, Any]]) -> list[JobActions]:
        self.metrics.reconciles.inc(len(seen))
        plans = [JobActions(each.job, item, self._decide(each, item)) for each, item in seen]
        return [plan for plan in plans if plan.actions]

    def _decide(self, seen: Observation, item: dict[str, Any]) -> tuple[a.Action, ...]:
        """Return the next actions for one job. A job that cannot be decided about gets the reason into its status."""
        try:
            return self.performer.undone(seen.job, reconcile(seen))
        except Exception as error:  # why: a mistake in one object must not stop the jobs of all others
            self.metrics.errors.labels("job").inc()
            why = f"The operator cannot run this job: {error!r}"
            self._log_once(item, why)
        try:
            return report_refusal(replace(seen, refusal=why))
        except Exception as error:  # why: as above
            self._log_once(item, f"The ElasticJob has no status: {error!r}")
            return ()

    def _write_only(self, lists: Lists) -> bool:
        """Bring every status up to date from lists read before. Return False if there is more to do.

        The API server refuses a status whose object changed since.
        """
        plans = self._plans(self._observations(lists, self._read_views(lists), EVERY_REVISION))
        if any(not isinstance(action, a.WriteStatus | a.PublishEvent) for plan in plans for action in plan.actions):
            return False
        self._act(plans)
        return True

    def _act(self, plans: list[JobActions]) -> None:
        creating = {
            plan.job.uid for plan in plans if any(isinstance(each, a.CreatePod | a.CreateJob) for each in plan.actions)
        }
        self._refusals = {uid: why for uid, why in self._refusals.items() if uid in creating}
        for number, plan in enumerate(plans):
            self.metrics.queue.set(len(plans) - number)
            if self._stop.is_set():
                return
            for action in plan.actions:
                if not self._perform(plan.job, plan.item, action):
                    break
        self.metrics.queue.set(0)

    def _perform(self, job: ElasticJob, item: dict[str, Any], action: a.Action) -> bool:
        """Carry out one action. Return False if the job's other actions must wait for the next turn."""
        try:
            self.performer.perform(job, item, action)
        except ApiUnreachable:
            raise
        except ApiRefused as error:
            self.metrics.errors.labels("refused").inc()
            if isinstance(action, a.PublishEvent):
                log.warning("%s: an event was refused: %s", job.key, error.why)
                return True
            self._wake_later()
            if error.status in (404, 409) and not isinstance(error, NameTaken):
                return False  # the object changed or went: the next turn sees it
            self._refusals[job.uid] = error.why
            log.warning("%s: %s was refused: %s", job.key, type(action).__name__, error.why)
            return False
        except PliantError as error:
            self.metrics.errors.labels("coordinator").inc()
            self._wake_later()
            self._refusals[job.uid] = error.why
            log.warning("%s: %s failed: %s", job.key, type(action).__name__, error.why)
            return False
        except Exception as error:  # why: a mistake in one object must not stop the jobs of all others
            self.metrics.errors.labels("job").inc()
            self._wake_later()
            self._refusals[job.uid] = f"{type(action).__name__} failed: {error!r}"
            self._log_once(item, self._refusals[job.uid])
            return False
        if isinstance(action, a.CreatePod | a.CreateJob):
            self._refusals.pop(job.uid, None)
        return True

    def _wake_later(self) -> None:
        timer = threading.Timer(RETRY_S, self._wake.set)
        timer.daemon = True
        timer.start()

    def _watch(self, path: str, params: dict[str, str]) -> None:
        """Wake the operator at every change. A watch that breaks wakes it too, since changes may have been missed."""
        while not self._stop.is_set():
            try:
                revision = self.api.revision(path)
                self._wake.set()
                for change in self.api.watch(path, revision, **params):
                    if change not in self.performer.own_revisions:
                        self._wake.set()
            except PliantError as error:
                log.info("%s", error.why)
                self._stop.wait(RETRY_S)


def make_operator(
    api: KubeApi, client: Client, coordinator_for_pods: str, ca_file: Path | None, submissions: str | None = None
) -> Operator:
    """Return an operator for the cluster of `api`, whose pods reach the coordinator at another URL.

    `submissions` is the namespace of submitted jobs; None: it creates none.
    """
    follower = None if submissions is None else SubmissionFollower(api, client, submissions)
    made = Operator(api, client, Performer(api, client, coordinator_for_pods, ca_file), follower)
    api.on_call = lambda method, status: made.metrics.calls.labels(method, status).inc()
    return made


def wait_for_token(path: Path, limit_s: float = 60.0) -> None:
    """Wait until the coordinator beside the operator has made its token, at its first start."""
    until = time.monotonic() + limit_s
    while is_missing(path) and time.monotonic() < until:
        log.info("waiting for the coordinator to make %s", path)
        time.sleep(RETRY_S)
