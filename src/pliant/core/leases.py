"""Leases and deadlines, kept in memory and never stored (rule 19).

A coordinator that starts, or takes over, grants every lease again: expiry may come late, never early. The caller passes
the time, from a clock that never goes back. A renewal costs the same for one lease as for a million. Time in which the
coordinator itself slept, or was isolated, must not expire leases: see `Leases.waking_time` and `IsolationDetector`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

LEASE_TTL_S = 10.0
"""Default time to live of a lease, in seconds."""

RENEWALS_PER_LEASE = 3
"""How often a member or an agent renews within one lease: two renewals may be lost without consequences."""

K = TypeVar("K", bound=Hashable)


class Leases(Generic[K]):
    """The deadline of each key, extended by renewals.

    `pause_s` bounds how long the owner may go without calling `expired`. After a longer gap the owner was asleep
    itself, and the time it slept does not count against any lease.
    """

    __slots__ = ("_granted", "_heap", "_last", "_pause_s", "_slept_s", "_until")

    def __init__(self, pause_s: float) -> None:
        self._until: dict[K, tuple[float, float]] = {}  # key to (deadline, time to live), in waking time
        self._heap: list[tuple[float, int, K]] = []
        self._granted = 0  # breaks ties in the heap, in the order of granting
        self._pause_s = pause_s
        self._last: float | None = None
        self._slept_s = 0.0

    def __contains__(self, key: K) -> bool:
        return key in self._until

    def __len__(self) -> int:
        return len(self._until)

    def ttl_s(self, key: K) -> float | None:
        """Return the time to live of the lease of `key`; None if there is none."""
        held = self._until.get(key)
        return held[1] if held is not None else None

    def grant(self, key: K, ttl_s: float, now: float) -> None:
        """Grant a lease when `key` appears. A second call starts its time again."""
        deadline = self.waking_time(now) + ttl_s
        held = self._until.get(key)
        self._until[key] = (deadline, ttl_s)
        if held is None or deadline < held[0]:
            self._granted += 1
            heappush(self._heap, (deadline, self._granted, key))

    def renew(self, key: K, now: float) -> bool:
        """Renew the lease of `key`. Return False if there is none: it must be granted first."""
        held = self._until.get(key)
        if held is None:
            return False
        self._until[key] = (self.waking_time(now) + held[1], held[1])
        return True

    def drop(self, key: K) -> None:
        """Remove the lease of `key`."""
        self._until.pop(key, None)
        if len(self._heap) > 64 + 2 * len(self._until):
            self._heap = [(until, order, key) for order, (key, (until, _)) in enumerate(self._until.items())]
            heapify(self._heap)

    def expired(self, now: float, vouched: Callable[[K], float | None]) -> list[K]:
        """Return the keys whose time is over, each once, and remove their leases. Call often.

        `vouched(key)` may return a later sign of life than the last renewal, in waking time: a report of a generation
        is one for all its members. It is called only here, so that a report costs the same for any number of members.
        """
        self._note_sleep(now)
        awake = self.waking_time(now)
        over: list[K] = []
        while self._heap and self._heap[0][0] <= awake:
            _, order, key = heappop(self._heap)
            held = self._until.get(key)
            if held is None:
                continue
            until, ttl_s = held
            sign = vouched(key) if until <= awake else None
            if sign is not None:
                until = max(until, sign + ttl_s)
                self._until[key] = (until, ttl_s)
            if until > awake:
                heappush(self._heap, (until, order, key))
            else:
                del self._until[key]
                over.append(key)
        return over

    def _note_sleep(self, now: float) -> None:
        self._slept_s += self._unnoted_sleep(now)
        self._last = now

    def _unnoted_sleep(self, now: float) -> float:
        """Return how long the owner slept since the last call of `expired`."""
        return max(now - self._last - self._pause_s, 0.0) if self._last is not None else 0.0

    def waking_time(self, now: float) -> float:
        """Convert to waking time, which stands still while the owner sleeps."""
        return now - self._slept_s - self._unnoted_sleep(now)


class IsolationDetector:
    """Detects that the coordinator receives no messages at all, so that it is probably cut off itself (rule 19).

    The coordinator is isolated from the start until the first message, and again after `quiet_s` without one. `quiet_s`
    must be less than the rest of a lease whose holder renews as rarely as it may.
    """

    __slots__ = ("_last_contact", "_quiet_s")

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._last_contact: float | None = None

    def note_contact(self, now: float) -> bool:
        """Record a message. Return True if it ended an isolation: then every lease must start again."""
        ended = self.is_isolated(now)
        self._last_contact = now
        return ended

    def is_isolated(self, now: float) -> bool:
        """Return whether the coordinator is isolated. Until it is not, no member may expire."""
        return self.quiet_s(now) > self._quiet_s

    def quiet_s(self, now: float) -> float:
        """Return the time since the last message; infinite if there was none."""
        return now - self._last_contact if self._last_contact is not None else inf
