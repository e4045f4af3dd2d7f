"""Simulated clusters with faults, and planted bugs that their checks find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.coordinator.service import scheduler
from pliant.coordinator.service.scheduler import Scheduler
from pliant.core.allocate import Allotment, Demand, Pool, allocate, cost, plan
from pliant.core.allocate.cost import _pays_for_minimum
from pliant.core.allocate.deadline import size_needed
from pliant.core.allocate.model import CostLimit
from pliant.core.autoscale.pace import SizePace
from pliant.core.job import evolve, next_world
from pliant.core.messages import Event, PermitReturned
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId
from pliant.core.supervisor.signals import OrdersReceived
from pliant_sim.cluster import led_pool
from pliant_sim.cluster.led_pool import LedPool
from pliant_sim.cluster.universe import Universe
from pliant_sim.processes.coordinator import orders_for

KEPT = (3, 6, 7)  # without permits, late orders start too many workers in them
TAKEN_OVER = (38, 53)  # a leader that grants slots too soon exceeds the pool in them
DUE = 9  # jobs of one priority have deadlines for which others must give up workers
LONG = 36  # jobs train for so long that grants settle before one of them ends
STOPPED = 2  # a job stops at its cost limit, and goes on when it is raised
Bug = Callable[[Pool, tuple[Demand, ...]], tuple[Allotment, ...]]


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_no_cluster_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + 10):
        universe = Universe(seed)
        assert universe.run() == [], f"seed {seed}"
        assert universe.decisions > 100


@pytest.mark.parametrize("seed", [17, 57, 98, 147, 206, 296, 372, 1108, 1110, 1462])
def test_a_cluster_that_once_broke_an_invariant_breaks_none(seed: int) -> None:
    assert Universe(seed).run() == []


def test_a_seed_always_gives_the_same_cluster() -> None:
    one, two = Universe(3), Universe(3)
    one.run(), two.run()
    assert (one.decisions, one.fired) == (two.decisions, two.fired)


def grants_occupied_slots(pool: Pool, demands: tuple[Demand, ...]) -> tuple[Allotment, ...]:
    return allocate(pool, tuple(replace(each, held=min(each.held, each.granted)) for each in demands))


def evicts_below_the_minimum(pool: Pool, demands: tuple[Demand, ...]) -> tuple[Allotment, ...]:
    top = max((each.priority for each in demands), default=0)
    lower = tuple(replace(each, size_min=1, unit=1) if each.priority < top else each for each in demands)
    return allocate(pool, lower)


def lets_small_jobs_overtake(pool: Pool, demands: tuple[Demand, ...]) -> tuple[Allotment, ...]:
    return allocate(pool, tuple(replace(each, since=float(each.size_min)) for each in demands))


def forgets_its_plan_and_its_costs(pool: Pool, demands: tuple[Demand, ...]) -> tuple[Allotment, ...]:
    return allocate(pool, tuple(replace(each, granted=0, planned=None) if each.held else each for each in demands))


def gives_no_reason(pool: Pool, demands: tuple[Demand, ...]) -> tuple[Allotment, ...]:
    return tuple(replace(each, why="") if not each.size else each for each in allocate(pool, demands))


def starts_nothing(pool: Pool, demands: tuple[Demand, ...]) -> tuple[Allotment, ...]:
    found = allocate(pool, demands)
    waits = {each.name for each in demands if not each.granted}
    return tuple(replace(each, size=0, position=each.position or 1) if each.name in waits else each for each in found)


@pytest.mark.parametrize(
    "bug",
    [
        grants_occupied_slots,
        evicts_below_the_minimum,
        lets_small_jobs_overtake,
        forgets_its_plan_and_its_costs,
        gives_no_reason,
        starts_nothing,
    ],
)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    assert any(Universe(seed, bug).run() for seed in range(30))


def test_a_deadline_that_takes_no_workers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_meet_deadlines", lambda _, free, __: free)
    assert "workers, and peers can spare" in Universe(DUE).run()[0]


def test_jobs_that_take_what_another_one_needs_for_its_deadline_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.PlanLine, "least", property(lambda _: 0))
    assert "workers, and peers can spare" in Universe(DUE).run()[0]


def test_a_deadline_without_hysteresis_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "size_needed", lambda demand, sizes, _: size_needed(demand, sizes, 0))
    assert "loses its deadline" in Universe(DUE).run()[0]


def test_a_job_that_takes_workers_for_a_deadline_that_it_misses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hopes(demand: Demand, sizes: tuple[int, ...], kept: int) -> int | None:
        return size_needed(demand, sizes, kept) or (sizes[-1] if demand.deadline else None)

    monkeypatch.setattr(plan, "size_needed", hopes)
    assert "for a deadline that needs 0" in Universe(DUE).run()[0]


@pytest.mark.parametrize("seed", KEPT)
def test_no_pool_has_more_processes_than_slots_whoever_leads_it(seed: int) -> None:
    led = LedPool(seed)
    assert led.run() == []
    assert led.decisions > 10


class Hasty(Scheduler):
    """A leader that grants free slots at once, although workers of an earlier one may still start."""

    def __init__(self) -> None:
        super().__init__()
        self._led_since = -1e9


class Forgetful(Scheduler):
    """A leader for which the workers of an ended job are gone."""

    def _look(self, managed: list[Job], ended: list[Job], now: float) -> None:
        super()._look(managed, ended, now)
        self._remains = {}


@pytest.mark.parametrize("make", [Hasty, Forgetful])
def test_a_leader_that_grants_slots_too_soon_is_found(make: Callable[[], Scheduler]) -> None:
    assert any(is_exceeded(LedPool(seed, make)) for seed in TAKEN_OVER)


def test_a_job_that_reaches_its_cost_limit_stops_and_goes_on_when_it_is_raised() -> None:
    assert LedPool(STOPPED).run() == []


def keeps_no_reserve(demand: Demand, cost: CostLimit, price: float, least: int) -> bool:
    return cost.left > 0 if demand.granted else _pays_for_minimum(demand, cost, price, least)


def test_a_job_that_trains_until_its_limit_is_spent_exceeds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_pays_for_minimum", keeps_no_reserve)
    assert "has spent" in Universe(5).run()[0]
    assert "has spent" in LedPool(STOPPED).run()[0]


def test_a_leader_that_keeps_the_minimum_of_a_job_at_its_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "STOPS", ())
    assert "has spent" in LedPool(STOPPED).run()[0]


def test_members_that_stay_without_a_grant_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_world, "_without_grant", lambda *_: ())
    assert "has no grant, and members that do not leave" in LedPool(STOPPED).run()[0]


def test_a_record_that_charges_only_some_changes_of_the_workers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = evolve.evolve

    def forgetful(job: Job | None, event: Event) -> Job:
        found = real(job, event)
        if job is not None and isinstance(event, PermitReturned):
            return replace(found, spent=job.spent)
        return found

    monkeypatch.setattr(led_pool, "evolve", forgetful)
    assert "its record has" in LedPool(STOPPED).run()[0]


def test_grants_by_the_speed_of_the_last_report_alone_never_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_the_last(self: SizePace, samples: float, seconds: float) -> None:
        self.samples, self.seconds = samples / seconds * 60.0, 60.0

    monkeypatch.setattr(SizePace, "add", keep_the_last)
    assert "grants still change although nothing happened" in LedPool(LONG).run()[0]


@pytest.mark.parametrize("seed", KEPT)
def test_an_agent_that_needs_no_permits_exceeds_the_pool(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def orders_without_permits(job: Job, agent: AgentId, revision: int) -> OrdersReceived:
        return replace(orders_for(job, agent, revision), permitted=None)

    monkeypatch.setattr(led_pool, "orders_for", orders_without_permits)
    assert is_exceeded(LedPool(seed))


def is_exceeded(led: LedPool) -> bool:
    return any("processes on 12 slots" in complaint for complaint in led.run())
