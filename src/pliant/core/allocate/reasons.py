"""Sentences that explain to a person why a job has its size, or why it waits."""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest

from pliant.core.allocate.deadline import end_in_s
from pliant.core.allocate.model import CostLimit, Deadline, Pool, Reason
from pliant.core.allocate.plan import Plan, PlanLine, Waiting
from pliant.core.allocate.sizes import sizes_of

NAMES_MAX = 3  # jobs named in a sentence; the rest are counted


class Explainer:
    """The sums over a plan that reasons need, and the reasons of its jobs. `sizes` are those that jobs may have now."""

    def __init__(self, pool: Pool, plan: Plan, sizes: dict[str, int], leaving: list[str], *, is_counting: bool) -> None:
        self._pool = pool
        self._plan = plan
        self._sizes = sizes
        self._floors = sum(line.sizes[0] for line in plan.lines)
        self._planned = sum(line.size for line in plan.lines)
        self._limits = {rule.name: rule.limit for rule in pool.queues if rule.limit is not None}
        self._used = Counter[str]()
        for line in plan.lines:
            self._used[line.demand.queue] += line.size
        self._releasing = [line.demand.name for line in plan.lines if line.demand.held > sizes[line.demand.name]]
        self._releasing += [waiting.demand.name for waiting in plan.waiting if waiting.demand.held]
        self._releasing += [name for name in leaving if name not in self._releasing]
        self._is_counting = is_counting

    def grant(self, line: PlanLine) -> tuple[Reason, str]:
        """Return why a job that gets its minimum has its size, and the sentence that says so."""
        reason, why = self._grant(line)
        return reason, why if reason is Reason.DEADLINE else why + _deadline_note(line, self._sizes[line.demand.name])

    def _grant(self, line: PlanLine) -> tuple[Reason, str]:
        pool, queue = self._pool, line.demand.queue
        size, wanted = self._sizes[line.demand.name], sizes_of(line.demand)[-1]
        if size != line.size:
            return self._growing(line, size)
        if size >= wanted and line.demand.cost is not None and line.demand.cost.workers is not None:
            return Reason.COST, f"{size}: more workers would exceed its cost limit of {amount(line.demand.cost.most)}"
        if line.needed and line.at == line.needed and line.demand.deadline is not None:
            return Reason.DEADLINE, f"{size} of {wanted}: {_deadline_reason(line, line.demand.deadline)}"
        if size >= wanted:
            return Reason.ALL, f"{size} of {wanted}: all that it can use"
        prefix = f"{size} of {wanted}"
        if self._floors > pool.slots:
            return (
                Reason.LOST,
                f"{prefix}: the pool has only {_slots(pool.slots)}, fewer than the minimums of running jobs",
            )
        used, limit = self._used[queue], self._limits.get(queue)
        if line.step_up and limit is not None and used + line.step_up > limit:
            return Reason.QUEUE_LIMIT, f"{prefix}: queue {queue} has {used} of the {limit} that it may have"
        lines = self._plan.lines
        if lines[0].demand.priority > line.demand.priority:
            higher = [each for each in lines if each.demand.priority > line.demand.priority]
            return Reason.PRIORITY, f"{prefix}: {_holders(higher, pool, 'with a higher priority')}"
        has_room = pool.slots - self._planned >= line.step_up
        if has_room and line.step_up and line.gain > 0 and not line.is_movable:
            return Reason.HELD, f"{prefix}: {_held(line)}"
        if not line.step_up or has_room:
            return Reason.NO_GAIN, f"{prefix}: it would gain less from more workers than a change costs"
        others = [each for each in lines if each is not line and each.demand.priority == line.demand.priority]
        if others:
            is_measured = any(each.demand.speeds and not each.needed for each in others if each.demand.queue == queue)
            by = ", by speeds and remaining times" if is_measured else ""
            return Reason.SHARED, f"{prefix}: {_holders(others, pool, 'beside it')}{by}"
        if len(lines) > 1:
            count = sum(self._sizes[each.demand.name] for each in lines if each is not line)
            return Reason.MINIMUMS, f"{prefix}: the minimums of other running jobs take {count} of {_slots(pool.slots)}"
        return Reason.POOL, f"{prefix}: the pool has {_slots(pool.slots)}"

    def _growing(self, line: PlanLine, size: int) -> tuple[Reason, str]:
        """Return the reason of a job that gets more once other jobs have released it."""
        until = f"once {_listed(self._releasing)} released them" if self._releasing else "as soon as they are free"
        until = "once the new leader knows which workers run" if self._is_counting else until
        if not size:
            return Reason.RELEASING, f"starts with {_workers(line.size)} {until}"
        return Reason.GROWING, f"{size} of {line.size}: gets {line.size - size} more {until}"


def wait_reason(pool: Pool, plan: Plan, waiting: Waiting) -> str:
    """Return the sentence for a job that waits for its minimum."""
    deadline = waiting.demand.deadline
    is_over = deadline is not None and deadline.in_s <= 0
    return _wait_reason(pool, plan, waiting) + ("; its deadline is over" if is_over else "")


def _wait_reason(pool: Pool, plan: Plan, waiting: Waiting) -> str:
    least = sizes_of(waiting.demand)[0]
    match waiting.reason:
        case Reason.POOL_TOO_SMALL:
            return f"needs {_workers(least)}, the pool has {_slots(pool.slots)}"
        case Reason.QUEUE_TOO_SMALL | Reason.QUEUE_FULL:
            queue = waiting.demand.queue
            limit = next(rule.limit for rule in pool.queues if rule.name == queue)
            used = sum(line.sizes[0] for line in plan.lines if line.demand.queue == queue)
            if waiting.reason is Reason.QUEUE_TOO_SMALL:
                return f"needs {_workers(least)}, queue {queue} may have {limit}"
            return f"needs {_workers(least)}, the minimums in queue {queue} are {used} of the {limit} it may have"
        case Reason.SUSPENDED:
            return "it is suspended"
        case Reason.REFUSED:
            return f"no machine can run it: {waiting.demand.refused}"
        case Reason.BEHIND:
            return f"behind {waiting.ahead}"
        case Reason.COST_LIMIT | Reason.NO_PRICE if waiting.demand.cost is not None:
            return _cost_wait(waiting.demand.cost, least)
        case _:
            taken = sum(line.sizes[0] for line in plan.lines)
            return f"needs {_workers(least)}, running jobs need {taken} of {_slots(pool.slots)} as their minimums"


def _cost_wait(cost: CostLimit, least: int) -> str:
    """Return why a job waits, without what it has spent: each other sentence is an event."""
    if cost.price is None:
        return f"has a cost limit of {amount(cost.most)}, and the pool has no price of a slot now"
    return (
        f"the rest of its cost limit of {amount(cost.most)} is too little for {_workers(least)} "
        f"at {cost.price:g} for a slot and hour"
    )


def _held(line: PlanLine) -> str:
    if line.demand.is_measured_anew:
        return "keeps its size until the new leader has measured its speed"
    return "keeps its size for a moment, because it has just changed"


def _deadline_reason(line: PlanLine, deadline: Deadline) -> str:
    """Return why a job has the smallest size that meets its deadline: its end with the size below that."""
    fewer = line.sizes[line.needed - 1]
    late_s = (end_in_s(deadline, fewer) or 0.0) - deadline.in_s
    end = f"{duration(late_s)} late" if late_s > 0 else f"only {duration(-late_s)} early"
    return f"its deadline is in {duration(deadline.in_s)}, and with {_workers(fewer)} it would end {end}"


def _deadline_note(line: PlanLine, size: int) -> str:
    """Return the addition to another reason: whether the job meets its deadline; empty if it has none."""
    deadline = line.demand.deadline
    if deadline is None:
        return ""
    if deadline.in_s <= 0:
        return "; its deadline is over"
    found = line.sizes[-1] if line.misses_deadline else size or line.size
    end_s = end_in_s(deadline, found)
    until = f"; its deadline is in {duration(deadline.in_s)}"
    if end_s is None:
        return f"{until}, and its speed is not known yet"
    late_s = end_s - deadline.in_s
    even = "even " if line.misses_deadline else ""
    end = f"{duration(late_s)} late" if late_s > 0 else f"{duration(-late_s)} early"
    return f"{until}, and {even}with {_workers(found)} it would end {end}"


def duration(seconds: float) -> str:
    """Return a duration such as `45 s`, `40 min` or `2 h 10 min`, rounded down."""
    for each, unit, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= each:
            more = int(seconds % each // part)
            return f"{int(seconds // each)} {unit}" + (f" {more} {smaller}" if more else "")
    return f"{int(seconds // 60)} min" if seconds >= 60 else f"{int(seconds)} s"


def amount(cost: float) -> str:
    """Return a cost with two decimals, or with more if it is small."""
    return f"{cost:.2f}" if cost >= 0.1 or not cost else f"{cost:.2g}"


def _holders(lines: list[PlanLine], pool: Pool, which: str) -> str:
    """Return which jobs have how many slots, the largest first."""
    largest = nsmallest(NAMES_MAX, lines, key=lambda line: (-line.size, line.demand.name))
    total = sum(line.size for line in lines)
    verb = "has" if len(lines) == 1 else "have"
    return (
        f"{_named([line.demand.name for line in largest], len(lines))} {which} {verb} {total} of {_slots(pool.slots)}"
    )


def _listed(names: list[str]) -> str:
    verb = "has" if len(names) == 1 else "have"
    return f"{_named(names, len(names))} {verb}"


def _named(names: list[str], count: int) -> str:
    shown = ", ".join(names[:NAMES_MAX])
    return shown if count <= NAMES_MAX else f"{shown} and {count - NAMES_MAX} more"


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def _slots(count: int) -> str:
    return f"{count} slot" if count == 1 else f"{count} slots"
