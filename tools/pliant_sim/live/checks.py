"""Checks of a live job: its worlds, its steps, its members' states and its checkpoints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pliant.coordinator.service.inbox import Accepted, Answer
from pliant.core import messages as m
from pliant.core.data.ledger import LedgerLine
from pliant.core.job.assignment import desired_workers
from pliant.core.job.launches import FENCED_CODE
from pliant.core.leases import LEASE_TTL_S
from pliant.core.member import Machine
from pliant.core.member.control_words import Purpose, Words
from pliant.core.member.signals import Exit, Shares
from pliant.core.messages import Event, StatesDiffered
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.core.supervisor.signals import Action, Announce, Start
from pliant_sim.live.checkpoint_checks import CheckpointChecks
from pliant_sim.live.member_checks import CheckedMember, MemberChecks
from pliant_sim.live.toy_model import FALSE, WRONG, Content
from pliant_sim.processes.coordinator import Ask, Given

if TYPE_CHECKING:
    from pliant_sim.live.world import LiveSimulation
    from pliant_sim.processes.agent import SimulatedAgent
    from pliant_sim.processes.worker import LiveWorker

ORDERS_S = 3.0  # a user's request is decided and the agent has its orders, in a network without faults
EXIT_S = 6.0  # beyond the grace period
KILLED_S = LEASE_TTL_S  # an agent reads its events and checks its workers three times in a lease
# A member notices a frozen leader with its next renewal, asks another coordinator after a deadline, and watches there.
VIEW_S = LEASE_TTL_S / 3 + LEASE_TTL_S / 8 + 1.0


class LiveChecks(MemberChecks):
    """Looks into every process of a simulated job, too."""

    def __init__(self, sim: LiveSimulation) -> None:
        super().__init__(sim)
        self.sim: LiveSimulation = sim
        self.erring: set[MemberId] = set()
        self.evicted: set[MemberId] = set()
        self.escaped = False  # a corrupted state was in use where there was no other to compare it with
        self._only_holders: set[MemberId] = set()  # members with such a state
        self.polluted = False  # gradients of a corrupted state were applied before the next comparison
        self.spoilt_ends: list[MemberId] = []
        self.abandoned: dict[MemberId, str] = {}  # members that left with the last state, with the reason
        self.leaving: dict[SimulatedAgent, float] = {}  # agents that must start nothing, with the time since when
        self.saves = CheckpointChecks(sim, self.complain)

    # --------------------------------------------------------------------------------- the store's history

    def check_event(self, event: Event, after: Job) -> None:
        self.saves.event(event)
        super().check_event(event, after)
        job = self.job
        match event:
            case m.JobCreated():
                self.sim.attempt_due = False
            case m.StateChanged(state=JobState.FINISHED):
                self.sim.finished()
            case m.StateChanged() if job is not None and event.state in (JobState.FAILED, JobState.CANCELLED):
                self._must_be_saved(job)
            case m.AgentGone():
                self.check_expiry(event.agent, event.why)
            case m.WorldFormed():
                if self.sim.setting.failover:
                    self._views_are_due(self.revision)
            case StatesDiffered():
                if self.sim.setting.verify == 1 and event.suspects and event.rolls_back:
                    self.complain(f"P2: steps after {event.step} are given up, though most members agree")
            case _:
                pass

    def _are_committed(self, event: m.StepsCommitted) -> None:
        """Rule 1: what the store takes as durable, some member must have seen committed.

        Rule 16: or a stopped member has no time left, and no member went on from the step before.
        """
        for line in event.lines:
            if line.lineage in self.committed:
                continue
            reporter = self.sim.workers[event.reporter].machine
            if reporter.last_chance_save is None or reporter.lineage != event.lines[-1].lineage:
                self.complain(f"rule 1: step {line.lineage.step} is durable, but no member saw it committed")
            for worker in self.sim.running_workers():
                other = worker.machine
                known = self.job is not None and worker.id in self.job.members and other.holds_state
                if known and other.lineage.step == line.lineage.step and other.lineage != line.lineage:
                    self.complain(f"rule 1: step {line.lineage.step} is durable, and {worker.id} has another one")
            self.committed[line.lineage] = {event.reporter}

    def _may_be_gone(self, event: m.MemberGone) -> None:
        self.check_expiry(event.member, event.why)
        worker = self.sim.workers.get(event.member)
        alive = worker is not None and worker.up
        if self.sim.setting.failover and event.how == "lost" and "lease" in event.why:
            self.complain(f"P1: {event.member} was lost because a coordinator failed: {event.why}")
        if "silent corruption" in event.why:
            self.evicted.add(event.member)
            if worker is not None and not worker.model.spoilt and not self.escaped:
                self.complain(f"P4: {event.member} was lost for a corrupted state, and its state is right")
            return
        if "its gradients differ" in event.why:
            if event.member not in self.erring and "younger" not in event.why:
                self.complain(f"P4: {event.member} was lost for its gradients, and they are right: {event.why}")
            return
        if not alive or event.how != "lost":
            return
        if worker is not None and worker.frozen:
            self.sim.after(self.sim.setting.grace_s + KILLED_S, self._must_be_killed, worker)
        if "lease" not in event.why or (self.writer and not self.sim.may_expire(self.writer, event.member)):
            self.complain(f"rule 19: {event.member} was lost without proof or expiry: {event.why}")

    def _must_be_killed(self, worker: LiveWorker) -> None:
        """Rule 11: lost is final, and a process that cannot end by itself takes up room for ever."""
        if worker.up and worker.agent.up and not worker.agent.paused:
            self.complain(f"rule 11: {worker.id} was lost and is frozen, and its agent lets it be")

    def _world_formed(self, event: m.WorldFormed) -> None:
        world, job = event.world, self.job
        if any(name.startswith("stranger") for name in world.members):
            self.complain(f"P4: world {world.number} has a member with another fingerprint: {world.members}")
        if job is None or world.kind is not WorldKind.ROLLBACK or world.base.step >= job.durable.step:
            return
        self._must_be_saved(job)
        if job.untrusted_after_step is not None or any(worker.tainted for worker in self.sim.workers.values()):
            return  # no state can be trusted, or the donor of all others is corrupted
        for member in job.members:
            worker = self.sim.workers.get(member)
            if worker is None or not worker.up or not worker.machine.holds_state:
                continue
            if worker.machine.world is not None and worker.machine.world.number <= job.sealed:
                continue  # its world was sealed before, it may well be behind
            if member in self._only_holders:
                continue  # a joiner may still find that its state does not match the label
            if not job.durable.newer_than(worker.machine.lineage) and not worker.paused:
                self.complain(f"P2: rolled back to {world.base.step}, though {member} holds {job.durable.step}")

    def _must_be_saved(self, job: Job) -> None:
        """P2: no committed step is lost while a healthy process holds the state."""
        saved = job.checkpoint.lineage.step if job.checkpoint is not None else 0
        for member, why in self.abandoned.items():
            if (self.sim.setting.calm or self.sim.setting.moves) and job.durable.step > saved:
                self.complain(f"P2: steps {saved + 1} to {job.durable.step} are lost; {member} left with them: {why}")
        self.abandoned.clear()

    # ------------------------------------------------------------------------------------ inside the workers

    def _enters(self, worker: CheckedMember, before: Machine) -> None:
        world = worker.machine.world
        if world is not None and world.kind is WorldKind.ROLLBACK:
            self.sim.workers[worker.id].tainted = False  # a rollback drops all states
        super()._enters(worker, before)

    def applies(self, worker: CheckedMember, line: LedgerLine, content: Content) -> None:
        self._gradients_are_right(worker, line.lineage.step, content)
        super().applies(worker, line, content)

    def _gradients_are_right(self, worker: CheckedMember, step: int, content: Content) -> None:
        """P4: no member applies gradients that were found wrong; a member that computes alone cannot find any."""
        wrong = [gradient for part in content for gradient in part if gradient >= WRONG]
        alone = sum(1 for part in content if part) == 1
        if alone and wrong:
            self.escaped = True
        elif any(gradient & FALSE for gradient in wrong):
            self.complain(f"P4: {worker.id} applies gradients in step {step} that are wrong")
        elif wrong and self.sim.setting.verify == 1:
            self.complain(f"P4: {worker.id} applies gradients of a corrupted state in step {step}")
        elif wrong:
            self.polluted = True

    def reduces(self, world: World, words: Words, shares: dict[int, Shares], content: Content) -> None:
        self._compares(world, words)
        super().reduces(world, words, shares, content)

    def _compares(self, world: World, words: Words) -> None:
        """Note a corrupted state that is alone in a collective: no comparison can find it from then on."""
        holding = [rank for rank, word in enumerate(words) if word.holds]
        worker = self.sim.workers.get(world.members[holding[0]]) if len(holding) == 1 else None
        if worker is not None and worker.tainted:
            closing = words[holding[0]].purpose is Purpose.CLOSE
            if closing or worker.machine.state_hash == worker.said:
                self.escapes(worker)

    def escapes(self, worker: LiveWorker) -> None:
        """Take a corrupted state for right from now on: it is the only one there is, so nothing can tell."""
        self.escaped = True
        self._only_holders.add(worker.id)
        worker.tainted = False

    def forgets(self, worker: LiveWorker) -> None:
        """Note that a state is dropped. If not every step is verified, its effect on the others stays undetected."""
        if worker.tainted and self.polluted and worker.id not in self.evicted:
            self.escaped = True
        worker.tainted = False

    def leaves(self, worker: LiveWorker, leave: Exit) -> None:
        """P1, rules 9 and 16: check that a member may leave, and that no collective or last state depends on it."""
        job, machine = self.job, worker.machine
        self.saves.leaves(worker, leave)
        if machine.holds_state and leave.code != FENCED_CODE and not self._state_survives(worker):
            self.abandoned[worker.id] = leave.why
        if job is None or job.state.ended:
            self._leaves_at_the_end(worker, leave)
            return
        if leave.code == 75:
            if worker.id not in self.ever_gone:
                self.complain(f"P1: {worker.id} considers itself fenced, but is not: {leave.why}")
            return
        if leave.code or machine.world is None or worker.id in self.ever_gone or "grace" in leave.why:
            return
        hanging = self.sim.fabric.is_waiting(machine.generation, worker.id)
        if hanging is not None:
            self.complain(f"rule 9: {worker.id} left while {hanging} was in a collective of {machine.generation}")
        if machine.holds_state and not self._state_survives(worker):
            self.complain(f"rule 16: {worker.id} left with the last state of step {machine.lineage.step}")

    def _last_step(self) -> int:
        setting = self.sim.setting
        return setting.ends_at if setting.loop_ends else self.sim.grid.total_steps

    def _leaves_at_the_end(self, worker: LiveWorker, leave: Exit) -> None:
        last = self._last_step()
        if leave.complete and worker.model.spoilt:
            self.spoilt_ends.append(worker.id)
        if leave.complete and worker.model.lineage.step != last:
            self.complain(f"P2: {worker.id} ends as complete at step {worker.model.lineage.step} of {last}")
        if not leave.complete and self.job is not None and self.job.state is JobState.FINISHED:
            machine = worker.machine
            sent = machine.switch_to or "grace" in leave.why  # it was draining, and may have no view of the job's end
            if machine.holds_state and machine.lineage.step == last and leave.code == 0 and not sent:
                self.complain(f"P2: {worker.id} has the final state, but its exit is not complete")

    def _state_survives(self, worker: LiveWorker) -> bool:
        lineage = worker.machine.lineage
        view = worker.machine.view
        if worker.resumed_at_s == self.sim.now and view is not None and view.holders - {worker.id}:
            # It acts on a view from before it was stopped: the other holders were lost since.
            return True
        job, machine = self.job, worker.machine
        if job is not None and machine.generation < max(machine.released_by, job.current):
            # A collective completed in the next world, so the leaver has handed the state over. What becomes of the
            # holders there afterwards is a crash of theirs.
            return True
        for other in self.sim.workers.values():
            # A holder that was killed this very moment counts: the member cannot know of it.
            there = other.up or self.sim.now - other.ended_at_s < 0.1
            if (
                other is not worker
                and there
                and other.machine.holds_state
                and not lineage.newer_than(other.machine.lineage)
            ):
                return True
        checkpoint = job.checkpoint if job is not None else None
        return checkpoint is not None and not lineage.newer_than(checkpoint.lineage)

    # ------------------------------------------------------------------------------------- the coordinators

    def can_take_over(self) -> bool:
        """Return whether a second coordinator is well, so that the loss of one must have no consequences."""
        well = [each for each in self.sim.coordinators if each.up and not each.paused and not each.store.cut]
        return len(well) >= 2

    def is_slow(self) -> bool:
        """Return whether the only coordinator that is well has a slow store: then views may be late."""
        return any(each.slow for each in self.sim.coordinators) and not self.can_take_over()

    def _views_are_due(self, revision: int) -> None:
        """Let every member have the view of a change soon, unless another fault comes before."""
        self.sim.after(VIEW_S, self._must_have_view, revision, self.sim.now)

    def _must_have_view(self, revision: int, since: float) -> None:
        job = self.job
        if job is None or job.state.ended or self.sim.struck_at > since - LEASE_TTL_S / 4 or self.is_slow():
            return
        for worker in self.sim.running_workers():
            view = worker.machine.view
            if worker.joined and worker.id in job.members and (view is None or view.revision < revision):
                seen = view.revision if view is not None else "none"
                self.complain(f"P5: {worker.id} has view {seen}, {VIEW_S:.1f} s after revision {revision}")

    # ------------------------------------------------------------------------------------------- the agents

    def asked_to_leave(self, agent: SimulatedAgent, grace_s: float) -> None:
        """Note that a user asks an agent to leave: soon it starts nothing more, and then it exits."""
        self.leaving[agent] = self.sim.now + ORDERS_S
        self.sim.after(ORDERS_S + grace_s + EXIT_S, self._must_have_left, agent)

    def _must_have_left(self, agent: SimulatedAgent) -> None:
        if agent.up and self.job is not None and not self.job.state.ended:
            self.complain(f"{agent.machine} was asked to leave and has not: {agent.running} run")

    def agent_decided(self, agent: SimulatedAgent, actions: tuple[Action, ...]) -> None:
        super().agent_decided(agent, actions)
        since = self.leaving.get(agent)
        if since is not None and self.sim.now > since and any(isinstance(action, Start) for action in actions):
            self.complain(f"{agent.machine} was asked to leave and starts a worker")
        told = "".join(action.text for action in actions if isinstance(action, Announce))
        for member, process in agent.processes.items() if told else ():
            if process.up and not process.is_stopped and f"{member} was stopped" in told:
                self.complain(f"rule 19: {agent.machine} kills {member} as stopped, and it runs")

    def are_placed(self) -> None:
        """Check, some time after the last change, that each agent runs what is wanted there, and all of it trains."""
        job = self.job
        world = job.world(job.current) if job is not None else None
        if job is None or world is None or job.state is not JobState.RUNNING:
            return
        wanted = desired_workers(job)
        training = Counter(job.members[member].agent for member in world.members if member in job.members)
        running = {agent.state.id: len(agent.running) for agent in self.sim.agents.values() if agent.up}
        total = min(job.target.size + job.spec.spares, sum(agent.capacity for agent in job.agents))
        if job.target.placement:
            total = sum(
                min(count, job_agent.capacity)
                for job_agent in job.agents
                for name, count in job.target.placement
                if name == job_agent.id
            )
        if sum(running.values()) != total:
            self.complain(f"{sum(running.values())} processes run for a target of {job.target.size}: {running}")
        for agent, count in wanted.items():
            if not job.spec.spares and (training[agent], running.get(agent, 0)) != (count, count):
                there = f"{training[agent]} train and {running.get(agent, 0)} run"
                self.complain(f"{count} workers are wanted on {agent}; {there}")

    # ------------------------------------------------------------------------------------------ the answers

    def answered(self, coordinator: str, given: Given, answer: Answer) -> None:
        super().answered(coordinator, given, answer)
        drain = isinstance(given, Ask) and isinstance(given.request, m.Drain)  # a user may send it as well
        if isinstance(answer, Accepted) and not drain:
            self.sim.renewed_at[coordinator, given.sender] = self.sim.now

    # ---------------------------------------------------------------------------------------------- the end

    def finally_(self) -> None:
        """Check the end: what `finished_after` does, or that a script that always ends early was given up."""
        job = self.job
        if self.sim.setting.script_ends is not None:
            self._gave_up(job)
            return
        self.finished_after(self.sim.setting.last_step)
        if job is not None and job.state is JobState.FINISHED:
            if self.spoilt_ends and not self.escaped:
                self.complain(f"P4: {self.spoilt_ends} end with a state that was corrupted")
            self.saves.finally_(job)

    def _gave_up(self, job: Job | None) -> None:
        """Liveness: a script that always ends early is not restarted for ever."""
        if job is None or job.state is not JobState.FAILED:
            state = f"{job.state.value}: {job.why}" if job else "not even created"
            lives = len(self.sim.workers)
            self.complain(f"liveness: after {lives} workers that ended at one step, the job is {state}")
