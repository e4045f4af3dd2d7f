"""The choice of faults, times and victims: a pure function of a seed and of the job's members.

Fault number n depends on the seed and on n alone, and its victims are drawn by rank. The same seed and the same
membership give the same faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pliant.chaos.fault_kinds import FaultKind
from pliant.errors import BadInput


class Cut(StrEnum):
    """The connections that a partition cuts."""

    ISOLATED = "isolated"  # between a member and all others: its peers and the coordinator
    PEERS = "peers"  # between a member and its peers
    COORDINATOR = "coordinator"  # between a member and the coordinator
    INBOUND = "inbound"  # a member receives nothing; what it sends arrives
    OUTBOUND = "outbound"  # nothing that a member sends arrives; it receives
    COORDINATOR_ISOLATED = "coordinator-isolated"  # between the coordinator and all members


DEFAULT_KINDS = (FaultKind.KILL, FaultKind.STOP, FaultKind.PARTITION, FaultKind.KILL_COORDINATOR, FaultKind.SLOW)
KINDS = (*DEFAULT_KINDS, FaultKind.KILL_ALL)
COORDINATOR = "coordinator"  # as a victim; agents never give a member this name

JITTER = 0.25  # share of the interval by which a fault may come earlier or later
TWO_VICTIMS_SHARE = 0.2  # share of kills that hit two workers, where there are enough
LONG_SHARE = 0.3  # share of stops and cuts that last longer than a lease
SHORT_S = (0.5, 4.0)
LONG_LEASES = (1.2, 1.6)
SLOW_S = (2.0, 6.0)


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """The options of one chaos run."""

    seed: int
    kinds: tuple[FaultKind, ...]
    every_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class ChaosTarget:
    """A member of the current world.

    `active` is whether it holds the state and is not leaving, `reachable` whether its process runs on this machine.
    """

    member: str
    active: bool
    reachable: bool


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The job when a fault is due.

    `members` are ordered by rank. `live` is whether workers called `pliant.join()`; otherwise killing one restarts all.
    `not_training` is the reason why the job does not train, or empty.
    """

    members: tuple[ChaosTarget, ...]
    size_min: int
    lease_s: float
    coordinator_reachable: bool = True
    live: bool = True
    not_training: str = ""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault. `lasts_s` is 0 for a fault that cannot be undone."""

    number: int
    kind: FaultKind
    victims: tuple[str, ...]
    lasts_s: float = 0.0
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Postponed:
    """A fault that is due but cannot be injected now, and the reason."""

    kind: FaultKind
    why: str


def parse_kinds(text: str) -> tuple[FaultKind, ...]:
    """Parse a list such as `kill,stop`. Raise BadInput for an unknown kind."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part not in KINDS:
            raise BadInput(f"Unknown fault {part!r}. Choose from: {', '.join(KINDS)}.")
        found.append(FaultKind(part))
    if not found:
        raise BadInput(f"--faults is empty. Choose from: {', '.join(KINDS)}.")
    return tuple(dict.fromkeys(found))


def due_time(options: ChaosOptions, number: int) -> float | None:
    """Return the seconds from the start to that fault, or None past the end. The first fault has number 0."""
    jitter = _random_for(options, number, "when").uniform(-JITTER, JITTER)
    due = options.every_s * (number + 0.5 + jitter)
    return due if due < options.for_s else None


def draw_fault(options: ChaosOptions, number: int, snapshot: JobSnapshot) -> PlannedFault | Postponed:
    """Draw the fault of that number for the job as it is now."""
    rng = _random_for(options, number, "what")
    kind = rng.choice(options.kinds)
    if snapshot.not_training:
        return Postponed(kind, snapshot.not_training)
    active = sum(each.active for each in snapshot.members)
    if active < snapshot.size_min:
        return Postponed(kind, f"{active} of at least {snapshot.size_min} workers hold the state")
    match kind:
        case FaultKind.KILL:
            return _draw_kill(number, rng, snapshot)
        case FaultKind.KILL_ALL:
            return _draw_all(number, snapshot)
        case FaultKind.KILL_COORDINATOR:
            return (
                PlannedFault(number, kind, (COORDINATOR,))
                if snapshot.coordinator_reachable
                else Postponed(kind, NO_COORDINATOR)
            )
        case FaultKind.SLOW:
            lasts_s = rng.uniform(*SLOW_S)
            victim = _choose_one(rng, [each.member for each in snapshot.members if each.reachable])
            return PlannedFault(number, kind, (victim,), lasts_s) if victim else Postponed(kind, NO_WORKER)
        case FaultKind.STOP:
            return _draw_stop(number, rng, snapshot)
        case FaultKind.PARTITION:
            return _draw_partition(number, rng, snapshot)
        case _:
            raise ValueError(f"`pliant chaos` cannot inject {kind}.")


NO_WORKER = "no worker of the job runs on this machine"
NO_COORDINATOR = "the coordinator was not started by `pliant run` on this machine"
LAST_HOLDER = "no other member holds the state"
NOT_LIVE = "the job is not live: its workers have not called pliant.join()"


def _draw_kill(number: int, rng: random.Random, snapshot: JobSnapshot) -> PlannedFault | Postponed:
    two, order = rng.random() < TWO_VICTIMS_SHARE, _shuffled(rng, snapshot.members)
    victims: list[str] = []
    for each in (each for each in order if each.reachable):
        if len(victims) < (2 if two else 1) and _leaves_a_holder(snapshot, (*victims, each.member)):
            victims.append(each.member)
    if not victims:
        return Postponed(FaultKind.KILL, LAST_HOLDER if any(each.reachable for each in order) else NO_WORKER)
    return PlannedFault(number, FaultKind.KILL, tuple(victims))


def _draw_all(number: int, snapshot: JobSnapshot) -> PlannedFault | Postponed:
    victims = tuple(each.member for each in snapshot.members if each.reachable)
    return PlannedFault(number, FaultKind.KILL_ALL, victims) if victims else Postponed(FaultKind.KILL_ALL, NO_WORKER)


def _draw_stop(number: int, rng: random.Random, snapshot: JobSnapshot) -> PlannedFault | Postponed:
    lasts_s = _draw_duration(rng, snapshot)
    return _draw_one_victim(number, FaultKind.STOP, rng, snapshot, lasts_s, None)


def _draw_partition(number: int, rng: random.Random, snapshot: JobSnapshot) -> PlannedFault | Postponed:
    cut, lasts_s = rng.choice(tuple(Cut)), _draw_duration(rng, snapshot)
    if not snapshot.live:
        return Postponed(FaultKind.PARTITION, NOT_LIVE)
    if cut is Cut.COORDINATOR_ISOLATED and snapshot.coordinator_reachable:
        return PlannedFault(number, FaultKind.PARTITION, (COORDINATOR,), lasts_s, cut)
    if cut is Cut.COORDINATOR_ISOLATED:
        cut = Cut.COORDINATOR
    return _draw_one_victim(number, FaultKind.PARTITION, rng, snapshot, lasts_s, cut)


def _draw_one_victim(
    number: int, kind: FaultKind, rng: random.Random, snapshot: JobSnapshot, lasts_s: float, cut: Cut | None
) -> PlannedFault | Postponed:
    """Draw a member. A fault that may cost the job this member requires another member that holds the state."""
    here = [each.member for each in _shuffled(rng, snapshot.members) if each.reachable]
    short = cut is None and lasts_s < snapshot.lease_s / 2
    able = [member for member in here if short or _leaves_a_holder(snapshot, (member,))]
    if not able:
        return Postponed(kind, LAST_HOLDER if here else NO_WORKER)
    return PlannedFault(number, kind, (able[0],), lasts_s, cut)


def _leaves_a_holder(snapshot: JobSnapshot, victims: Iterable[str]) -> bool:
    gone = set(victims)
    return not snapshot.live or any(each.active and each.member not in gone for each in snapshot.members)


def _draw_duration(rng: random.Random, snapshot: JobSnapshot) -> float:
    long, share = rng.random() < LONG_SHARE, rng.random()
    low, high = (snapshot.lease_s * leases for leases in LONG_LEASES) if long else SHORT_S
    return low + share * (high - low)


def _shuffled(rng: random.Random, members: Sequence[ChaosTarget]) -> list[ChaosTarget]:
    return rng.sample(members, len(members))


def _choose_one(rng: random.Random, names: Sequence[str]) -> str:
    return rng.choice(names) if names else ""


def _random_for(options: ChaosOptions, number: int, what: str) -> random.Random:
    return random.Random(f"{options.seed} {number} {what}")
