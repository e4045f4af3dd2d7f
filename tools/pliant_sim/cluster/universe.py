"""One simulated cluster with faults: machines in zones, pods that start and drain with delays, and a leader.

The leader calls the real `allocate` once a second. Checks run after each of its decisions, and at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from pliant.core.allocate import Allotment, Demand, Pool, QueueRule, allocate
from pliant.core.allocate.cost import RESERVE_S, highest_price, price_at, within_cost
from pliant.core.allocate.deadline import MARGIN
from pliant.core.allocate.model import WAITS, CostLimit, Deadline, Prices, Reason
from pliant.core.allocate.sizes import sizes_of, speed_at
from pliant.core.model.job import HOUR_S

STORM_S = 240  # with faults and new jobs
QUIET_S = 4000  # then every machine is back, until all jobs have ended: this, and a second for each worker-second left
DRAIN_MAX_S = 30
RELEASE_BOUND_S = DRAIN_MAX_S + 10  # a job that others release slots for starts within this, while no machine changes
SETTLE_S = 60  # without a fault, an arrival or an end, nothing changes any more after this
RAISE = 1000.0  # of a cost limit
COST_CHANGES = 12  # of a job's grant for its cost limit: each is to a much smaller size
PRICES = (0.0, 20.0, 60.0, 200.0)  # of a slot and hour: a job costs its limit within minutes
ANEW_S = 30  # a new leader needs so long to measure a job
LATE_CHANGES = 2  # for each size that a job can grow to near its end: another job releases the slots, and it takes them

Allocate = Callable[[Pool, tuple[Demand, ...]], tuple[Allotment, ...]]


@dataclass
class SimMachine:
    zone: int
    slots: int
    spot: bool
    up: bool = True


@dataclass
class SimPod:
    """Some workers of a job on one machine. It works from `ready_at` on, and is gone at `gone_at` if that is set."""

    machine: int
    ready_at: int
    gone_at: int | None = None


@dataclass
class SimJob:
    """A job: its demand without what it has, its work in worker-seconds, and its pods."""

    demand: Demand
    work: float
    pods: list[SimPod] = field(default_factory=list)
    granted: int = 0
    planned: int | None = None
    most: float | None = None  # its cost limit
    spent: float = 0.0
    cost_changes: int = 0  # of its grant, for the cost limit that it has
    deadline: float | None = None
    missed_deadline: bool = False  # in the last decision
    changed_at: int = 0
    anew_until: int = 0  # a new leader has not measured it until then
    releasing_since: int | None = None

    @property
    def held(self) -> int:
        return len(self.pods) * self.demand.unit

    def ready(self, now: int) -> int:
        return sum(pod.ready_at <= now and pod.gone_at is None for pod in self.pods) * self.demand.unit


class Universe:
    """A cluster that depends on its seed alone. `decide` is the real `allocate` unless a test plants a bug.

    Only in clusters of odd seeds have jobs deadlines.
    """

    def __init__(self, seed: int, decide: Allocate = allocate) -> None:
        self._chance = Random(seed)
        self._has_deadlines = bool(seed % 2)
        self._decide = decide
        self._unit = self._chance.choice((1, 1, 2))
        self._machines = [
            SimMachine(zone, self._unit * self._chance.randint(1, 4), spot=self._chance.random() < 0.5)
            for zone in range(self._chance.randint(1, 3))
            for _ in range(self._chance.randint(1, 4))
        ]
        self._queues = self._chance.choice(
            ((), (QueueRule("batch", 1.0), QueueRule("default", 3.0)), (QueueRule("batch", 1.0, limit=4),))
        )
        times = sorted(self._chance.sample(range(1, STORM_S), 6))
        self._prices: Prices = tuple((float(at), self._chance.choice(PRICES)) for at in (0, *times))
        self._jobs: dict[str, SimJob] = {}
        self._made = 0
        self._now = 0
        self._calm_since = 0  # the last fault, arrival or end
        self._late_changes = 0  # of grants, long after it
        self._ends_at = STORM_S + QUIET_S  # all jobs have ended by then
        self.fired: Counter[str] = Counter()
        self.decisions = 0
        self.complaints: list[str] = []

    def run(self) -> list[str]:
        """Run to the end, or to the first complaint, and return the complaints."""
        while not self.complaints and self._now < self._ends_at:
            storm = self._now < STORM_S
            if storm:
                self._strike()
            elif self._now == STORM_S:
                self._end_storm()
            if not storm and not self._jobs:
                break
            self._pods_pass()
            self._lead()
            self._carry_out()
            self._now += 1
        if self._jobs and not self.complaints:
            self._complain(f"{len(self._jobs)} jobs have not ended: {sorted(self._jobs)}")
        return self.complaints

    # ----------------------------------------------------------------------------------------------- faults

    def _strike(self) -> None:
        chance = self._chance
        if self._now == 0 or chance.random() < 0.05:
            self._add_job()
        if chance.random() > 0.12:
            return
        kind = chance.choice(("machine", "zone", "spot", "back", "back", "leader", "resize", "priority", "cancel"))
        self.fired[kind] += 1
        self._calm_since = self._now
        match kind:
            case "machine":
                chance.choice(self._machines).up = False
            case "zone":
                zone = chance.choice(self._machines).zone
                self._set_up(lambda machine: machine.zone == zone, up=False)
            case "spot":
                self._set_up(lambda machine: machine.spot and chance.random() < 0.5, up=False)
            case "back":
                self._set_up(lambda _: chance.random() < 0.5, up=True)
            case "leader":
                for job in self._jobs.values():
                    job.planned, job.anew_until = None, self._now + ANEW_S if job.granted else 0
            case _:
                self._change_job(kind)

    def _set_up(self, which: Callable[[SimMachine], bool], *, up: bool) -> None:
        for machine in self._machines:
            if which(machine):
                machine.up = up

    def _change_job(self, kind: str) -> None:
        if not self._jobs:
            return
        name = self._chance.choice(sorted(self._jobs))
        job = self._jobs[name]
        if kind == "cancel":
            del self._jobs[name]
        elif kind == "priority":
            job.demand = replace(job.demand, priority=self._chance.choice((0, 5)))
        else:
            job.demand = replace(job.demand, wanted=job.demand.size_min + self._chance.randint(0, 12))

    def _add_job(self) -> None:
        chance = self._chance
        self._made += 1
        self._calm_since = self._now
        least = chance.randint(1, 4)
        scaling = chance.choice((0.3, 0.7, 1.0))
        measured = chance.random() < (0.9 if self._has_deadlines else 0.5)
        demand = Demand(
            name=f"job{self._made}",
            size_min=least,
            wanted=least + chance.randint(0, 12),
            priority=chance.choice((0, 0, 0, 5)),
            since=float(self._now),
            queue=chance.choice(("default", "batch")),
            unit=self._unit,
            speeds=tuple((size, size**scaling) for size in (1, 2, 4, 8)) if measured else (),
            pause_s=chance.choice((0.0, 0.5, 5.0)),
        )
        is_limited = chance.random() < (0.1 if self._has_deadlines else 0.5)
        most = least * chance.uniform(2, 15) if is_limited else None
        job = SimJob(demand, work=chance.uniform(10, 600 if most is None else 2000), most=most)
        if self._has_deadlines and chance.random() < 0.7:
            job.deadline = self._now + job.work / speed_at(demand.speeds, least) * chance.uniform(0.3, 1.3)
        self._jobs[demand.name] = job

    def _end_storm(self) -> None:
        """Bring every machine back, and drop jobs that can never start."""
        self._set_up(lambda _: True, up=True)
        self._calm_since = self._now
        slots = sum(machine.slots for machine in self._machines)
        limits = {rule.name: rule.limit for rule in self._queues if rule.limit is not None}
        for name, job in list(self._jobs.items()):
            if sizes_of(job.demand)[0] > min(slots, limits.get(job.demand.queue, slots)):
                del self._jobs[name]
        self._ends_at += round(sum(job.work for job in self._jobs.values()))

    # ------------------------------------------------------------------------------------------------- time

    def _pods_pass(self) -> None:
        """Charge the last second, remove pods that are gone or whose machine is, and let the others work."""
        price = price_at(self._prices, float(self._now)) or 0.0
        for name, job in list(self._jobs.items()):
            second = job.held * price / HOUR_S
            job.spent += second
            if job.most is not None and job.spent > job.most + second + 1e-9:
                self._complain(f"{name} has spent {job.spent} of at most {job.most}")
            job.pods = [
                pod
                for pod in job.pods
                if self._machines[pod.machine].up and (pod.gone_at is None or pod.gone_at > self._now)
            ]
            ready = job.ready(self._now)
            if ready >= job.demand.size_min:
                job.work -= ready
            if job.work <= 0:
                del self._jobs[name]
                self._calm_since = self._now

    def _carry_out(self) -> None:
        """Start and drain pods as granted. A pod starts only on a machine with room for it."""
        free = {index: machine.slots for index, machine in enumerate(self._machines) if machine.up}
        for job in self._jobs.values():
            for pod in job.pods:
                free[pod.machine] -= self._unit
        if any(slots < 0 for slots in free.values()):
            self._complain("a machine has more workers than slots")
        for job in self._jobs.values():
            staying = [pod for pod in job.pods if pod.gone_at is None]
            while len(staying) * self._unit > job.granted:
                delay = self._chance.choice((1, 1, 2, DRAIN_MAX_S))
                staying.pop().gone_at = self._now + delay
            while len(staying) * self._unit < job.granted:
                room = [index for index, slots in free.items() if slots >= self._unit]
                if not room:
                    break
                index = self._chance.choice(room)
                free[index] -= self._unit
                pod = SimPod(index, self._now + self._chance.choice((1, 3, 10)))
                staying.append(pod)
                job.pods.append(pod)

    # ---------------------------------------------------------------------------------------------- the leader

    def _pool(self) -> Pool:
        up = [machine for machine in self._machines if machine.up]
        spot = sum(machine.slots for machine in up if machine.spot)
        return Pool(sum(machine.slots for machine in up), spot, self._queues)

    def _demands(self) -> tuple[Demand, ...]:
        return tuple(self._demand(job) for job in self._jobs.values())

    def _demand(self, job: SimJob) -> Demand:
        is_anew = self._now < job.anew_until
        return replace(
            job.demand,
            held=job.held,
            granted=job.granted,
            planned=job.planned,
            unchanged_s=float(self._now - job.changed_at),
            speeds=() if is_anew else job.demand.speeds,
            left=job.work if job.demand.speeds else None,
            cost=self._cost_limit(job),
            deadline=self._deadline(job),
            is_measured_anew=is_anew,
        )

    def _cost_limit(self, job: SimJob) -> CostLimit | None:
        if job.most is None:
            return None
        price, left = highest_price(self._prices, float(self._now)), job.work if job.demand.speeds else None
        return CostLimit(job.most, job.spent, price, left, job.demand.speeds)

    def _deadline(self, job: SimJob) -> Deadline | None:
        if job.deadline is None:
            return None
        left, pause_s = job.work if job.demand.speeds else None, job.demand.pause_s
        in_s = job.deadline - self._now
        return Deadline(in_s, left, job.demand.speeds, pause_s, was_missed=job.missed_deadline)

    def _lead(self) -> None:
        pool, demands = self._pool(), self._demands()
        found = {each.name: each for each in self._decide(pool, demands)}
        self.decisions += 1
        self._check(pool, demands, found)
        changed = False
        for name, job in self._jobs.items():
            if found[name].size != job.granted:
                is_cost = found[name].reason in (Reason.COST, Reason.COST_LIMIT)
                changed, job.changed_at = changed or not is_cost, self._now
                self._calm_since = self._now if is_cost else self._calm_since
                job.cost_changes += is_cost
            job.granted, job.planned = found[name].size, found[name].planned
            job.missed_deadline = found[name].misses_deadline
        self._check_settled(changed)
        again = {each.name: each.size for each in self._decide(pool, self._demands())}
        if again != {name: each.size for name, each in found.items()}:
            self._complain(f"a second call changes the grants to {again}")
        self._raise_limits(found)

    def _raise_limits(self, found: dict[str, Allotment]) -> None:
        """Let the owner of a job that has reached its cost limit raise it, after the storm."""
        for name, job in self._jobs.items():
            if found[name].reason is Reason.COST_LIMIT and (self._now >= STORM_S or job.held):
                self._calm_since = self._now
                job.most = (job.most or 0.0) + (0.0 if job.held else RAISE)
                job.cost_changes = 0
            elif job.cost_changes > COST_CHANGES:
                self._complain(f"{name} has changed {job.cost_changes} times for its cost limit")

    # ----------------------------------------------------------------------------------------------- checks

    def _check(self, pool: Pool, demands: tuple[Demand, ...], found: dict[str, Allotment]) -> None:
        over_before = sum(max(each.held, each.granted) for each in demands) - pool.slots
        over = sum(max(each.held, found[each.name].size) for each in demands) - pool.slots
        if over > max(0, over_before):
            self._complain(f"{over} slots more are granted or held than the pool has")
        for each in demands:
            given, least = found[each.name], sizes_of(each)[0]
            if given.reason is Reason.COST_LIMIT:
                self._check_stop(each, least)
            elif each.granted and each.held >= least > given.size:
                self._complain(f"{each.name} had its minimum {least} and is granted {given.size}")
            waits = given.size == 0
            if not given.why or waits != (given.reason in WAITS) or waits != (given.position > 0):
                self._complain(f"{each.name} has size {given.size} without a fitting reason: {given}")
        self._check_order(demands, found)
        self._check_release(pool, found)
        self._check_deadlines(pool, demands, found)

    def _check_stop(self, demand: Demand, least: int) -> None:
        """A job stops for its cost limit only if that does not pay for its minimum until its workers have left."""
        cost = demand.cost
        is_short = cost is not None and cost.price is not None and cost.left < least * cost.price * RESERVE_S / HOUR_S
        if demand.granted and demand.held and not is_short:
            self._complain(f"{demand.name} stops although its cost limit leaves room: {cost}")

    def _check_order(self, demands: tuple[Demand, ...], found: dict[str, Allotment]) -> None:
        """No job starts while one before it waits for room."""
        waits = [each for each in demands if found[each.name].reason is Reason.NO_ROOM]
        for each in demands:
            starts = not each.granted and found[each.name].size
            if starts and any((-w.priority, w.since) < (-each.priority, each.since) for w in waits):
                self._complain(f"{each.name} starts although {waits[0].name} waits before it")

    def _check_deadlines(self, pool: Pool, demands: tuple[Demand, ...], found: dict[str, Allotment]) -> None:
        """Jobs get what they need for their deadlines if peers can spare it, and no peer misses its own for that."""
        jobs = [within_cost(each) for each in demands if found[each.name].planned]
        for priority in {each.priority for each in jobs}:
            peers = [each for each in jobs if each.priority == priority]
            free = pool.slots - sum(
                found[each.name].planned if each.priority >= priority else sizes_of(each)[0] for each in jobs
            )
            had_room = free + sum(found[x.name].planned - max(x.planned or 0, sizes_of(x)[0]) for x in peers) >= 0
            for each in peers:
                planned, needed = found[each.name].planned, _needed(each)
                if found[each.name].reason is Reason.DEADLINE and needed != planned:
                    self._complain(f"{each.name} has {planned} workers for a deadline that needs {needed}")
                if not needed or planned >= needed or any(rule.limit is not None for rule in pool.queues):
                    continue
                if (each.planned or 0) >= needed and had_room:
                    self._complain(f"{each.name} loses its deadline: it needs {needed} workers and gets {planned}")
                spare = sum(_spare(other, found[other.name].planned) for other in peers if other is not each)
                if planned + free + spare >= needed:
                    self._complain(f"{each.name} gets {planned} of {needed} workers, and peers can spare {spare}")

    def _check_settled(self, changed: bool) -> None:
        """Grants stop changing when nothing happens. Jobs near their end become worth more, which may move slots."""
        if self._now - self._calm_since <= SETTLE_S + DRAIN_MAX_S:
            self._late_changes = 0
            return
        self._late_changes += changed
        near_end = [job.demand for job in self._jobs.values() if job.granted and job.demand.speeds]
        if self._late_changes > LATE_CHANGES * sum(len(sizes_of(demand)) - 1 for demand in near_end):
            self._complain("grants still change although nothing happened")

    def _check_release(self, pool: Pool, found: dict[str, Allotment]) -> None:
        """A job for which slots are released starts within the bound."""
        for name, job in self._jobs.items():
            if found[name].reason is not Reason.RELEASING:
                job.releasing_since = None
            elif job.releasing_since is None or self._calm_since >= job.releasing_since:
                job.releasing_since = self._now
            elif self._now - job.releasing_since > RELEASE_BOUND_S:
                self._complain(f"{name} waits for released slots since {job.releasing_since} s; pool of {pool.slots}")

    def _complain(self, what: str) -> None:
        self.complaints.append(f"{self._now} s: {what}")


def _needed(demand: Demand) -> int:
    """Return the smallest size that meets the deadline of a job; 0 if there is none, or if it is not known."""
    deadline = demand.deadline
    if deadline is None or deadline.samples_left is None or deadline.in_s <= 0:
        return 0
    sizes, planned = sizes_of(demand), demand.granted if demand.planned is None else demand.planned
    kept = max((size for size in sizes if size <= planned), default=sizes[0])
    for size in sizes:
        left_s = deadline.samples_left / speed_at(deadline.speeds, size)
        has_it = size == kept and not deadline.was_missed
        if (left_s if has_it else left_s * MARGIN + deadline.pause_s) <= deadline.in_s:
            return size
    return 0


def _spare(demand: Demand, planned: int) -> int:
    """Return the workers that a job can give up, and still meet its deadline."""
    needed = _needed(demand)
    return planned - (needed if needed and planned >= needed else sizes_of(demand)[0])
