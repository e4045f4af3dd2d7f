"""Metrics for Prometheus, and the format of log lines."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import IO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

_QUICK = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOW = (*_QUICK, 10.0, 30.0, 60.0)
LINE_MAX = 4000  # characters of a log line; a quoted reason may have a million


class CoordinatorMetrics:
    """The metrics of one coordinator. No label has a value for each member, so that a scrape stays small."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
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

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


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
