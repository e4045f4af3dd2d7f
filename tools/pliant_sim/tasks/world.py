"""A simulated task queue: agents start workers that take shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from pliant.core.messages import Create, Resize
from pliant.core.model.job import JobSpec, JobState, Mode, Target
from pliant.core.model.launch import Launch
from pliant.core.model.names import MemberId
from pliant.core.tasks.model import ShardKind, TaskTerms
from pliant.core.tasks.partitions import OffsetRange
from pliant_sim.processes.agent import SimulatedAgent
from pliant_sim.processes.coordinator import Ask, Back, Given, MemberWatch
from pliant_sim.simulation import Setting, Simulation
from pliant_sim.tasks.checks import TaskChecks
from pliant_sim.tasks.worker import TaskWorker

RECORD_S = (0.06, 0.08, 0.1, 0.24)  # of a member, for each record: one in four is four times slower than the fastest
TRAINING = TaskTerms(records=633, records_per_shard=20, epochs=3, evaluation_records=50, deadline_s=8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetting(Setting):
    """The start of a schedule of a task queue."""

    capacity: int = 3
    size_max: int = 8
    workers: int = 6
    grace_s: float = 5.0
    terms: TaskTerms = field(default_factory=lambda: TRAINING)
    steady: bool = False  # the coordinators, their store and the network are well
    churn: bool = False  # members are killed, drained and replaced until the job ends
    poison: int | None = None  # user code raises on this record, on every member
    growth_s: tuple[float, ...] = ()  # when records are added, a part of `records` each time; the mark follows the last
    records: int = 0  # that growing data will have
    partitions: int = 0  # of a queue that has them; 0: the data is a folder
    next_epochs: int | None = None  # the job is cancelled, and created again with so many epochs, or as few as it can


def setting_for(seed: int) -> TaskSetting:
    """One coordinator in a third of the schedules, and terms of several kinds.

    In a tenth of the schedules only members fail, in another one they are replaced until the end. In a third one a
    record raises on every member, in a fourth one the job is a prediction, and in a fifth one it is created again. A
    twentieth of the jobs only evaluates, in another one the data grows, and another one averages models in pairs.
    """
    terms = replace(TRAINING, seed=seed, shuffled=seed % 4 == 1, evaluate_every=(0, 11, 40)[seed // 10 % 3])
    if seed % 7 == 3:
        terms = replace(terms, evaluation_records=0)
    setting = TaskSetting(seed=seed, coordinators=1 if seed % 3 == 0 else 2, size_min=1 + seed // 2 % 2, terms=terms)
    match seed % 10:
        case 4:
            return replace(setting, steady=True)
        case 5:
            short = replace(terms, records=171, epochs=2)
            return replace(setting, steady=True, churn=True, terms=short)
        case 6:
            terms = replace(terms, records=95, epochs=16)
            few = replace(setting, workers=2, size_min=2, size_max=4) if seed // 10 % 2 else setting
            return replace(few, terms=terms, next_epochs=(1, 1, 16, 19)[seed // 10 % 4])
        case 7:
            return replace(setting, poison=seed * 31 % terms.records)
        case 8:
            whole = TaskTerms(records=1503, records_per_shard=20, shuffled=False, predicts=True, deadline_s=8.0)
            return replace(setting, terms=whole)
        case 2 if seed // 10 % 2 == 0:
            chance = Random(f"growth {seed}")
            terms = replace(terms, records=0, epochs=1, shuffled=False, growing=True)
            times = sorted(chance.uniform(0.0, 70.0) for _ in range(12))
            return replace(
                setting,
                terms=terms,
                growth_s=tuple(times),
                records=chance.choice([0, 20, 633, 640, 1201, 1201, 1500, 1500]),
                partitions=chance.choice([0, 1, 3]),
            )
        case 1 if seed // 10 % 2:
            pairs = replace(terms, records=333, epochs=3, evaluation_records=0, evaluate_every=0, averages=True)
            return replace(setting, terms=pairs)
        case 9 if seed // 10 % 2:
            return replace(setting, terms=TaskTerms(0, 20, evaluation_records=1203, deadline_s=8.0))
        case _:
            return setting


class SimulatedGrowth:
    """Growing data. All workers see the same records at once, so none waits for those of a shard."""

    complete = True

    def __init__(self) -> None:
        self.records, self.marked = 0, False

    def seen(self) -> tuple[int, tuple[OffsetRange, ...]]:
        """Return what a worker sees and reports: the number of records."""
        return self.records, ()

    def grow(self) -> None:
        """Look again: nothing is cached."""

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: int) -> int:
        if not number < self.records:
            raise IndexError(number)
        return number


class SimulatedQueue(SimulatedGrowth):
    """A queue with partitions, which get records at different rates. Its records are (partition, offset)."""

    def __init__(self, partitions: int, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self.partitions = tuple(OffsetRange(f"p{at}", 7 * at, 7 * at) for at in range(partitions))

    def seen(self) -> tuple[int, tuple[OffsetRange, ...]]:
        """Return what a worker sees and reports: the offsets of each partition, with all records that were added."""
        while (new := self.records - sum(map(len, self.partitions))) > 0:
            at, count = self._chance.randrange(len(self.partitions)), self._chance.randint(1, new)
            grown = list(self.partitions)
            grown[at] = replace(grown[at], stop=grown[at].stop + count)
            self.partitions = tuple(grown)
        return 0, self.partitions

    def read_offsets(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[str, int]]:
        for each in ranges:
            for offset in range(each.start, each.stop):
                yield each.partition, offset


class TaskSimulation(Simulation):
    """One schedule of a task queue."""

    def __init__(self, setting: TaskSetting, story: list[str] | None = None) -> None:
        self.setting = setting
        self.checks = TaskChecks(self)
        super().__init__(setting, self.checks, story)
        self.terms = setting.terms  # of the workers that start from now on
        self.workers: dict[MemberId, TaskWorker] = {}
        self.grown = SimulatedGrowth()
        if setting.partitions:
            self.grown = SimulatedQueue(setting.partitions, Random(f"partitions {setting.seed}"))
        self.means: dict[str, frozenset[tuple[int, int]]] = {}  # by name, the records that a saved mean was trained on
        for at, when_s in enumerate(setting.growth_s, 1):
            self.after(when_s, self._add_records, at)
        self.attempt_due = False  # a user is about to create the job again
        self.raised: set[tuple[ShardKind, int]] = set()  # shards in which a fault let user code raise
        self._start()

    def _add_records(self, times: int) -> None:
        """Add a part of the records; the mark comes with the last ones, or after them."""
        self.grown.records = self.setting.records * times // len(self.setting.growth_s)
        self.tell(f"the data has {self.grown.records} records")
        if times == len(self.setting.growth_s):
            self.after(self.chance.choice([0.0, 0.5, 5.0]), self._complete)

    def _complete(self) -> None:
        self.grown.marked = True
        self.tell("the data is complete")

    def creation(self, *, fresh: bool = False) -> Create:
        s = self.setting
        spec = JobSpec(s.size_min, s.size_max, Target(s.workers), max_restarts=s.max_restarts, mode=Mode.TASKS)
        return Create(self.job, spec, fresh=fresh)

    @property
    def script_joins(self) -> bool:
        return self.checks.job is not None and self.checks.job.tasks is not None

    def ended(self) -> bool:
        job = self.checks.job
        if self.checks.complaints:
            return True
        if job is None or not job.state.ended or job.state is JobState.CANCELLED:
            return False  # only a user cancels, to create the job again
        return not self.attempt_due and not self.running_workers()

    def change_epochs(self) -> None:
        """Let workers that start from now on want other epochs: as few as were begun, at least."""
        state = self.checks.job.tasks if self.checks.job is not None else None
        if state is not None and self.setting.next_epochs is not None:
            begun = -(-state.given // self.terms.shards_per_epoch)
            self.terms = replace(self.terms, epochs=max(begun, self.setting.next_epochs))

    def longest_s(self) -> float:
        """Return how long the workers of the start need for all records if each of them is as slow as one can be."""
        terms = self.terms
        evaluations = 1 if terms.only_evaluates else -(-terms.total_shards // terms.evaluation_interval)
        records = (self.setting.records or terms.records) * terms.epochs + terms.evaluation_records * evaluations
        return records * max(RECORD_S) / self.setting.workers

    def is_poisoned(self, kind: ShardKind, numbers: range) -> bool:
        """Return whether user code raises on one of these records."""
        return kind is self.terms.kind and self.setting.poison in numbers

    # ---------------------------------------------------------------------------------------- the network

    def machine_of(self, name: str) -> str:
        worker = self.workers.get(MemberId(name))
        return worker.agent.machine if worker is not None else name

    def deliver(self, given: Given, answer: Back, revision: int) -> None:
        worker = self.workers.get(MemberId(given.sender))
        if worker is not None and isinstance(given, Ask | MemberWatch):
            worker.answered(given, answer)
        else:
            super().deliver(given, answer, revision)

    def call_failed(self, given: Given) -> None:
        worker = self.workers.get(MemberId(given.sender))
        if worker is not None and isinstance(given, Ask | MemberWatch):
            worker.answered(given, None)
        else:
            super().call_failed(given)

    # -------------------------------------------------------------------------------------- the processes

    def start_worker(self, agent: SimulatedAgent, member: MemberId) -> None:
        self.after(self.chance.uniform(0.3, 1.5), self._started, agent, member)

    def _started(self, agent: SimulatedAgent, member: MemberId) -> None:
        if agent.up and member not in agent.not_started:
            worker = TaskWorker(self, member, agent, self.terms, self.chance.choice(RECORD_S))
            self.workers[member] = agent.processes[member] = worker

    def start_seat(self, agent: SimulatedAgent, launch: Launch, member: MemberId) -> None:
        self.checks.complain(f"{agent.machine} launches {member} of {launch.number} in a task queue")

    def running_workers(self) -> list[TaskWorker]:
        return [worker for worker in self.workers.values() if worker.up]

    def heal_workers(self) -> None:
        """End the faults of workers, and ask for as many as at the start: one slow worker would need too long."""
        self.user(Resize(Target(self.setting.workers)))
        for worker in self.running_workers():
            worker.raises_in = None
            worker.resume()
            worker.hang_over()
