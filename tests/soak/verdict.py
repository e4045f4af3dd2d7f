"""The verdict on a soak: growth, lost steps, falsely lost members, and speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from pliant.core import messages as m
from pliant.wire.api import EVENTS
from soak.looks import Look

GROWTH = 1.10  # of the last third against the middle one
SLACK = {"rss_bytes": 8 * 2**20, "files": 8, "threads": 4}
SETTLED_S = 15.0  # a worker's age from which it is compared with others
STORE_SLACK = 32 * 2**10  # bytes: what faults write beside the steps
FILES_SLACK = 32 * 2**20  # what a store's files may have beyond twice the log: its write-ahead log, above all
LEAST = 5  # looks in a third, below which nothing is said


@dataclass(frozen=True)
class Span:
    """A window as it was."""

    kind: str
    began: float
    ended: float


@dataclass(frozen=True)
class Flat:
    """One number of one role: its median in the middle third, and in the last."""

    what: str
    middle: float
    last: float
    ok: bool


def flatness(seen: Sequence[Look], began: float, ended: float) -> list[Flat]:
    """Return what each role has of everything. Workers are compared once they are settled: young ones have less."""
    third = (ended - began) / 3.0
    found = []
    for role in ("agent", "warden", "coordinator", "worker"):
        looks = [each for each in seen if each.role == role and (role != "worker" or each.age_s >= SETTLED_S)]
        for number, slack in SLACK.items():
            middle = [getattr(each, number) for each in looks if began + third <= each.at < began + 2 * third]
            last = [getattr(each, number) for each in looks if began + 2 * third <= each.at < ended]
            if len(middle) >= LEAST <= len(last):
                found.append(_flat(f"{role} {number}", median(middle), median(last), slack))
    return found


def log_sizes(events: Iterable[m.Event]) -> list[tuple[float, int]]:
    """(time, bytes of the log up to then)."""
    found, total = [], 0
    for event in events:
        total += len(EVENTS.encode(event))
        found.append((event.at, total))
    return found


def store_growth(sizes: Sequence[tuple[float, int]], steps_known: Sequence[tuple[float, int]]) -> list[Flat]:
    """Bytes of the log for each committed step, which the ledger needs: the last third against the middle one.

    `steps_known` are (time, committed steps), ascending as `sizes` are.
    """
    if len(sizes) < 3 * LEAST or len(steps_known) < 2:
        return []
    cuts = [sizes[len(sizes) * part // 3 - (part == 3)] for part in (1, 2, 3)]
    steps = [steps_at(steps_known, at) for at, _ in cuts]
    if steps[1] == steps[0] or steps[2] == steps[1]:
        return []
    middle = (cuts[1][1] - cuts[0][1]) / (steps[1] - steps[0])
    last = (cuts[2][1] - cuts[1][1]) / (steps[2] - steps[1])
    return [_flat("log bytes a step", middle, last, STORE_SLACK / (steps[2] - steps[1]))]


def files_too_large(files_bytes: int, log_bytes: int) -> bool:
    """Return whether a store takes much more room on the disk than what is in it."""
    return files_bytes > 2 * log_bytes + FILES_SLACK


def _flat(what: str, middle: float, last: float, slack: float) -> Flat:
    return Flat(what, middle, last, last <= GROWTH * middle + slack)


def steps_at(known: Sequence[tuple[float, int]], at: float) -> float:
    """Committed steps at that moment, between two reports in proportion."""
    before = known[0]
    for point in known:
        if point[0] > at:
            share = (at - before[0]) / (point[0] - before[0]) if point[0] > before[0] else 1.0
            return before[1] + max(0.0, min(1.0, share)) * (point[1] - before[1])
        before = point
    return before[1]


def progress(events: Iterable[m.Event]) -> list[tuple[float, int]]:
    """(time, committed steps) of every report."""
    return [(event.at, event.lines[-1].lineage.step) for event in events if isinstance(event, m.StepsCommitted)]


def false_evictions(events: Iterable[m.Event], struck: set[str], until: float) -> list[str]:
    """Members that were lost, or left out, though no member had touched them."""
    return [
        f"{event.member} {event.how}: {event.why}"
        for event in events
        if isinstance(event, m.MemberGone) and event.how != "left" and event.member not in struck and event.at < until
    ]


def rate(known: Sequence[tuple[float, int]], spans: Iterable[Span], batch: int) -> float:
    """Samples a second over all these windows."""
    chosen = list(spans)
    seconds = sum(span.ended - span.began for span in chosen)
    steps = sum(steps_at(known, span.ended) - steps_at(known, span.began) for span in chosen)
    return batch * steps / seconds if seconds else 0.0
