"""The demands of jobs, the pool, and the part of it that each job gets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import inf

from pliant.core.model.names import bad_name

DEFAULT_QUEUE = "default"
PRICES_MAX = 10_000
PRICE_MAX = 1e12
Prices = tuple[tuple[float, float], ...]  # of one slot for an hour, from a time on: (time, price), ascending
SLOTS_MAX = 1_000_000  # catches typing errors


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A queue: its share of the pool by weight, and the most that its jobs may have together.

    A queue borrows what others do not use, beyond its share but never beyond its limit.
    """

    name: str
    weight: float = 1.0
    limit: int | None = None  # None: no limit


@dataclass(frozen=True, slots=True)
class Pool:
    """The machines of all jobs, counted in slots: places for one worker each. `spot` of them may be taken away.

    With `is_lent` the slots are those of the machines that are lent at the moment, and `slots` is 0 in the store.
    `cluster_slots` are those of them that the nodes of a Kubernetes cluster lend, as its operator last reported.
    """

    slots: int
    spot: int = 0
    queues: tuple[QueueRule, ...] = ()
    is_lent: bool = False
    prices: Prices = ()
    cluster_slots: int = 0


@dataclass(frozen=True, slots=True)
class CostLimit:
    """The most that a job may cost, and what it has cost so far. `price` is that of a slot for an hour, None: unknown.

    `samples_left` and `speeds`, (size, samples a second) pairs, are there as far as they are known. `allocate` sets
    `workers` if the limit pays for fewer than the job wants. `spares` cost like workers, and train nothing.
    """

    most: float
    spent: float
    price: float | None
    samples_left: float | None = None
    speeds: tuple[tuple[int, float], ...] = ()
    workers: int | None = None
    spares: int = 0

    @property
    def left(self) -> float:
        return self.most - self.spent


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time by which a job should end, `in_s` seconds from now; 0 or less: it is over.

    `samples_left` and `speeds`, (size, samples a second) pairs, are there as far as they are known. A change of size
    takes `pause_s`, and `spares` train nothing. `was_missed`: no size met the deadline in the last allocation.
    """

    in_s: float
    samples_left: float | None = None
    speeds: tuple[tuple[int, float], ...] = ()
    pause_s: float = 0.0
    spares: int = 0
    was_missed: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one job: the sizes it wants, the size it has, and what was measured of it.

    `held` are the slots that its workers occupy now, also those that are leaving. `granted` is the size that was
    granted last, `planned` the size that the last allocation aimed at. `speeds` are (size, samples a second) pairs of
    the job's own undisturbed stretches, `pause_s` the cost of a change, `left` the samples until it has finished.
    """

    name: str
    size_min: int
    wanted: int
    priority: int = 0  # higher first
    since: float = 0.0  # the time it was created: the smaller, the older
    queue: str = DEFAULT_QUEUE
    unit: int = 1  # workers of one pod; slots are granted in whole pods
    sizes: tuple[int, ...] = ()  # the only sizes it can have; empty: all
    held: int = 0
    granted: int = 0  # 0: it waits
    planned: int | None = None
    unchanged_s: float | None = None  # since its last change; None: long ago
    speeds: tuple[tuple[int, float], ...] = ()
    pause_s: float = 0.0
    left: float | None = None  # None: unknown
    cost: CostLimit | None = None  # None: it has no limit
    suspended: bool = False  # it wants no worker
    deadline: Deadline | None = None
    is_measured_anew: bool = False  # a new leader does not know its speed yet
    refused: str = ""  # why no machine can run it, if none can


@dataclass(frozen=True, slots=True)
class Leaving:
    """An ended job whose workers may still run, and the slots that they occupy."""

    name: str
    held: int


def bad_pool(pool: Pool) -> str:
    """Return what is wrong with a pool, or the empty string."""
    if not 0 <= pool.slots <= SLOTS_MAX:
        return f"a pool must have 0 to {SLOTS_MAX} slots; got {pool.slots}"
    if pool.is_lent and (pool.slots or pool.spot):
        return "a pool of lent machines has the slots that they lend: leave out the numbers of slots and spot slots"
    if pool.cluster_slots and not pool.is_lent:
        return "only a pool of lent machines takes the slots of a cluster: set it with `pliant queue set --slots auto`"
    if not 0 <= pool.cluster_slots <= SLOTS_MAX:
        return f"a cluster can lend 0 to {SLOTS_MAX} slots; got {pool.cluster_slots}"
    if not 0 <= pool.spot <= pool.slots:
        return f"the spot slots must be 0 to {pool.slots}, the size of the pool; got {pool.spot}"
    names = [rule.name for rule in pool.queues]
    if len(set(names)) < len(names):
        return "each queue can be named once"
    for rule in pool.queues:
        if wrong := bad_name(rule.name):
            return f"the name of a queue is not valid: {wrong}"
        if not 0 < rule.weight < inf:
            return f"the weight of queue {rule.name} must be above 0 and finite; got {rule.weight}"
        if rule.limit is not None and rule.limit < 0:
            return f"the limit of queue {rule.name} cannot be negative; got {rule.limit}"
    return bad_prices(pool.prices)


def bad_prices(prices: Prices) -> str:
    """Return what is wrong with the prices of a pool, or the empty string."""
    if len(prices) > PRICES_MAX:
        return f"a pool can have up to {PRICES_MAX} prices; got {len(prices)}: leave out the oldest"
    if any(not 0 <= price <= PRICE_MAX for _, price in prices):
        return f"a price must be from 0 to {PRICE_MAX:g}"
    if any(after <= before for (before, _), (after, _) in pairwise(prices)):
        return "prices must be in the order of their times, each time once"
    return ""


class Reason(StrEnum):
    """The reason for the size of a job. Those in `WAITS` are for jobs that wait."""

    SUSPENDED = "suspended"
    REFUSED = "refused"
    COST_LIMIT = "cost-limit"
    NO_PRICE = "no-price"
    POOL_TOO_SMALL = "pool-too-small"
    QUEUE_TOO_SMALL = "queue-too-small"
    QUEUE_FULL = "queue-full"
    BEHIND = "behind"
    NO_ROOM = "no-room"
    RELEASING = "releasing"
    ALL = "all"
    COST = "cost"
    DEADLINE = "deadline"
    LOST = "lost"
    GROWING = "growing"
    HELD = "held"
    NO_GAIN = "no-gain"
    PRIORITY = "priority"
    MINIMUMS = "minimums"
    QUEUE_LIMIT = "queue-limit"
    SHARED = "shared"
    POOL = "pool"


# A job that runs stops for these, although it has its minimum.
STOPS = (Reason.SUSPENDED, Reason.COST_LIMIT, Reason.NO_PRICE)
WAITS = (
    *STOPS,
    Reason.REFUSED,
    Reason.POOL_TOO_SMALL,
    Reason.QUEUE_TOO_SMALL,
    Reason.QUEUE_FULL,
    Reason.BEHIND,
    Reason.NO_ROOM,
    Reason.RELEASING,
)


@dataclass(frozen=True, slots=True)
class Allotment:
    """The part of the pool that one job gets.

    It may use `size` now. `planned` follows as soon as other jobs have released slots. `spot` of the
    slots should be spot ones. `position` counts the jobs that wait, from 1; 0: it does not wait. `misses_deadline`: its
    deadline is over, or no size that it can have meets it.
    """

    name: str
    size: int
    planned: int
    reason: Reason
    why: str
    spot: int = 0
    position: int = 0
    misses_deadline: bool = False
