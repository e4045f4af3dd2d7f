"""The part of the plan that can be granted now. Slots are granted only when they are free.

A job that must shrink is granted less at once; it drains, and its slots become free when its workers are gone. A job
that may grow is granted more only from slots that no worker occupies and no other grant covers. So what jobs hold never
exceeds the pool, at any moment, although jobs change one by one.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.allocate.cost import within_cost
from pliant.core.allocate.deadline import size_needed
from pliant.core.allocate.model import Allotment, Demand, Leaving, Pool
from pliant.core.allocate.plan import Plan, PlanLine, make_plan
from pliant.core.allocate.reasons import Explainer, wait_reason
from pliant.core.allocate.sizes import sizes_of


def allocate(
    pool: Pool, demands: tuple[Demand, ...], leaving: tuple[Leaving, ...] = (), *, is_counting: bool = False
) -> tuple[Allotment, ...]:
    """Return what each job gets and why, by rank: jobs with a minimum first, then those that wait.

    `leaving` are ended jobs that still occupy slots. With `is_counting`, a new leader does not know yet which workers
    run, so that no slot counts as free. Call it again with the result in `granted` and `planned`: it changes nothing.
    """
    demands = tuple(
        replace(each, granted=0, planned=None) if each.suspended or each.refused else within_cost(each)
        for each in demands
    )
    ended = sum(each.held for each in leaving)
    plan, slots = make_plan(pool, demands, ended), pool.slots - ended
    sizes = _sizes(slots, plan, demands, is_counting=is_counting)
    spots = _spots(pool, plan, sizes)
    explainer = Explainer(pool, plan, sizes, [each.name for each in leaving], is_counting=is_counting)
    found = []
    position = 0
    for line in plan.lines:
        name = line.demand.name
        position += not sizes[name]
        reason, why = explainer.grant(line)
        found.append(
            Allotment(
                name,
                sizes[name],
                line.size,
                reason,
                why,
                spots[name],
                0 if sizes[name] else position,
                line.misses_deadline,
            )
        )
    for place, waiting in enumerate(plan.waiting, position + 1):
        demand, why = waiting.demand, wait_reason(pool, plan, waiting)
        misses = size_needed(demand, sizes_of(demand), 0) == 0
        found.append(Allotment(demand.name, 0, 0, waiting.reason, why, position=place, misses_deadline=misses))
    return tuple(found)


def _sizes(slots: int, plan: Plan, demands: tuple[Demand, ...], *, is_counting: bool) -> dict[str, int]:
    """Return the size that each planned job may have now, of the slots that are there for all."""
    held = {demand.name: demand.held for demand in demands}
    sizes = {line.demand.name: min(line.size, line.demand.granted) for line in plan.lines}
    taken = {demand.name: max(held[demand.name], sizes.get(demand.name, 0)) for demand in demands}
    free = slots - sum(taken.values())
    for line in reversed(plan.lines):
        if free < 0 and sizes[line.demand.name] > line.demand.held:  # the pool lost slots that it has not occupied yet
            after = _cut(line, sizes[line.demand.name], -free)
            free += sizes[line.demand.name] - max(after, line.demand.held)
            sizes[line.demand.name], taken[line.demand.name] = after, max(after, line.demand.held)
    free = min(0, free) if is_counting else free
    _grow(plan, sizes, taken, free)
    return sizes


def _grow(plan: Plan, sizes: dict[str, int], taken: dict[str, int], free: int) -> None:
    """Give free slots to the jobs that are planned to have more, by rank. Minimums of jobs that start come first.

    So a job that starts gets the slots that were released for it, although a job before it wants more by now.
    """
    minimums = sum(line.sizes[0] for line in plan.lines if not sizes[line.demand.name])
    owed = 0  # slots that the jobs so far still need: no job behind them may grow into them
    for line in plan.lines:
        name, least = line.demand.name, line.sizes[0]
        starts = not sizes[name]
        minimums -= least if starts else 0  # the rest is for jobs behind it
        if line.size == sizes[name]:
            continue
        # Workers beyond the grant are leaving. Their slots are not free before they are gone, for this job neither.
        if line.demand.held <= line.demand.granted:
            sizes[name] = _largest(line, sizes[name], taken[name], free - minimums - owed)
            if starts and not sizes[name] and least - taken[name] <= free - minimums:
                sizes[name] = least
        used = max(0, sizes[name] - taken[name])
        free -= used
        owed += max(0, line.size - taken[name]) - used


def _cut(line: PlanLine, size: int, over: int) -> int:
    """Return a size that is smaller by `over`, if the job can have it without giving up workers or its minimum."""
    able = [each for each in line.sizes if line.demand.held <= each <= size]
    fitting = [each for each in able if each <= size - over]
    return fitting[-1] if fitting else able[0] if able else size


def _largest(line: PlanLine, now: int, taken: int, free: int) -> int:
    """Return the largest size up to the planned one for which there is room; `now` if none pays off yet."""
    index = line.at
    while index >= 0 and line.sizes[index] > now:
        if line.sizes[index] - taken <= max(0, free) and (index == line.at or line.pays_off(index)):
            return line.sizes[index]
        index -= 1
    return now


def _spots(pool: Pool, plan: Plan, sizes: dict[str, int]) -> dict[str, int]:
    """Return how many spot slots each job should use: minimums get the reserved slots first, then surplus by rank."""
    reserved = pool.slots - pool.spot
    kept: dict[str, int] = {}
    for line in plan.lines:
        kept[line.demand.name] = min(sizes[line.demand.name], line.sizes[0], max(0, reserved))
        reserved -= kept[line.demand.name]
    for line in plan.lines:
        more = min(sizes[line.demand.name] - kept[line.demand.name], max(0, reserved))
        kept[line.demand.name] += more
        reserved -= more
    return {name: sizes[name] - kept[name] for name in sizes}
