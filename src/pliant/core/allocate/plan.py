"""The division of the pool that is aimed at: minimums first, then the rest by priority, deadline, queue share and gain.

The plan starts from the one before and changes only what must change or what pays off, so that two calls agree and no
two jobs take from one another in turn. `grants` decides which part of the plan can be granted now.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace

from pliant.core.allocate.cost import within_cost
from pliant.core.allocate.deadline import size_needed
from pliant.core.allocate.model import Demand, Pool, QueueRule, Reason
from pliant.core.allocate.sizes import HORIZON_S, URGENCY, curve_of, seconds_left, sizes_of

STAY_S = 5.0  # a job keeps its size this long, or five times as long as a change of it takes
ADVANTAGE = 1.05  # slots move to another job only where they are worth this much more


@dataclass(slots=True)
class PlanLine:
    """The working state of one job that has its minimum: the index of its planned size, and what each size is worth."""

    demand: Demand
    sizes: tuple[int, ...]
    values: tuple[float, ...]
    left_s: float  # until its end, at its smallest size
    weight: float
    at: int
    granted: int  # the index of the size it has; -1: it starts
    stays: bool  # it changed a moment ago
    needed: int  # the index of the smallest size that meets its deadline; 0: its smallest size, or there is none
    misses_deadline: bool  # at every size

    @property
    def size(self) -> int:
        return self.sizes[self.at]

    @property
    def youth(self) -> tuple[float, str]:
        """The sort key that puts younger jobs first."""
        return -self.demand.since, self.demand.name

    @property
    def surplus(self) -> int:
        return self.sizes[self.at] - self.sizes[0]

    @property
    def least(self) -> int:
        """The index of the smallest size to which jobs of its priority reduce it: they do not take its deadline."""
        return self.needed if self.at >= self.needed else 0

    @property
    def step_up(self) -> int:
        """The slots that the next larger size takes; 0: there is none."""
        return self.sizes[self.at + 1] - self.size if self.at + 1 < len(self.sizes) else 0

    @property
    def step_down(self) -> int:
        """The slots that the next smaller size releases; 0: it has its minimum."""
        return self.size - self.sizes[self.at - 1] if self.at else 0

    @property
    def gain(self) -> float:
        """The worth of each slot of the next larger size."""
        return self.weight * (self.values[self.at + 1] - self.values[self.at]) / self.step_up

    @property
    def loss(self) -> float:
        """The worth of each slot that the next smaller size releases."""
        return self.weight * (self.values[self.at] - self.values[self.at - 1]) / self.step_down

    @property
    def is_changing(self) -> bool:
        return self.at != self.granted

    @property
    def is_movable(self) -> bool:
        """Return whether its size may change for a gain: it starts, or did not just change and was measured."""
        return self.granted < 0 or not (self.stays or self.demand.is_measured_anew)

    @property
    def cost(self) -> float:
        """The worth of the time that a change of its size takes; nothing if its size changes anyway."""
        return 0.0 if self.is_changing else self.demand.pause_s * self.weight * self.values[self.at]

    @property
    def horizon_s(self) -> float:
        return min(HORIZON_S, self.left_s / self.values[self.at])

    def pays_off(self, at: int) -> bool:
        """Return whether a change from the granted size to another one is worth its cost."""
        if self.granted < 0:
            return True
        before = self.values[self.granted]
        horizon_s = min(HORIZON_S, self.left_s / before)
        return horizon_s * (self.values[at] - before) > self.demand.pause_s * before


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that does not get its minimum. `ahead` is the first job that waits before it, if that is the reason."""

    demand: Demand
    reason: Reason
    ahead: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs with their planned sizes, by rank, and the jobs that wait, by rank."""

    lines: tuple[PlanLine, ...]
    waiting: tuple[Waiting, ...]


def rank_of(demand: Demand) -> tuple[int, float, str]:
    """Return the sort key of minimums: priority, then age."""
    return -demand.priority, demand.since, demand.name


def make_plan(pool: Pool, demands: tuple[Demand, ...], ended: int = 0) -> Plan:
    """Return the planned size of every job that gets its minimum, and the reason of every job that waits.

    `ended` are the slots that processes of ended jobs still occupy.
    """
    lines, waiting = _admit(pool, sorted(demands, key=rank_of), ended)
    shares = _Shares(pool, lines)
    budget = pool.slots - sum(line.sizes[0] for line in lines)
    by_priority: dict[int, list[PlanLine]] = defaultdict(list)
    for line in lines:
        by_priority[line.demand.priority].append(line)
    for peers in by_priority.values():  # in the order of the lines: the highest priority first
        budget = _divide(peers, max(0, budget), shares)
    return Plan(tuple(lines), tuple(waiting))


# ---------------------------------------------------------------------------------------------- minimums


def _admit(pool: Pool, demands: list[Demand], ended: int) -> tuple[list[PlanLine], list[Waiting]]:
    """Give every running job its minimum, then each waiting job in turn, as long as all of them fit."""
    limits = {rule.name: rule.limit for rule in pool.queues if rule.limit is not None}
    floors = {demand.name: sizes_of(demand)[0] for demand in demands}
    running = {demand.name for demand in demands if demand.granted} - _displaced(pool, demands, floors, ended)
    taken = sum(floors[name] for name in running)
    used: dict[str, int] = defaultdict(int)
    for demand in demands:
        used[demand.queue] += floors[demand.name] if demand.name in running else 0
    lines, waiting = [], []
    first = ""  # the job that waits for room; no job behind it starts
    first_in: dict[str, str] = {}  # the same for each queue
    for demand in demands:
        floor, limit = floors[demand.name], limits.get(demand.queue)
        if demand.suspended:
            waiting.append(Waiting(demand, Reason.SUSPENDED))
        elif demand.refused:
            waiting.append(Waiting(demand, Reason.REFUSED))
        elif demand.cost is not None and _is_unpaid(demand, demand.name in running):
            waiting.append(Waiting(demand, Reason.NO_PRICE if demand.cost.price is None else Reason.COST_LIMIT))
        elif demand.name in running:
            lines.append(_line(demand))
        elif floor > pool.slots:
            waiting.append(Waiting(demand, Reason.POOL_TOO_SMALL))
        elif limit is not None and floor > limit:
            waiting.append(Waiting(demand, Reason.QUEUE_TOO_SMALL))
        elif ahead := first or first_in.get(demand.queue, ""):
            waiting.append(Waiting(demand, Reason.BEHIND, ahead))
        elif limit is not None and used[demand.queue] + floor > limit:
            waiting.append(Waiting(demand, Reason.QUEUE_FULL))
            first_in[demand.queue] = demand.name
        elif taken + floor > pool.slots:
            waiting.append(Waiting(demand, Reason.NO_ROOM))
            first = demand.name
        else:
            lines.append(_line(demand if demand.held else replace(demand, granted=0)))  # it starts, perhaps again
            taken += floor
            used[demand.queue] += floor
    return lines, waiting


def _is_unpaid(demand: Demand, is_running: bool) -> bool:
    """Return whether the cost limit does not pay for a job. A job that lost all its workers has to start again."""
    found = demand if is_running or demand.held else within_cost(replace(demand, granted=0))
    return found.cost is not None and found.cost.workers == 0


def _displaced(pool: Pool, demands: list[Demand], floors: dict[str, int], ended: int) -> set[str]:
    """Return jobs that were granted workers and do not count as running any more, because the pool lost slots.

    These are jobs without any worker if not all grants fit, and jobs that lost so many workers that they cannot reach
    their minimum: the last ones, until the rest fits. A job that has its minimum is never among them.
    """
    fits = ended + sum(max(demand.held, demand.granted) for demand in demands) <= pool.slots
    displaced = {demand.name for demand in demands if demand.granted and not (fits or demand.held)}
    over = sum(floors[each.name] for each in demands if each.granted and each.name not in displaced) - pool.slots
    for demand in reversed(demands):
        if over > 0 and demand.granted and 0 < demand.held < floors[demand.name]:
            displaced.add(demand.name)
            over -= floors[demand.name]
    return displaced


def _line(demand: Demand) -> PlanLine:
    """Return the line of a job at its planned size. Sizes that are no faster stay possible if it has one of them."""
    curve = curve_of(demand)
    left_s = seconds_left(demand)
    most = max(demand.granted, demand.planned or 0)
    more = tuple(size for size in sizes_of(demand) if curve.sizes[-1] < size <= most) if most > curve.sizes[-1] else ()
    sizes, values = curve.sizes + more, curve.speeds + curve.speeds[-1:] * len(more)
    at = _index(sizes, demand.granted if demand.planned is None else demand.planned)
    needed = size_needed(demand, sizes, sizes[at])
    return PlanLine(
        demand,
        sizes,
        values,
        left_s=left_s,
        weight=left_s**-URGENCY,
        at=at,
        granted=_index(sizes, demand.granted) if demand.granted else -1,
        stays=demand.unchanged_s is not None and demand.unchanged_s < max(STAY_S, 5 * demand.pause_s),
        needed=sizes.index(needed) if needed else 0,
        misses_deadline=needed == 0,
    )


def _index(sizes: tuple[int, ...], size: int) -> int:
    """Return the index of the largest size that is not above `size`, or of the smallest one."""
    return max(0, bisect_right(sizes, size) - 1)


# ------------------------------------------------------------------------------------------------ the rest


class _Shares:
    """The slots that each queue has, and may have."""

    def __init__(self, pool: Pool, lines: list[PlanLine]) -> None:
        rules = {rule.name: rule for rule in pool.queues}
        names = {line.demand.queue for line in lines}
        self._rules = {name: rules.get(name, QueueRule(name)) for name in names}
        weights = sum(rule.weight for rule in self._rules.values())
        self.fair = {name: pool.slots * rule.weight / weights for name, rule in self._rules.items()}
        self.used: dict[str, int] = defaultdict(int)
        for line in lines:
            self.used[line.demand.queue] += line.sizes[0]

    def relative(self, queue: str) -> float:
        return self.used[queue] / self._rules[queue].weight

    def room(self, queue: str) -> float:
        limit = self._rules[queue].limit
        return float("inf") if limit is None else limit - self.used[queue]

    def move(self, line: PlanLine, by: int) -> int:
        """Change a line by one size up or down, and return the slots that it takes."""
        slots = line.step_up if by > 0 else -line.step_down
        line.at += by
        self.used[line.demand.queue] += slots
        return slots

    def restore(self, lines: list[PlanLine], start: list[int]) -> None:
        """Change lines back to their sizes at an earlier moment."""
        for line, at in zip(lines, start, strict=True):
            while line.at != at:
                self.move(line, 1 if line.at < at else -1)


def _divide(peers: list[PlanLine], budget: int, shares: _Shares) -> int:
    """Plan the sizes of jobs of one priority. Return the slots that are left for lower priorities."""
    for line in peers:
        shares.used[line.demand.queue] += line.surplus
    free = budget - sum(line.surplus for line in peers)
    for queue in {line.demand.queue for line in peers}:
        members = [line for line in peers if line.demand.queue == queue]
        free += _shrink(members, -shares.room(queue), shares)
    free += _shrink(peers, -free, shares)
    free = _meet_deadlines(peers, free, shares)
    free -= _fill(peers, free, shares)
    free = _return_borrowed(peers, free, shares)
    for queue in sorted({line.demand.queue for line in peers}):
        free = _rebalance([line for line in peers if line.demand.queue == queue], free, shares)
    return free


def _shrink(lines: list[PlanLine], over: float, shares: _Shares) -> int:
    """Release at least `over` slots, where it costs least; of equal jobs, the youngest first. Return the slots.

    Jobs that would miss their deadlines then are the last ones.
    """
    released = 0
    while released < over:
        donors = [line for line in lines if line.at > line.least] or [line for line in lines if line.at]
        if not donors:
            break
        least = min(line.loss for line in donors)
        released -= shares.move(max((x for x in donors if x.loss == least), key=lambda x: rank_of(x.demand)), -1)
    return released


def _meet_deadlines(lines: list[PlanLine], free: int, shares: _Shares) -> int:
    """Give jobs that would miss their deadlines what they need, the earliest deadline first. Return the free slots.

    The slots come from jobs that meet their deadlines with less, or have none. A job gets all that it needs or nothing.
    """
    late = [(line.demand.deadline.in_s, rank_of(line.demand), line) for line in lines if line.demand.deadline]
    for _, _, taker in sorted(late, key=lambda each: each[:2]):
        start, left = [line.at for line in lines], free
        while taker.at < taker.needed:
            is_full = shares.room(taker.demand.queue) < taker.step_up
            if left >= taker.step_up and not is_full:
                left -= shares.move(taker, +1)
                continue
            donors = [x for x in lines if x is not taker and x.at > x.least]
            donors = [x for x in donors if not is_full or x.demand.queue == taker.demand.queue]
            if not donors:
                break
            donor = min(donors, key=lambda x: (-shares.relative(x.demand.queue), x.loss, x.youth))
            left -= shares.move(donor, -1)
        if taker.at >= taker.needed:
            free = left
        else:
            shares.restore(lines, start)
    return free


def _fill(lines: list[PlanLine], free: int, shares: _Shares) -> int:
    """Give free slots away: to the queue with the least for its weight, there to the highest gain. Return the slots.

    A running job whose change would not pay off is left as it is.
    """
    unpaid: set[str] = set()
    while True:
        before = {line.demand.name: line.at for line in lines}
        given = 0
        while (line := _neediest(lines, free - given, shares, unpaid)) is not None:
            given += shares.move(line, +1)
        worthless = [x for x in lines if x.at != before[x.demand.name] and not x.pays_off(x.at)]
        if not worthless:
            return given
        unpaid |= {line.demand.name for line in worthless}
        for line in lines:  # again, without them
            while line.at > before[line.demand.name]:
                shares.move(line, -1)


def _neediest(lines: list[PlanLine], free: int, shares: _Shares, unpaid: set[str]) -> PlanLine | None:
    """Return the job that gets the next slots."""
    able = [
        line
        for line in lines
        if 0 < line.step_up <= min(free, shares.room(line.demand.queue))
        and line.demand.name not in unpaid
        and line.gain > 0
        and line.is_movable
    ]
    return min(able, key=lambda x: (shares.relative(x.demand.queue), -x.gain, rank_of(x.demand)), default=None)


def _return_borrowed(lines: list[PlanLine], free: int, shares: _Shares) -> int:
    """Move slots from queues above their share to queues below it. Return the free slots."""
    while True:
        takers = [x for x in lines if x.step_up > free and x.gain > 0 and x.step_up <= shares.room(x.demand.queue)]
        takers = [x for x in takers if shares.used[x.demand.queue] + x.step_up <= shares.fair[x.demand.queue]]
        if not takers:
            return free
        taker = min(takers, key=lambda x: (shares.relative(x.demand.queue), -x.gain, rank_of(x.demand)))
        moved: list[PlanLine] = []
        found = free
        while found < taker.step_up:
            donors = [
                x
                for x in lines
                if x.at > x.least
                and x.demand.queue != taker.demand.queue
                and shares.used[x.demand.queue] - x.step_down >= shares.fair[x.demand.queue]
            ]
            if not donors:
                break
            donor = min(donors, key=lambda x: (-shares.relative(x.demand.queue), x.loss, x.youth))
            found -= shares.move(donor, -1)
            moved.append(donor)
        if found < taker.step_up:
            for donor in moved:
                shares.move(donor, +1)
            return free
        free = found - shares.move(taker, +1)


def _rebalance(peers: list[PlanLine], free: int, shares: _Shares) -> int:
    """Move slots between jobs of one queue where that is worth more than the changes cost. Return the free slots."""
    movable = [line for line in peers if line.is_movable]
    while True:
        least = min((line.loss for line in movable if line.at > line.least), default=0.0)
        for taker in sorted((x for x in movable if x.step_up), key=lambda x: (-x.gain, rank_of(x.demand))):
            if not free and taker.gain <= ADVANTAGE * least:
                return free
            after = _take(taker, [x for x in movable if x is not taker], free, shares)
            if after is not None:
                free = after
                break
        else:
            return free


def _take(taker: PlanLine, donors: list[PlanLine], free: int, shares: _Shares) -> int | None:
    """Give `taker` as many sizes more as pay off, taken from `donors`. Return the free slots, or None if none do."""
    lines = [taker, *donors]
    start = [line.at for line in lines]
    horizon_s, cost, net = taker.horizon_s, taker.cost, 0.0
    best, best_at, best_free = 0.0, start, free
    touched: set[str] = set()
    while taker.step_up:
        step, worth, lost = taker.step_up, taker.gain * taker.step_up, 0.0
        while free < step:
            donor = min((x for x in donors if x.at > x.least), key=lambda x: (x.loss, x.youth), default=None)
            if donor is None:
                break
            lost += donor.loss * donor.step_down
            cost += 0.0 if donor.demand.name in touched else donor.cost
            touched.add(donor.demand.name)
            free -= shares.move(donor, -1)
        if free < step or worth <= ADVANTAGE * lost or shares.room(taker.demand.queue) < step:
            break
        free -= shares.move(taker, +1)
        net += worth - lost
        if horizon_s * net - cost > best:
            best, best_at, best_free = horizon_s * net - cost, [line.at for line in lines], free
    shares.restore(lines, best_at)
    return best_free if best > 0 else None
