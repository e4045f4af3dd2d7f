"""Account of a job's worker-seconds, folded from its events (`pliant report`).

The job's state assigns one category to each worker at every moment. So a worker's seconds add up to the time from its
start to its end, and the totals to those of all workers:

- *starting*: from the start of its process, as reported with its join, or from its launch, until it is a member.
- *spare*: a member, in no world, while others train.
- *waiting*: the job waits, mostly for members; or its world holds.
- *transfer*: in a world, or about to enter a planned one, and without the state yet.
- *switching*: between worlds. Its world broke or was left, and not all members of the next one have the state; for
  launched workers, the time they take to stop; and the cost of a planned switch, as members report it. A world counts
  as broken since its last durable report: until the break was noticed, its members may have hung in a collective.
- *checkpointing*: time in which the training thread stood still for a checkpoint, as members report it.
- *recomputing*: computing steps again whose numbers were durable before a rollback.
- *training*: the rest.

The last three cannot be distinguished while they pass. That time is undecided until the next steps are durable. Then
the reported pauses are taken off, and the rest is divided by the share of those steps that is new. Undecided time
becomes switching when a world breaks or a worker is lost, also below the highest durable step: no step is known to have
come of it, and those that did are computed again or reported by the next world. When a worker ends otherwise, its
undecided time becomes recomputing if the history is below its highest step, else training. Until then it is shown that
way, too.

Not visible: a worker that ends before it joins (unless it was launched), and the activity of launched workers, which do
not use Pliant's API: all their time is training. A worker ends when the coordinator records it, at the latest with the
job. If its agent restarted, the worker is taken to have ended at the last event before the restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pliant.core import messages as m
from pliant.core.accounting.activity import Category, categories_of
from pliant.core.accounting.pauses import Pause
from pliant.core.job.evolve import evolve
from pliant.core.messages import Event
from pliant.core.model.job import Job
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import WorldKind


@dataclass(slots=True)
class WorkerAccount:
    """One worker's time, counted up to `counted_until`, which is its end once it has ended."""

    name: MemberId
    agent: AgentId
    started_at: float
    counted_until: float
    category: Category
    seconds: dict[Category, float] = field(default_factory=lambda: dict.fromkeys(Category, 0.0))
    undecided_s: float = 0.0

    def advance_to(self, now: float) -> None:
        span, self.counted_until = now - self.counted_until, now
        if self.category is Category.TRAINING:
            self.undecided_s += span
        else:
            self.seconds[self.category] += span

    def decide(self, recomputed: float, pauses: tuple[Pause, ...] = ()) -> None:
        """Divide the undecided time: first the pauses, then `recomputed`, the share of steps computed again."""
        left = self.undecided_s
        for each in pauses:
            taken = min(each.seconds, left)
            self.seconds[Category(each.kind)] += taken
            left -= taken
        self.seconds[Category.RECOMPUTING] += recomputed * left
        self.seconds[Category.TRAINING] += (1.0 - recomputed) * left
        self.undecided_s = 0.0

    def count_as_switching(self) -> None:
        """Book the undecided time as switching: no step is known to have come of it."""
        self.seconds[Category.SWITCHING] += self.undecided_s
        self.undecided_s = 0.0

    def as_of(self, now: float, recomputed: float) -> WorkerAccount:
        """Return a copy in which all time up to `now` is decided."""
        twin = WorkerAccount(
            self.name,
            self.agent,
            self.started_at,
            self.counted_until,
            self.category,
            dict(self.seconds),
            self.undecided_s,
        )
        twin.advance_to(max(now, self.counted_until))
        twin.decide(recomputed)
        return twin

    def count_as_starting(self, now: float) -> None:
        """Book all undecided time up to `now` as starting."""
        self.category = Category.STARTING
        self.advance_to(now)
        self.seconds[Category.STARTING] += self.undecided_s
        self.undecided_s = 0.0


@dataclass(slots=True)
class MembershipChange:
    """A membership that trains after another one. `pause_s` is how long no member trained; None: not reported.

    If the one before broke, the pause begins with its last durable report.
    """

    at: float
    planned: bool
    pause_s: float | None = None


@dataclass(slots=True)
class JobProgress:
    """Progress of the job. Steps and samples are those of the ledger that the newest attempt continues."""

    steps: int = 0  # committed
    samples: int = 0  # in them
    recomputed_steps: int = 0  # in all
    recomputed_samples: int = 0
    highest_step: int = 0  # highest step that was ever durable
    samples_ever: int = 0  # that became durable, in all attempts and including repetitions
    training_s: float = 0.0  # in which at least one worker trained
    rollbacks: int = 0
    checkpoints: int = 0
    attempts: int = 0
    changes: list[MembershipChange] = field(default_factory=list)


class Goodput:
    """Call `add` with all events of a job, in order. The results can be read at any time."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.created_at = 0.0  # the job's creation
        self.now = 0.0  # time of the newest event; never goes back, even if a clock does
        self.progress = JobProgress()
        self._workers: dict[MemberId, WorkerAccount] = {}  # all workers ever
        self._running: dict[MemberId, WorkerAccount] = {}  # workers that run now
        self._attempt_began = 0.0
        self._entered_members: set[MemberId] = set()  # members of worlds that were entered
        self._has_history = False  # a world was entered
        self._is_training = False  # at least one worker trains
        self._paused_since: float | None = None  # since when no worker trains, after one did
        self._confirmed_at = 0.0  # the last report, or the start of training
        self._unconfirmed_s = 0.0  # training time since the last report
        self._training_before_launch_s = 0.0  # `training_s` when the newest launch began
        self._all_new_until = 0.0  # time of the last report with new steps only: undecided time before it was training

    # ------------------------------------------------------------------------------------------------ results

    def workers(self, until: float | None = None) -> list[WorkerAccount]:
        """Return the account of every worker ever, as of that time: the newest event, or later."""
        now = self.now if until is None else until
        self._book_confirmed()
        return [
            worker.as_of(now if name in self._running else worker.counted_until, self._recomputing_share)
            for name, worker in self._workers.items()
        ]

    def training_s(self, until: float | None = None) -> float:
        """Return the seconds in which at least one worker trained."""
        since = max(0.0, until - self.now) if until is not None and self._is_training else 0.0
        return self.progress.training_s + since

    @property
    def _recomputing_share(self) -> float:
        return 1.0 if self.job is not None and self.job.durable.step < self.progress.highest_step else 0.0

    # ----------------------------------------------------------------------------------------------- the fold

    def add(self, event: Event) -> None:
        """Add the next event."""
        before, last = self.job, self.now
        now = self.now = max(last, event.at) if before is not None else event.at
        if not isinstance(event, m.StepsCommitted):
            self._book_confirmed()
        match event:
            case m.JobCreated():
                self._end(now, *self._running.values())
                self._create(event)
            case m.AgentJoined() if before is not None:
                self._agent_joined(before, event, last)
            case _:
                pass
        if self._is_training and any(worker.category is Category.TRAINING for worker in self._running.values()):
            self.progress.training_s += now - last
            self._unconfirmed_s += now - last
        broke = before is not None and _breaks_world(before, event)
        if broke:
            self._discard_unconfirmed()
        job = self.job = evolve(before, event)
        if isinstance(event, m.StepsCommitted):
            self._committed(job, event)  # changes no category
            return
        self._apply(job, event)
        if before is not None and job.is_live and not before.is_live:
            self._went_live(job)
        if job.state.ended:
            self._end(now, *self._running.values())
        planned = not job.is_live and _ended_on_purpose(before.launch if before is not None else None)
        self._update_categories(job, planned, since=self._confirmed_at if broke else now)

    def _apply(self, job: Job, event: Event) -> None:
        match event:
            case m.MemberJoined():
                self._joined(event)
            case m.MemberGone():
                self._end(self.now, *self._running_named(event.member), lost=event.how == "lost")
            case m.WorldFormed(world=world) if world.kind is WorldKind.ROLLBACK:
                self._entered_members.clear()  # members outside of it may be spares
                self._count_history(job)
            case m.WorldEntered():
                self._entered(job, event.generation)
            case m.CheckpointPublished():
                self.progress.checkpoints += 1
            case m.Launched() | m.SeatRefilled():
                self._launched(job)
            case m.SeatEnded():
                self._end(self.now, *self._running_named(event.end.member))
            case m.AgentReadied() | m.AgentGone():
                self._end(self.now, *(worker for worker in self._launched_workers(job) if worker.agent == event.agent))
            case _:
                pass

    def _update_categories(self, job: Job, planned: bool, since: float) -> None:
        """Set each worker's category. If no worker trains any more, the pause began at `since`."""
        now = self.now
        categories = categories_of(job, self._running, self._entered_members)
        for name, worker in self._running.items():
            if categories[name] is not worker.category:
                worker.advance_to(now)
                worker.category = categories[name]
        trains = any(worker.category is Category.TRAINING for worker in self._running.values())
        if trains and self._paused_since is not None:
            self.progress.changes.append(MembershipChange(now, planned, now - self._paused_since))
            self._paused_since = None
        elif self._is_training and not trains:
            self._paused_since = since
        if trains and not self._is_training:
            self._confirmed_at = now
        self._is_training = trains

    def _discard_unconfirmed(self) -> None:
        """A world broke: no training is confirmed after its last durable report."""
        for worker in self._running.values():
            worker.advance_to(self.now)
            worker.count_as_switching()
        self.progress.training_s -= self._unconfirmed_s
        self._unconfirmed_s = 0.0

    # ----------------------------------------------------------------------------------------------- progress

    def _committed(self, job: Job, event: m.StepsCommitted) -> None:
        progress = self.progress
        recomputed = [line.samples for line in event.lines if line.lineage.step <= progress.highest_step]
        world = job.world(event.generation)
        if not recomputed and not event.pauses:
            self._all_new_until = self.now  # the common case: no worker is touched
        else:
            self._book_confirmed()
            for name in world.members if world is not None else ():
                for worker in self._running_named(name):
                    worker.advance_to(self.now)
                    worker.decide(len(recomputed) / len(event.lines), event.pauses)
        self._confirmed_at, self._unconfirmed_s = self.now, 0.0
        progress.recomputed_steps += len(recomputed)
        progress.recomputed_samples += sum(recomputed)
        progress.samples_ever += sum(line.samples for line in event.lines)
        progress.highest_step = max(progress.highest_step, job.durable.step)
        self._count_history(job)
        for each in event.pauses:
            if each.kind == Category.SWITCHING and progress.changes and progress.changes[-1].pause_s is None:
                progress.changes[-1].pause_s = each.seconds

    def _book_confirmed(self) -> None:
        """Book the time up to the last report of new steps as training. Call before other time is decided."""
        for worker in self._running.values():
            if worker.counted_until < self._all_new_until:
                worker.advance_to(self._all_new_until)
                worker.decide(0.0)

    def _count_history(self, job: Job) -> None:
        """Count the durable history."""
        assert job.terms is not None  # the first member set them, and a world has members
        steps = self.progress.steps = job.durable.step
        self.progress.samples = job.terms.grid.samples_up_to(steps)

    def _entered(self, job: Job, generation: int) -> None:
        world = job.world(generation)
        assert world is not None  # an entered world is open
        self._entered_members.update(world.members)
        if world.kind is WorldKind.PLANNED:
            self.progress.changes.append(MembershipChange(self.now, planned=True))
        elif world.kind is WorldKind.ROLLBACK and self._has_history:
            self.progress.rollbacks += 1
        self._has_history = True

    # ------------------------------------------------------------------------------------- start and end of workers

    def _create(self, event: m.JobCreated) -> None:
        """Start the job, or its next attempt; one from the beginning has a new ledger."""
        progress = self.progress
        if not progress.attempts:
            self.created_at = self.now
        progress.attempts += 1
        if not event.resumes:
            progress.steps = progress.samples = progress.highest_step = 0
            progress.recomputed_steps = progress.recomputed_samples = 0
            self._has_history = False
        self._attempt_began = self.now
        self._entered_members.clear()
        self._is_training = False
        self._paused_since = None
        self._unconfirmed_s = 0.0

    def _joined(self, event: m.MemberJoined) -> None:
        name, now = event.member.id, self.now
        worker = self._workers.get(name)
        if worker is None:
            began = min(max(now - event.age_s, self._attempt_began), now)
            worker = self._workers[name] = WorkerAccount(name, event.member.agent, began, began, Category.STARTING)
        worker.count_as_starting(now)
        self._running[name] = worker

    def _launched(self, job: Job) -> None:
        """End the workers that still ran: no two launches run side by side."""
        seats = job.launch.seats if job.launch is not None else ()
        taken = {seat.member for seat in seats}
        self._end(self.now, *(worker for worker in self._launched_workers(job) if worker.name not in taken))
        self._training_before_launch_s = self.progress.training_s
        for seat in seats:
            if seat.member not in self._workers:
                worker = WorkerAccount(seat.member, seat.agent, self.now, self.now, Category.TRAINING)
                self._workers[seat.member] = self._running[seat.member] = worker

    def _went_live(self, job: Job) -> None:
        """A launched worker joined, so all of them were starting. Those that do not join have no further events."""
        for worker in self._launched_workers(job):
            worker.count_as_starting(self.now)
            del self._running[worker.name]
        self.progress.training_s = self._training_before_launch_s
        self._unconfirmed_s = 0.0
        self._is_training = False

    def _agent_joined(self, job: Job, event: m.AgentJoined, last: float) -> None:
        """End the workers of an agent that restarted: workers never outlive their agent."""
        if _is_restarted(job, event):
            theirs = (worker for worker in self._running.values() if worker.agent == event.agent)
            self._end(last, *theirs, lost=job.is_live)

    def _end(self, at: float, *workers: WorkerAccount, lost: bool = False) -> None:
        for worker in workers:
            worker.advance_to(max(at, worker.counted_until))
            if lost:
                worker.count_as_switching()
            worker.decide(self._recomputing_share)
            del self._running[worker.name]

    def _running_named(self, name: MemberId) -> list[WorkerAccount]:
        """Return the worker of that name, if it runs."""
        return [self._running[name]] if name in self._running else []

    def _launched_workers(self, job: Job) -> list[WorkerAccount]:
        """Return the workers that were launched, run, and have not joined."""
        return [worker for worker in self._running.values() if worker.name not in job.members]


def _breaks_world(job: Job, event: Event) -> bool:
    """Return whether an event means that the job's world ended unplanned. Launched workers are in none."""
    match event:
        case m.WorldBroken(entered=entered):
            return entered
        case m.WorldFormed(world=world):
            return world.kind is not WorldKind.PLANNED
        case m.MemberGone(member=name, how="lost"):
            return name in _current_members(job)
        case m.AgentJoined(agent=agent):
            return _is_restarted(job, event) and any(job.members[name].agent == agent for name in _current_members(job))
        case _:
            return False


def _current_members(job: Job) -> list[MemberId]:
    """Return the live members of the current world."""
    world = job.world(job.current)
    return [name for name in world.members if name in job.members] if world is not None else []


def _is_restarted(job: Job, event: m.AgentJoined) -> bool:
    """Return whether an agent comes back after a restart."""
    return any(agent.id == event.agent and agent.run_id != event.run_id for agent in job.agents)


def _ended_on_purpose(launch: Launch | None) -> bool:
    """Return whether a launch ended because a change was wanted, not because of a failure."""
    return launch is None or not (launch.lost or any(end.code for end in launch.ends))
