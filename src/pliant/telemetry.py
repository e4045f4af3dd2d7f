"""Metrics for Prometheus, and the format of log lines."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Summary,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pliant.core.accounting.pauses import KINDS
from pliant.core.messages import Event, Launched, MemberGone, StepsCommitted, WorkerFailed, WorldEntered

_QUICK = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOW = (*_QUICK, 10.0, 30.0, 60.0)
LINE_MAX = 4000  # characters of a log line; a quoted reason may have a million


@dataclass(frozen=True, slots=True)
class JobSample:
    """The values of one job at the moment of a scrape; None: there is no such value."""

    job: str
    state: str
    step: int
    total_steps: int | None
    checkpoint_step: int | None
    size: int
    target: int
    waiting_s: float


class _JobGauges(Collector):
    """The gauges with a `job` label. They exist only for the jobs of the last sample."""

    def __init__(self) -> None:
        self.samples: tuple[JobSample, ...] = ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = GaugeMetricFamily("pliant_job_state", "1 for the state that a job is in.", labels=["job", "state"])
        for each in self.samples:
            state.add_metric([each.job, each.state], 1)
        yield state
        for name, text, values in (
            ("step", "Last step that the coordinator recorded.", [each.step for each in self.samples]),
            ("total_steps", "Steps of the whole job.", [each.total_steps for each in self.samples]),
            ("checkpoint_step", "Step of the newest checkpoint.", [each.checkpoint_step for each in self.samples]),
            ("size", "Workers in the current world.", [each.size for each in self.samples]),
            ("target", "Workers that are wanted.", [each.target for each in self.samples]),
            ("waiting_seconds", "How long it has been waiting for workers.", [x.waiting_s for x in self.samples]),
        ):
            family = GaugeMetricFamily(f"pliant_job_{name}", text, labels=["job"])
            for each, value in zip(self.samples, values, strict=True):
                if value is not None:
                    family.add_metric([each.job], value)
            yield family


class CoordinatorMetrics:
    """The metrics of one coordinator. No label has a value for each member, so that a scrape stays small."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second time series for each counter, which says when it began
        registry = self._registry = CollectorRegistry()
        self._job_gauges = _JobGauges()
        registry.register(self._job_gauges)
        self.job_failures = Counter(
            "pliant_job_failures", "Workers that failed by themselves.", ["job"], registry=registry
        )
        self.job_losses = Counter(
            "pliant_job_lost_members", "Members that were lost: killed, expired or evicted.", ["job"], registry=registry
        )
        self.job_changes = Counter(
            "pliant_job_changes", "Worlds and launches that became current.", ["job"], registry=registry
        )
        self.job_pauses = Summary(
            "pliant_job_pause_seconds",
            "Pauses of training for a switch or a checkpoint.",
            ["job", "kind"],
            registry=registry,
        )
        self._counted_jobs: set[str] = set()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.leads = Gauge("pliant_coordinator_leads", "1 while this coordinator leads.", registry=registry)
        self.jobs = Gauge("pliant_jobs", "Jobs by state.", ["state"], registry=registry)
        self.members = Gauge("pliant_members", "Members of jobs that have not ended.", registry=registry)
        self.workers = Gauge(
            "pliant_workers", "Workers by current activity; see `pliant report`.", ["doing"], registry=registry
        )
        self.waiting = Gauge("pliant_watchers", "Open watches and event streams.", registry=registry)
        self.events = Counter("pliant_events", "Events written, by type.", ["type"], registry=registry)
        self.answers = Counter(
            "pliant_commands", "Commands and renewals answered.", ["command", "outcome"], registry=registry
        )
        self.bugs = Counter(
            "pliant_bugs", "Decisions refused because they would break an invariant.", registry=registry
        )
        self.pumps = Histogram(
            "pliant_pump_seconds", "One pump: decide, write, answer.", buckets=_QUICK, registry=registry
        )
        self.requests = Histogram(
            "pliant_http_request_seconds",
            "Time from a request to its answer; a watch waits on purpose.",
            ["route", "status"],
            buckets=_SLOW,
            registry=registry,
        )
        self.refused = Counter(
            "pliant_http_refused", "Requests refused before routing, by reason.", ["reason"], registry=registry
        )

    def count_event(self, job: str, event: Event) -> None:
        """Count an event of a job."""
        self.events.labels(type(event).__name__).inc()
        match event:
            case WorkerFailed():
                self.job_failures.labels(job).inc()
            case MemberGone(how="lost"):
                self.job_losses.labels(job).inc()
            case WorldEntered() | Launched():
                self.job_changes.labels(job).inc()
            case StepsCommitted():
                for pause in event.pauses:
                    self.job_pauses.labels(job, pause.kind).observe(pause.seconds)
            case _:
                pass
        self._counted_jobs.add(job)

    def sample_jobs(self, samples: Iterable[JobSample]) -> None:
        """Set the values of the jobs to show. The counters of other jobs are removed."""
        self._job_gauges.samples = tuple(samples)
        shown = {each.job for each in self._job_gauges.samples}
        counters = (self.job_failures, self.job_losses, self.job_changes)
        for job in shown:
            for counter in counters:
                counter.labels(job)  # at 0 until the first event, so that a rate has a start
        for job in self._counted_jobs - shown:
            for counter in counters:
                counter.remove(job)
            for kind in KINDS:
                self.job_pauses.remove(job, kind)
        self._counted_jobs = shown

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class OperatorMetrics:
    """The metrics of one operator. It sends them to its coordinator, which serves them together with its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second time series for each counter, which says when it began
        registry = self._registry = CollectorRegistry()
        self.turns = Histogram(
            "pliant_operator_turn_seconds", "One turn: observe, decide, act.", buckets=_SLOW, registry=registry
        )
        self.reconciles = Counter("pliant_operator_reconciles", "Decisions about a job.", registry=registry)
        self.errors = Counter(
            "pliant_operator_errors",
            "Calls that failed: the API server did not answer, or it or the coordinator refused one.",
            ["kind"],
            registry=registry,
        )
        self.calls = Counter(
            "pliant_operator_api_calls", "Calls to the API server.", ["method", "status"], registry=registry
        )
        self.queue = Gauge(
            "pliant_operator_queue_depth", "Jobs of the current turn with actions to carry out.", registry=registry
        )

    def render(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()


def _truncated_message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return text if len(text) <= LINE_MAX else f"{text[:LINE_MAX]}... ({len(text)} characters)"


class _JsonLines(logging.Formatter):
    """Format a log line as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _truncated_message(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _PlainLines(logging.Formatter):
    """Format a log line for people: the time, the level unless it is INFO, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        message = _truncated_message(record)
        if not message.isprintable():  # it may quote a client, whose line breaks and terminal codes must have no effect
            message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{message}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class LogLimiter:
    """Limit how often a line is logged that clients without a credential can cause: `most` times in `seconds`."""

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        self._most = most
        self._seconds = seconds
        self._since = -seconds
        self._count = 0
        self._omitted = 0

    def admit(self, now: float | None = None) -> int | None:
        """Return None if the line must be omitted, else how many were omitted before it."""
        now = time.monotonic() if now is None else now
        if now - self._since >= self._seconds:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > self._most:
            self._omitted += 1
            return None
        omitted, self._omitted = self._omitted, 0
        return omitted


def configure_logging(stream: IO[str] | None = None, *, as_json: bool = False, level: int = logging.INFO) -> None:
    """Configure logging when a program starts. Logs to standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("pliant").setLevel(level)
    # uvicorn warns of every malformed request, and any client can send one.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
