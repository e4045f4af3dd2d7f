"""A live worker: the real state machine of a member, in a process that can be killed, stopped and cut off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from pliant.core.data.ledger import Lineage
from pliant.core.hangs import user_code_limit_s
from pliant.core.job.launches import STUCK_CODE
from pliant.core.leases import LEASE_TTL_S, RENEWALS_PER_LEASE
from pliant.core.member import Machine, Phase, react
from pliant.core.member import signals as s
from pliant.core.member.common import unreported_lines
from pliant.core.member.control_words import Purpose, Words
from pliant.core.member.leave import grace_margin_s
from pliant.core.messages import Command, Join
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.wire.api import Renew
from pliant_sim.fault_kinds import SimulatedFaultKind
from pliant_sim.live.toy_model import FALSE, WRONG, Content, ToyModel, applied, corrupted, forward, post_step
from pliant_sim.processes.coordinator import Ask, MemberWatch

if TYPE_CHECKING:
    from pliant_sim.live.world import LiveSimulation
    from pliant_sim.processes.agent import SimulatedAgent

TICK_S = LEASE_TTL_S / RENEWALS_PER_LEASE
REMEMBERED = 12  # reduced gradients kept: the last for laggards, more for a joiner's replay
STALL_S = 20.0
WATCH_PAUSE_S = 0.5  # after a watch that no coordinator answered
SAVE_S = 0.6  # a save takes so long at most


class LiveWorker:
    """One life of a worker."""

    def __init__(self, sim: LiveSimulation, member: MemberId, agent: SimulatedAgent, terms: Terms) -> None:
        self.sim = sim
        self.id = member
        self.agent = agent
        lacks = sim.setting.no_storage
        self.machine = Machine(member, terms, can_save=not lacks or sim.chance.random() >= lacks)
        self.model = ToyModel()
        self.up = True
        self.paused = False
        self.joined = False
        self.ended_at_s = 0.0
        self.resumed_at_s = -1.0
        self.backlog: list[s.Signal] = []  # signals that arrived while the process was stopped
        self.kept: list[int] = []  # slots whose gradients are in the local sum
        self.kept_base: Lineage | None = None
        self.reduced: dict[Lineage | None, Content] = {}
        self.incoming: Content = ()
        self.writing: tuple[s.Snapshot, bool, ToyModel] | None = None  # snapshot, whether to publish it, and the state
        self.unbegun: tuple[s.Snapshot, bool, ToyModel] | None = None  # to be written after it
        self.aside: dict[int, ToyModel] = {}
        self.donors: tuple[MemberId, ...] = ()
        self.frozen = False  # it is stopped, for ever
        self.hung_at_s: float | None = None  # since when it is stuck in user code
        self.grace_s: float | None = None  # the length of its grace period, once it has begun
        self.hangs = False  # it gets stuck the next time it runs user code
        self.errs = False  # its gradients are wrong, always
        self.errs_once = False
        self.tainted = False  # a bit of its state was flipped
        self.transfer = 0  # the attempt stripes belong to
        self._watches = 0  # opened ones; only the newest delivers
        self._watched_at = sim.now
        self._renewing = False
        if sim.setting.never_joins and sim.setting.script_ends is not None:
            sim.after(sim.chance.uniform(0.5, 2.0), self.end, sim.setting.script_ends)
            return
        sim.after(sim.chance.uniform(0.0, TICK_S), self._tick)
        self._join()

    # ------------------------------------------------------------------------------------------ life

    def end(self, code: int) -> None:
        """End the process, whatever it was doing."""
        if not self.up:
            return
        self.up = False
        self.sim.checks.forgets(self)
        self.ended_at_s = self.sim.now
        self.sim.fabric.dies(self.id)
        self.sim.tell(f"{self.id} ended with {code}")
        self.agent.worker_ended(self.id, code)

    def terminate(self, grace_s: float) -> None:
        """Take SIGTERM as a drain notice, as `pliant.join()` does."""
        self.feed(s.DrainNotice(grace_s, "its machine is going away"))

    @property
    def is_stopped(self) -> bool:
        """The system reports it as stopped. A pause is not seen: its machine is overloaded or suspended."""
        return self.frozen

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.resumed_at_s = self.sim.now
        backlog, self.backlog = self.backlog, []
        for signal in backlog:
            self.feed(signal)

    def _tick(self) -> None:
        if not self.up:
            return
        rate = self.sim.tick_rate(self.agent.machine)
        self.sim.after(TICK_S * rate, self._tick)
        if self.paused:
            return
        if self.hung_at_s is not None and self.sim.now - self.hung_at_s >= self._user_code_limit_s():
            self.end(STUCK_CODE)
            return
        if not self.joined:
            self._join()
            return
        view = self.machine.view
        if not self._renewing:  # one after the other, as the thread of the real link does
            self._renewing = True
            self.sim.ask_as_member(self.id, Renew(self.id, view.revision if view is not None else -1), TICK_S)
        self.feed(s.Tick())

    def _user_code_limit_s(self) -> float:
        world = self.machine.world
        return user_code_limit_s(STALL_S, self.grace_s, 1.5, alone=world is None or len(world.members) == 1)

    def _join(self) -> None:
        self.sim.ask_as_member(
            self.id, Join(self.id, self.agent.state.id, self.machine.terms, fingerprint=self.sim.setting.fingerprint)
        )

    def answered(self, given: Ask) -> None:
        """Watch once it has joined. Watch again if the coordinator moved, as the real link does after a renewal."""
        if isinstance(given.request, Renew):
            self._renewing = False
        if not self.up:
            return
        moved = self.sim.client_of(self.id).known.moved_at > self._watched_at
        if isinstance(given.request, Join | Renew) and (not self._watches or moved):
            self._open_watch()

    def call_failed(self, given: Ask) -> None:
        """Renew again at the next tick, since no coordinator answered."""
        if isinstance(given.request, Renew):
            self._renewing = False

    def _open_watch(self) -> None:
        if not self.up:
            return
        if self.paused:
            self.sim.after(0.5, self._open_watch)
            return
        self._watches += 1
        self._watched_at = self.sim.now
        view = self.machine.view
        self.sim.ask(MemberWatch(self.id, self._watches, view.revision if view is not None else -1))

    def watch_ended(self, watch: MemberWatch, view: View | None) -> None:
        """Take the view that a watch returned, if any, and watch again; an earlier watch than the newest is void."""
        if not self.up or watch.number != self._watches:
            return
        if view is None:
            self.sim.after(WATCH_PAUSE_S, self._watch_next, watch.number)
            return
        if view.known or self.joined:
            self.joined = True
            self.feed(s.ViewReceived(view))
        self._watch_next(watch.number)

    def _watch_next(self, number: int) -> None:
        if number == self._watches:
            self._open_watch()

    def refused(self, revision: int) -> None:
        """Take a refusal as being fenced, unless the coordinator's state is older than the member's view."""
        view = self.machine.view
        if self.up and view is not None and revision >= view.revision:
            self.feed(s.ViewReceived(replace(view, revision=revision + 1, known=False)))

    # ----------------------------------------------------------------------------- signals and actions

    def feed(self, signal: s.Signal) -> None:
        """Let the state machine react, and carry its actions out."""
        if not self.up:
            return
        if self.paused:
            self.backlog.append(signal)
            return
        before = self.machine
        self.machine, actions = react(before, signal)
        if self.machine is before:
            return
        if self.machine.followed_steps is not before.followed_steps and self.machine.followed_steps:
            self._remember(self.machine.followed_steps[-1].line.lineage)
        if actions:
            self.sim.note(self, signal, actions)
            for action in actions:
                self._perform(action)
        self.sim.checks.reacted(self, before)

    def _perform(self, action: s.Action) -> None:
        match action:
            case s.Compute():
                self._compute(action)
            case s.Collect():
                self._collect(action)
            case s.Apply():
                self._apply(action)
            case s.Send():
                self._send(action.command)
            case s.Wire():
                self.sim.fabric.wire(self.id, action.world)
            case s.Break():
                self.sim.fabric.break_group(self.id, action.generation)
            case s.SendToPeer():
                self.sim.peer(self.id, action.member, action.signal)
            case s.Fetch():
                self._fetch(action)
            case s.CatchUp():
                self._ask_gradient(action)
            case s.Install():
                self._install(action)
            case s.Restore():
                self._restore(action.checkpoint)
            case s.Snapshot():
                self._snapshot(action)
            case s.Save():
                self._save(action)
            case s.CollectGarbage():
                self.sim.checks.saves.tidies(self, action, self.sim.checks.job)
            case s.Discard():
                self._discard(action)
            case s.StartGrace():
                self.grace_s = action.grace_s
                short = action.grace_s - grace_margin_s(action.grace_s, SAVE_S)
                self.sim.after(short, self.feed, s.GraceShort())
                self.sim.after(action.grace_s, self.feed, s.GraceOver())
            case s.Exit():
                self.sim.checks.leaves(self, action)
                self.end(action.code)
            case _:
                assert_never(action)

    def _send(self, command: Command) -> None:
        self.sim.ask_as_member(self.id, command)

    def _compute(self, action: s.Compute) -> None:
        """Run the user's forward and backward passes, in one piece or two."""
        sim = self.sim
        if self._ends_loop():
            sim.after(sim.chance.uniform(0.01, 0.5), self.feed, s.LoopEnded(sim.setting.loop_ends == "finish", "done"))
            return
        if action.idle:
            sim.after(sim.chance.uniform(0.2, 0.5), self._idled)
            return
        if self.kept_base != self.model.lineage or not self.machine.kept_gradients.slots:
            self.kept, self.kept_base = [], self.model.lineage
        slots = action.slots
        cut = sim.chance.randint(1, len(slots)) if sim.chance.random() < 0.2 else len(slots)
        duration_s = sim.chance.uniform(0.5, 1.5) * sim.setting.pace
        sim.after(duration_s, self._computed, action.step, slots[:cut], slots[cut:])

    def _ends_loop(self) -> bool:
        """Return whether the script ends its loop here: on every member, or on one that finishes the job for all."""
        setting = self.sim.setting
        if not setting.loop_ends or self.model.lineage.step < setting.ends_at:
            return False
        return setting.loop_ends == "leave" or self.machine.rank == 0

    def _idled(self) -> None:
        self.feed(s.Computed(frozenset(), 0, 0, self._verified, self._batch))

    @property
    def _batch(self) -> int:
        """The batch that user code set: a part of the state, which depends on the step alone."""
        return self.sim.setting.batch_wanted(self.model.lineage.step)

    @property
    def _verified(self) -> int | None:
        return self.said if self.machine.terms.verify else None

    def _computed(self, step: int, slots: tuple[int, ...], rest: tuple[int, ...]) -> None:
        if not self.up:
            return
        if self.paused:
            self.sim.after(0.5, self._computed, step, slots, rest)
            return
        sim = self.sim
        if self._is_stuck():
            return
        if sim.setting.script_ends is not None and step >= sim.setting.ends_at:
            self.end(sim.setting.script_ends)
            return
        raising = sim.raises(self)
        if raising:
            samples = tuple(sim.samples(step, slot) for slot in slots)
            self.feed(s.UserCodeRaised(step, slots, samples, "ValueError: a bad sample"))
            return
        self.model = forward(self.model)
        error = (WRONG if self.tainted else 0) + (FALSE if self.errs or self.errs_once else 0)
        self.errs_once = False
        self.kept.extend(slot + error for slot in slots)
        read = [sim.slot_read(self.machine.terms.grid, step, slot) for slot in slots]
        samples_read, digest = sum(count for count, _ in read), sum(digest for _, digest in read)
        self.feed(s.Computed(frozenset(slots), samples_read, digest & ((1 << 64) - 1), self._verified, self._batch))
        if rest and self.machine.phase is Phase.COMPUTING:
            sim.after(sim.chance.uniform(0.05, 0.3), self._computed, step, rest, ())

    def _collect(self, action: s.Collect) -> None:
        if action.whole_state_hash:
            action = replace(action, word=replace(action.word, state=self.model.hash))
        step = action.word.purpose is Purpose.STEP
        part = tuple(self.kept) if step and action.word.holds and action.word.slots else ()
        self.sim.fabric.enter(self.id, action, part)

    def reduction_returned(self, words: Words, content: Content) -> None:
        """Store the result of a collective, just before the state machine receives its return."""
        if words[0].purpose is Purpose.STEP:
            self.incoming = content

    def _remember(self, lineage: Lineage) -> None:
        self.reduced[lineage] = self.incoming
        while len(self.reduced) > REMEMBERED:
            del self.reduced[next(iter(self.reduced))]

    def _apply(self, action: s.Apply) -> None:
        line = action.line
        if line.lineage not in self.reduced:
            self._remember(line.lineage)
        content = self.reduced[line.lineage]
        self.sim.checks.applies(self, line, content)
        self.model = applied(self.model, line.lineage, content)
        self.kept, self.kept_base = [], line.lineage
        self.sim.after(self.sim.chance.uniform(0.01, 0.1), self._post_step, line.lineage)

    def _post_step(self, lineage: Lineage) -> None:
        if not self.up:
            return
        if self.paused:
            self.sim.after(0.5, self._post_step, lineage)
            return
        if self._is_stuck():
            return
        self.model = post_step(self.model)
        self.sim.checks.at_boundary(self)
        self.feed(s.Boundary(self.said))

    def _is_stuck(self) -> bool:
        """Return whether user code never returns from now on."""
        if self.hangs and self.hung_at_s is None:
            self.hung_at_s = self.sim.now
            self.sim.faults_fired(SimulatedFaultKind.HANG)
        return self.hangs

    @property
    def said(self) -> int:
        """The hash of its state in the control words."""
        return self.model.said(self.machine.terms.verify)

    def corrupt(self, bit: int) -> None:
        self.model = corrupted(self.model, bit)
        self.tainted = True

    # ------------------------------------------------------------------------------- state that moves

    def _fetch(self, action: s.Fetch) -> None:
        self.transfer += 1
        self.aside = {}
        self.donors = donors = action.donors[:3]
        if not donors:
            self.sim.after(0.5, self.feed, s.TransferBroken())
        for index, donor in enumerate(donors):
            self.sim.after(
                self.sim.chance.uniform(0.05, 0.5),
                self._stripe,
                self.transfer,
                index,
                len(donors),
                donor,
            )

    def _stripe(self, transfer: int, index: int, count: int, donor: MemberId) -> None:
        if not self.up or transfer != self.transfer:
            return
        source = self.sim.workers.get(donor)
        if source is None or not source.up or self.sim.is_cut(donor, self.id) or self.sim.breaks_transfer(self):
            self.transfer += 1
            self.feed(s.TransferBroken())
            return
        if source.paused or source.machine.phase in (Phase.APPLIED, Phase.INSTALLING) or not source.machine.holds_state:
            # A state is captured at a boundary only (rule 3).
            self.sim.after(0.05, self._stripe, transfer, index, count, donor)
            return
        label = source.machine.state_hash
        if source.said != label:
            self.transfer += 1
            self.feed(s.TransferBroken(wrong_state=True))
            return
        self.aside[index] = source.model
        lines = unreported_lines(source.machine)
        self.feed(s.Stripe(index, count, source.model.lineage, label, lines))

    def _install(self, action: s.Install) -> None:
        self.sim.checks.installs(self, action.lineage)
        model = next(iter(self.aside.values()))
        self.sim.checks.forgets(self)
        donor = self.sim.workers.get(self.donors[0]) if len(self.donors) == 1 else None
        if donor is not None and donor.tainted:
            self.sim.checks.escapes(donor)  # there was no second donor to compare it with
        for line in action.replay:
            # The steps carry their small state; the user's code does not run for them here.
            model = post_step(applied(model, line.lineage, self.reduced[line.lineage]))
        self.sim.after(self.sim.chance.uniform(0.01, 0.05), self._installed, model)

    def _installed(self, model: ToyModel) -> None:
        if not self.up:
            return
        if self.paused:
            self.sim.after(0.5, self._installed, model)
            return
        self.model = model
        self.kept, self.kept_base = [], model.lineage
        self.sim.checks.at_boundary(self)
        self.feed(s.Installed(self.said))

    def _ask_gradient(self, action: s.CatchUp) -> None:
        self.sim.after(self.sim.chance.uniform(0.02, 0.1), self._gradient, action)

    def _gradient(self, action: s.CatchUp) -> None:
        if not self.up:
            return
        source = self.sim.workers.get(action.donor)
        if source is None or not source.up or self.sim.is_cut(action.donor, self.id):
            self.feed(s.TransferBroken())
            return
        if source.paused:
            self.sim.after(0.2, self._gradient, action)
            return
        line = next((x for x in unreported_lines(source.machine) if x.lineage == action.lineage), None)
        content = source.reduced.get(action.lineage)
        if line is None or content is None:
            self.feed(s.Gradient(None))
            return
        self.reduced[action.lineage] = content
        self.feed(s.Gradient(line))

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        self.sim.after(self.sim.chance.uniform(0.05, 0.3), self._restored, checkpoint)

    def _restored(self, checkpoint: Checkpoint | None) -> None:
        if not self.up:
            return
        if self.paused:
            self.sim.after(0.5, self._restored, checkpoint)
            return
        if checkpoint is not None and (bad := self.sim.directory.unread(checkpoint)) is not None:
            self.feed(s.RestoreFailed("a byte is another one", damaged=bad))
            return
        self.model = self.sim.directory.read(checkpoint) if checkpoint else ToyModel()
        self.kept, self.kept_base = [], None
        self.sim.checks.saves.restores(self, checkpoint, self.sim.checks.job)
        self.feed(s.Restored(self.said))

    def _snapshot(self, action: s.Snapshot) -> None:
        """Write one part at a time: with a slow disk the next checkpoint fails, instead of this one being late."""
        if self.writing is not None and self.writing[1] and action.waits:
            self.unbegun = (action, False, self.model)
        elif self.writing is not None and self.writing[1]:
            self.feed(s.WriteFailed(action.name, "the previous checkpoint is still being written"))
        elif self.sim.chance.random() < self.sim.setting.full_disk:
            self.feed(s.WriteFailed(action.name, "the disk is full"))
        else:
            self.writing = (action, False, self.model)

    def _save(self, action: s.Save) -> None:
        if self.unbegun is not None and self.unbegun[0].name == action.name:
            self.unbegun = (self.unbegun[0], True, self.unbegun[2])
        elif self.writing is not None and self.writing[0].name == action.name:
            self.writing = (self.writing[0], True, self.writing[2])
            self.sim.after(self.sim.chance.uniform(0.1, 0.6), self._saved, *self.writing)

    def _discard(self, action: s.Discard) -> None:
        """Discard a part; a write in progress may still finish."""
        if self.unbegun is not None and self.unbegun[0].name == action.name:
            self.unbegun = None
        self.sim.checks.saves.discards(self, action)

    def _saved(self, begun: s.Snapshot, _: bool, model: ToyModel) -> None:
        if not self.up:
            return
        self.writing, self.unbegun = self.unbegun, None
        if self.writing is not None and self.writing[1]:
            self.sim.after(self.sim.chance.uniform(0.1, 0.6), self._saved, *self.writing)
        piece = self.sim.checks.saves.writes_part(self, begun, model)
        checkpoint = Checkpoint(begun.lineage, begun.name, model.hash, (piece,))
        self.feed(s.WriteDone(checkpoint, begun.part, begun.count))
