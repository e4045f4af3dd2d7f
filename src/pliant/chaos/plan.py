"""Which faults, when, and at whom: a pure function of a seed and of what is alive.

The nth fault is drawn from the seed and from n alone, and its victims by their ranks. So whoever meets the same
membership with the same seed meets the same faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pliant.chaos.fault_kinds import FaultKind
from pliant.errors import BadInput


class Cut(StrEnum):
    """Who is cut off from whom."""

    EVERYBODY = "everybody"  # a member from its peers and from the coordinator
    PEERS = "peers"  # a member from its peers alone
    COORDINATOR = "coordinator"  # a member from the coordinator alone
    DEAF = "deaf"  # a member hears nobody; what it says arrives
    MUTE = "mute"  # nobody hears a member; it hears them
    ALONE = "alone"  # the coordinator from everybody


USUAL = (FaultKind.KILL, FaultKind.STOP, FaultKind.PARTITION, FaultKind.KILL_COORDINATOR, FaultKind.SLOW)
KINDS = (*USUAL, FaultKind.KILL_ALL)
COORDINATOR = "coordinator"  # as a victim; no member is called that by any agent

JITTER = 0.25  # of the time between two faults, to either side
TWO = 0.2  # how often two workers are killed at once, where there are enough
LONG = 0.3  # how often a stop or a cut lasts longer than a lease
SHORT_S = (0.5, 4.0)
LONG_LEASES = (1.2, 1.6)
SLOW_S = (2.0, 6.0)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for."""

    seed: int
    kinds: tuple[FaultKind, ...]
    every_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Somebody:
    """A member of the current world: whether it holds the state and stays, and whether its process can be reached."""

    member: str
    active: bool
    here: bool


@dataclass(frozen=True, slots=True)
class Alive:
    """What is alive when a fault is due. `members` are by rank. `why` says why the job does not train; empty: it does.

    `live` is whether its workers are members themselves: if they are not, one that is killed takes the others along.
    """

    members: tuple[Somebody, ...]
    size_min: int
    lease_s: float
    coordinator: bool = True  # whether its process can be reached
    live: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: at whom, and for how long; 0 for what cannot be undone."""

    number: int
    kind: FaultKind
    victims: tuple[str, ...]
    lasts_s: float = 0.0
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class NotNow:
    """A fault is due, and this is not its moment."""

    kind: FaultKind
    why: str


def parse(text: str) -> tuple[FaultKind, ...]:
    """`kill,stop`. BadInput names what there is."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part not in KINDS:
            raise BadInput(f"There is no fault {part!r}. There are {', '.join(KINDS)}.")
        found.append(FaultKind(part))
    if not found:
        raise BadInput(f"Which faults? Say for instance kill,stop; there are {', '.join(KINDS)}.")
    return tuple(dict.fromkeys(found))


def moment(wish: Wish, number: int) -> float | None:
    """When that fault is due, in seconds from the start; None: not any more. The first one has the number 0."""
    jitter = _chance(wish, number, "when").uniform(-JITTER, JITTER)
    due = wish.every_s * (number + 0.5 + jitter)
    return due if due < wish.for_s else None


def draw(wish: Wish, number: int, alive: Alive) -> Fault | NotNow:
    """The fault of that number, for whoever is alive now."""
    chance = _chance(wish, number, "what")
    kind = chance.choice(wish.kinds)
    if alive.why:
        return NotNow(kind, alive.why)
    active = sum(each.active for each in alive.members)
    if active < alive.size_min:
        return NotNow(kind, f"{active} of at least {alive.size_min} workers hold the state")
    match kind:
        case FaultKind.KILL:
            return _kill(number, chance, alive)
        case FaultKind.KILL_ALL:
            return _all(number, alive)
        case FaultKind.KILL_COORDINATOR:
            return Fault(number, kind, (COORDINATOR,)) if alive.coordinator else NotNow(kind, NO_COORDINATOR)
        case FaultKind.SLOW:
            lasts_s = chance.uniform(*SLOW_S)
            victim = _one(chance, [each.member for each in alive.members if each.here])
            return Fault(number, kind, (victim,), lasts_s) if victim else NotNow(kind, NOBODY)
        case FaultKind.STOP:
            return _stop(number, chance, alive)
        case FaultKind.PARTITION:
            return _partition(number, chance, alive)
        case _:
            raise ValueError(f"`pliant chaos` has no fault {kind}.")


NOBODY = "no worker of the job can be reached here"
NO_COORDINATOR = "the coordinator is not one that `pliant run` keeps on this machine"
LAST = "nobody else holds the state"
NOT_LIVE = "its workers are not members: they have not called pliant.join()"


def _kill(number: int, chance: random.Random, alive: Alive) -> Fault | NotNow:
    two, order = chance.random() < TWO, _shuffled(chance, alive.members)
    victims: list[str] = []
    for each in (each for each in order if each.here):
        if len(victims) < (2 if two else 1) and _leaves_a_holder(alive, (*victims, each.member)):
            victims.append(each.member)
    if not victims:
        return NotNow(FaultKind.KILL, LAST if any(each.here for each in order) else NOBODY)
    return Fault(number, FaultKind.KILL, tuple(victims))


def _all(number: int, alive: Alive) -> Fault | NotNow:
    victims = tuple(each.member for each in alive.members if each.here)
    return Fault(number, FaultKind.KILL_ALL, victims) if victims else NotNow(FaultKind.KILL_ALL, NOBODY)


def _stop(number: int, chance: random.Random, alive: Alive) -> Fault | NotNow:
    lasts_s = _lasts_s(chance, alive)
    return _at_one(number, FaultKind.STOP, chance, alive, lasts_s, None)


def _partition(number: int, chance: random.Random, alive: Alive) -> Fault | NotNow:
    cut, lasts_s = chance.choice(tuple(Cut)), _lasts_s(chance, alive)
    if not alive.live:
        return NotNow(FaultKind.PARTITION, NOT_LIVE)
    if cut is Cut.ALONE and alive.coordinator:
        return Fault(number, FaultKind.PARTITION, (COORDINATOR,), lasts_s, cut)
    if cut is Cut.ALONE:
        cut = Cut.COORDINATOR
    return _at_one(number, FaultKind.PARTITION, chance, alive, lasts_s, cut)


def _at_one(
    number: int, kind: FaultKind, chance: random.Random, alive: Alive, lasts_s: float, cut: Cut | None
) -> Fault | NotNow:
    """A member that may be lost by it, unless it is short: then somebody else must hold the state."""
    here = [each.member for each in _shuffled(chance, alive.members) if each.here]
    short = cut is None and lasts_s < alive.lease_s / 2
    able = [member for member in here if short or _leaves_a_holder(alive, (member,))]
    if not able:
        return NotNow(kind, LAST if here else NOBODY)
    return Fault(number, kind, (able[0],), lasts_s, cut)


def _leaves_a_holder(alive: Alive, victims: Iterable[str]) -> bool:
    gone = set(victims)
    return not alive.live or any(each.active and each.member not in gone for each in alive.members)


def _lasts_s(chance: random.Random, alive: Alive) -> float:
    long, share = chance.random() < LONG, chance.random()
    low, high = (alive.lease_s * leases for leases in LONG_LEASES) if long else SHORT_S
    return low + share * (high - low)


def _shuffled(chance: random.Random, members: Sequence[Somebody]) -> list[Somebody]:
    return chance.sample(members, len(members))


def _one(chance: random.Random, names: Sequence[str]) -> str:
    return chance.choice(names) if names else ""


def _chance(wish: Wish, number: int, what: str) -> random.Random:
    return random.Random(f"{wish.seed} {number} {what}")
