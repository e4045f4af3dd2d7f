"""A simulated live job: members with the real state machine, which train a toy model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pliant.chaos.fault_kinds import FaultKind
from pliant.coordinator.service.inbox import Accepted
from pliant.core.data.grid import Changes, Grid
from pliant.core.data.ledger import expected_slot_digest
from pliant.core.data.sample_order import Order
from pliant.core.leases import LEASE_TTL_S
from pliant.core.member.control_words import Words
from pliant.core.member.signals import Action, Durable, Signal
from pliant.core.messages import Code, Create, Rejection
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import JobSpec, Target, Terms
from pliant.core.model.launch import Launch
from pliant.core.model.names import MemberId
from pliant_sim.collectives import Fabric
from pliant_sim.describe import narrate
from pliant_sim.live.checks import LiveChecks
from pliant_sim.live.toy_model import Content
from pliant_sim.processes.agent import SimulatedAgent
from pliant_sim.processes.coordinator import Ask, Back, Given, MemberWatch, ViewReply
from pliant_sim.processes.worker import LiveWorker
from pliant_sim.requests import Request
from pliant_sim.simulation import Setting, Simulation
from pliant_sim.store import CheckpointDirectory

FINGERPRINT = (("torch", "2.13.0"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSetting(Setting):
    """The start of a schedule of a live job."""

    capacity: int = 5
    size_max: int = 9
    workers: int = 8
    grace_s: float = 10.0
    grid: Grid = field(default_factory=lambda: Grid(samples=101, batch=12, slots=12, epochs=2))
    checkpoint_every: int = 4
    verify: int = 0
    full_disk: float = 0.0  # how often a part of a checkpoint cannot be written
    no_storage: float = 0.0  # the share of workers that cannot write checkpoints
    fingerprint: Fingerprint = ()
    calm: bool = False  # few faults, none of the network, the coordinators or the disk: nothing excuses a lost step
    moves: bool = False  # agents come and go and the size changes, nothing else; then every worker has its place
    failover: bool = False  # only coordinators and their store fail: no member is lost, and views come soon
    script_ends: int | None = None  # the script ends with this code whenever it computes step `ends_at`; None: never
    never_joins: bool = False  # with `script_ends`: it ends before it joins
    ends_at: int = 6
    loop_ends: str = ""  # "finish": the script finishes the job after step `ends_at`; "leave": it leaves its loop there
    more_epochs: int | None = None  # the finished job is started again with so many more; None: it is not started again
    pace: float = 1.0  # a step takes so many times as long
    batches: Changes = ()  # (step, batch): the script sets that batch after that step

    @property
    def last_step(self) -> int:
        """The step with which the last attempt finishes."""
        grid = replace(self.grid, epochs=self.grid.epochs + (self.more_epochs or 0))
        return self.ends_at if self.loop_ends else self.with_batches(grid).total_steps

    def batch_wanted(self, step: int) -> int:
        """Return the batch that the script wants once it has applied that step; 0 if it has set none."""
        return next((batch for after, batch in reversed(self.batches) if after <= step), 0)

    def with_batches(self, grid: Grid) -> Grid:
        """Return the grid of every history: the members agree on a batch in the step after the one that sets it."""
        for after, batch in self.batches:
            if after < grid.total_steps:
                grid = replace(grid, changes=(*grid.changes, (after + 1, batch)))
        return grid


ORDERS = 8  # of samples: few, so that the digests of their slots are computed once
CALM_SIZE = 3  # both the smallest and the largest size, as with `--workers 3`
SCRIPT_ENDS = (-11, 0, 1, -9)
SLOW = 3.5  # so that a job of a few steps outlasts the faults


def verify_for(seed: int) -> int:
    """Return every how many steps members of that schedule compare whole states; 0 for never."""
    return 1 + seed // 5 % 2 if seed % 5 == 4 else 0


def setting_for(seed: int) -> LiveSetting:
    """One coordinator in a third of the schedules, two in the others; states are compared in a fifth of them.

    A tenth of the schedules are calm, in another tenth the script always crashes, some of it before it joins, and in a
    third one it ends early. In
    a fourth one agents come and go and the size changes, in a fifth one only coordinators fail. In a sixth one the
    finished job is started again, with another epoch in half of them.
    """
    if seed % 10 == 3:
        return LiveSetting(seed=seed, failover=True, pace=SLOW)
    if seed % 10 == 5:
        return LiveSetting(seed=seed, moves=True, agents=4, capacity=2, size_min=1, size_max=8, workers=4, pace=SLOW)
    if seed % 10 == 7:
        return LiveSetting(seed=seed, calm=True, size_min=CALM_SIZE, size_max=CALM_SIZE, workers=CALM_SIZE)
    if seed % 10 == 8:
        ends = SCRIPT_ENDS[seed // 10 % len(SCRIPT_ENDS)]
        crashing = LiveSetting(seed=seed, calm=True, size_max=CALM_SIZE, workers=CALM_SIZE, script_ends=ends)
        if seed % 100 != 28:
            return crashing
        ends = SCRIPT_ENDS[seed // 100 % len(SCRIPT_ENDS)]
        return replace(crashing, never_joins=True, max_restarts=3, script_ends=ends)
    verify = verify_for(seed)
    return LiveSetting(
        seed=seed,
        coordinators=1 if seed % 3 == 0 else 2,
        verify=verify,
        loop_ends=("finish", "leave")[seed // 10 % 2] if seed % 10 == 6 else "",
        more_epochs=seed // 10 % 2 if seed % 10 == 1 else None,
        full_disk=0.1 if seed % 7 == 3 else 0.0,
        no_storage=0.3 if seed % 11 == 5 else 0.0,
        fingerprint=FINGERPRINT if verify else (),
    )


class LiveSimulation(Simulation):
    """One schedule of a live job."""

    def __init__(self, setting: LiveSetting, story: list[str] | None = None, detail: bool = False) -> None:
        self.setting = setting
        self.checks = LiveChecks(self)
        super().__init__(setting, self.checks, story)
        self.detail = detail
        self.cut_members: set[tuple[str, str]] = set()
        self.raising: set[MemberId] = set()
        self.breaking: set[MemberId] = set()
        self.struck_at = 0.0  # when a fault was injected last
        self.attempt_due = False  # a user cancelled the job, or it has finished, and the user creates it again
        self.was_finished = False
        self.renewed_at: dict[tuple[str, str], float] = {}  # (coordinator, member) to the last accepted sign of life
        order_seed = setting.seed % ORDERS
        self.terms = Terms(setting.grid, order_seed, setting.checkpoint_every, verify=setting.verify)
        self.order = Order(order_seed, setting.grid.samples)
        self._slots_read: dict[tuple[Changes, int, int], tuple[int, int]] = {}
        self.directory = CheckpointDirectory()
        self.fabric = Fabric(self)
        self.workers: dict[MemberId, LiveWorker] = {}
        self._start()

    def creation(self, *, fresh: bool = False) -> Create:
        s = self.setting
        return Create(self.job, JobSpec(s.size_min, s.size_max, Target(s.workers)), fresh=fresh)

    def finished(self) -> None:
        """Start the job again once its workers have ended, if that is the schedule, as a user who wants more epochs."""
        more = self.setting.more_epochs
        if more is None or self.was_finished:
            return
        self.was_finished = self.attempt_due = True
        self.after(1.0, self._train_longer, replace(self.terms.grid, epochs=self.terms.grid.epochs + more))

    def _train_longer(self, grid: Grid) -> None:
        if any(worker.up for worker in self.workers.values()):
            self.after(1.0, self._train_longer, grid)
            return
        self.terms = replace(self.terms, grid=grid)
        self.user(self.creation())

    @property
    def script_joins(self) -> bool:
        return self.checks.job is not None and self.checks.job.terms is not None

    def ended(self) -> bool:
        job = self.checks.job
        if self.checks.complaints:
            return True
        if self.attempt_due:
            return False
        return job is not None and job.state.ended and not any(worker.up for worker in self.workers.values())

    # ---------------------------------------------------------------------------------------- the network

    def machine_of(self, name: str) -> str:
        worker = self.workers.get(MemberId(name))
        return worker.agent.machine if worker is not None else name

    @property
    def any_cut(self) -> bool:
        return bool(self.cut_machines or self.cut_members)

    def is_cut(self, a: MemberId, b: MemberId) -> bool:
        if not self.any_cut:
            return False
        return (a, b) in self.cut_members or (self.machine_of(a), self.machine_of(b)) in self.cut_machines

    def ask_as_member(self, member: str, request: Request, patience_s: float = 0.0) -> None:
        self.ask(Ask(member, 0, request), patience_s)

    def deliver(self, given: Given, answer: Back, revision: int) -> None:
        worker = self.workers.get(MemberId(given.sender))
        if worker is None:
            super().deliver(given, answer, revision)
            return
        if isinstance(answer, Rejection) and answer.code in (Code.GONE, Code.UNKNOWN) and worker.up:
            worker.refused(revision)
        if isinstance(given, MemberWatch):
            worker.watch_ended(given, answer.view if isinstance(answer, ViewReply) else None)
            return
        if isinstance(answer, Accepted) and answer.durable is not None:
            # Commands and renewals are answered with the durable lineage; views come by the watch alone.
            worker.feed(Durable(answer.revision, answer.durable))
        if isinstance(given, Ask):
            worker.answered(given)

    def call_failed(self, given: Given) -> None:
        worker = self.workers.get(MemberId(given.sender))
        if worker is not None and isinstance(given, MemberWatch):
            worker.watch_ended(given, None)
        elif worker is not None and isinstance(given, Ask):
            worker.call_failed(given)
        else:
            super().call_failed(given)

    def peer(self, source: MemberId, target: MemberId, signal: Signal) -> None:
        if not self.is_cut(source, target):
            self.after(self.chance.uniform(0.001, 0.02), self.feed, target, signal)

    # -------------------------------------------------------------------------------------- the processes

    def start_worker(self, agent: SimulatedAgent, member: MemberId) -> None:
        self.after(self.chance.uniform(0.3, 1.5), self._started, agent, member)

    def _started(self, agent: SimulatedAgent, member: MemberId) -> None:
        if agent.up and member not in agent.not_started:
            self.workers[member] = agent.processes[member] = LiveWorker(self, member, agent, self.terms)

    def start_seat(self, agent: SimulatedAgent, launch: Launch, member: MemberId) -> None:
        self.checks.complain(f"{agent.machine} launches {member} of {launch.number} in a live job")

    def running_workers(self) -> list[LiveWorker]:
        return [worker for worker in self.workers.values() if worker.up]

    def heal_workers(self) -> None:
        self.cut_members.clear()
        self.raising.clear()
        self.breaking.clear()
        self.fabric.healed()
        for worker in list(self.workers.values()):
            worker.errs = worker.errs_once = False
            if worker.paused and not worker.frozen:
                worker.resume()

    def exists(self, member: MemberId) -> bool:
        worker = self.workers.get(member)
        return worker is not None and worker.up

    def feed(self, member: MemberId, signal: Signal) -> None:
        worker = self.workers.get(member)
        if worker is not None:
            worker.feed(signal)

    def reduced(self, member: MemberId, words: Words, content: Content) -> None:
        worker = self.workers.get(member)
        if worker is not None:
            worker.reduction_returned(words, content)

    def raises(self, worker: LiveWorker) -> bool:
        if worker.id in self.raising:
            self.raising.discard(worker.id)
            return True
        return False

    def errs(self, member: MemberId) -> bool:
        worker = self.workers.get(member)
        return worker is not None and worker.errs

    @property
    def verifies(self) -> bool:
        return bool(self.setting.verify)

    def breaks_transfer(self, worker: LiveWorker) -> bool:
        if worker.id in self.breaking:
            self.breaking.discard(worker.id)
            self.faults_fired(FaultKind.BREAK_TRANSFER)
            return True
        return False

    @property
    def grid(self) -> Grid:
        """The grid that the script leads to, whatever happens to the members."""
        return self.setting.with_batches(self.terms.grid)

    def samples(self, step: int, slot: int) -> tuple[int, ...]:
        grid = self.grid
        return self.order.take(grid.cursor(step).epoch, grid.slot(step, slot))

    def slot_read(self, grid: Grid, step: int, slot: int) -> tuple[int, int]:
        """Return the number of samples that a member reads for a slot, and their digest."""
        known = self._slots_read.get((grid.changes, step, slot))
        if known is None:
            known = len(grid.slot(step, slot)), expected_slot_digest(grid, self.order, step, slot)
            self._slots_read[grid.changes, step, slot] = known
        return known

    # ------------------------------------------------------------------------------------- for the checks

    def may_expire(self, coordinator: str, member: MemberId) -> bool:
        """Return whether the member's lease at that coordinator has run out."""
        last = self.renewed_at.get((coordinator, member))
        return last is None or self.now - last >= LEASE_TTL_S - 0.01

    def note(self, worker: LiveWorker, signal: Signal, actions: tuple[Action, ...]) -> None:
        if self.story is not None and self.detail:
            done = "; ".join(filter(None, map(narrate, actions)))
            if done:
                self.tell(f"    {worker.id} ({worker.machine.phase.value}): {narrate(signal)} -> {done}")
