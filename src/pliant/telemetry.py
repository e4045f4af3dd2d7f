"""What is counted, under the names that Prometheus will know it by, and how log lines look."""

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
LINE_MAX = 4000  # characters of a log line; a reason that somebody gave may have a million


class CoordinatorMetrics:
    """One coordinator's numbers. No label has as many values as there are members: a scrape stays small."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.leads = Gauge("pliant_coordinator_leads", "1 while this coordinator decides.", registry=registry)
        self.jobs = Gauge("pliant_jobs", "Jobs by state.", ["state"], registry=registry)
        self.members = Gauge("pliant_members", "Members of jobs that have not ended.", registry=registry)
        self.workers = Gauge(
            "pliant_workers", "What workers do now; see `pliant report`.", ["doing"], registry=registry
        )
        self.waiting = Gauge("pliant_watchers", "Watches and event streams that are open now.", registry=registry)
        self.events = Counter("pliant_events", "Events written, by type.", ["type"], registry=registry)
        self.answers = Counter(
            "pliant_commands", "Commands and signs of life answered.", ["command", "outcome"], registry=registry
        )
        self.bugs = Counter("pliant_bugs", "Decisions refused because they would break a promise.", registry=registry)
        self.pumps = Histogram(
            "pliant_pump_seconds", "One pump: decide, write, answer.", buckets=_QUICK, registry=registry
        )
        self.requests = Histogram(
            "pliant_http_request_seconds",
            "From a request's arrival to its answer; a watch waits on purpose.",
            ["route", "status"],
            buckets=_SLOW,
            registry=registry,
        )
        self.turned_away = Counter(
            "pliant_http_turned_away", "Requests that did not pass the gate, by reason.", ["reason"], registry=registry
        )

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)


def _truncated_message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return text if len(text) <= LINE_MAX else f"{text[:LINE_MAX]}... ({len(text)} characters)"


class _JsonLines(logging.Formatter):
    """A log line as one JSON object, for machines that collect them."""

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
    """A log line for people: the time, how bad it is unless it is not, and what is said."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        said = _truncated_message(record)
        if not said.isprintable():  # others are quoted in it: their line breaks and terminal codes must not act
            said = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in said)
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{said}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class LogLimiter:
    """Keeps a line that strangers can cause from filling the disk: so many in a while, then their number."""

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        self._most = most
        self._seconds = seconds
        self._since = -seconds
        self._count = 0
        self._unsaid = 0

    def admit(self, now: float | None = None) -> int | None:
        """None: do not say it. A number: say it, and that so many were not said before."""
        now = time.monotonic() if now is None else now
        if now - self._since >= self._seconds:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > self._most:
            self._unsaid += 1
            return None
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid


def configure_logging(stream: IO[str] | None = None, *, as_json: bool = False, level: int = logging.INFO) -> None:
    """Call once when a program starts; a library never does. Without a stream, standard error is meant."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("pliant").setLevel(level)
    logging.getLogger("uvicorn").setLevel(
        logging.ERROR
    )  # it warns of every malformed request, and anybody can send one
