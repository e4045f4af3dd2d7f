"""A worker: the member's real machine in a process that can be killed, paused and cut off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from pliant.core.data.ledger import Lineage, expected_slot_digest
from pliant.core.leases import LEASE_TTL_S, RENEWALS_PER_LEASE
from pliant.core.member import Machine, Phase, react
from pliant.core.member import signals as s
from pliant.core.member.common import unreported_lines
from pliant.core.member.control_words import Purpose, Words
from pliant.core.messages import Command, Join
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.wire.api import Renew
from pliant_sim.live.toy_model import FALSE, WRONG, Content, Model, applied, corrupted, forward, post_step

if TYPE_CHECKING:
    from pliant_sim.live.world import Universe

TICK_S = LEASE_TTL_S / RENEWALS_PER_LEASE
REMEMBERED = 12  # reduced gradients kept: the last for laggards, more for a joiner's replay
GRACE_MARGIN_S = 1.5


class Worker:
    """One worker's one life."""

    def __init__(self, universe: Universe, member: MemberId, agent: AgentId, terms: Terms) -> None:
        self.universe = universe
        self.id = member
        self.agent = agent
        lacks = universe.setting.placeless
        self.machine = Machine(member, terms, can_save=not lacks or universe.chance.random() >= lacks)
        self.model = Model()
        self.up = True
        self.paused = False
        self.joined = False
        self.ended_at_s = 0.0
        self.resumed_at_s = -1.0
        self.backlog: list[s.Signal] = []  # what arrived while the process was stopped
        self.kept: list[int] = []  # slots whose gradients are in the local sum
        self.kept_base: Lineage | None = None
        self.reduced: dict[Lineage | None, Content] = {}
        self.incoming: Content = ()
        self.writing: tuple[s.Snapshot, bool, Model] | None = None  # what, whether it is wanted, and the state
        self.unbegun: tuple[s.Snapshot, bool, Model] | None = None  # to be written after it
        self.aside: dict[int, Model] = {}
        self.donors: tuple[MemberId, ...] = ()
        self.errs = False  # its gradients are wrong, always
        self.errs_once = False
        self.tainted = False  # a bit of its state is another one
        self.transfer = 0  # the attempt stripes belong to
        universe.after(universe.chance.uniform(0.0, TICK_S), self._tick)
        self._join()

    # ------------------------------------------------------------------------------------------ life

    def kill(self, code: int) -> None:
        """The process ends, whatever it was doing."""
        if not self.up:
            return
        self.up = False
        self.universe.checkers.forgets(self)
        self.ended_at_s = self.universe.now
        self.universe.fabric.dies(self.id)
        self.universe.process_ended(self, code)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.resumed_at_s = self.universe.now
        backlog, self.backlog = self.backlog, []
        for signal in backlog:
            self.feed(signal)

    def _tick(self) -> None:
        if not self.up:
            return
        rate = self.universe.rate_of(self.agent)
        self.universe.after(TICK_S * rate, self._tick)
        if self.paused:
            return
        if not self.joined:
            self._join()
            return
        view = self.machine.view
        self.universe.ask(self.id, Renew(self.id, view.revision if view is not None else -1))
        self.feed(s.Tick())

    def _join(self) -> None:
        self.universe.ask(
            self.id, Join(self.id, self.agent, self.machine.terms, fingerprint=self.universe.setting.bits)
        )

    def told(self, view: View) -> None:
        if self.up and (view.known or self.joined):
            self.joined = True
            self.feed(s.ViewReceived(view))

    def refused(self, revision: int) -> None:
        """The coordinator does not know us: we are fenced, unless it knows less than we do."""
        view = self.machine.view
        if self.up and view is not None and revision >= view.revision:
            self.feed(s.ViewReceived(replace(view, revision=revision + 1, known=False)))

    # ----------------------------------------------------------------------------- signals and actions

    def feed(self, signal: s.Signal) -> None:
        """Let the machine react, and do what it says."""
        if not self.up:
            return
        if self.paused:
            self.backlog.append(signal)
            return
        before = self.machine
        self.machine, actions = react(before, signal)
        if self.machine.followed_steps is not before.followed_steps and self.machine.followed_steps:
            self._remember(self.machine.followed_steps[-1].line.lineage)
        if actions:
            self.universe.note(self, signal, actions)
            for action in actions:
                self._perform(action)
        self.universe.checkers.reacted(self, before)

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
                self.universe.fabric.wire(self.id, action.world)
            case s.Break():
                self.universe.fabric.break_group(self.id, action.generation)
            case s.SendToPeer():
                self.universe.peer(self.id, action.member, action.signal)
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
                self.universe.checkers.saves.tidies(self, action, self.universe.checkers.job)
            case s.Discard():
                self._discard(action)
            case s.StartGrace():
                short = max(action.grace_s - GRACE_MARGIN_S, 0.0)
                self.universe.after(short, self.feed, s.GraceShort())
                self.universe.after(action.grace_s, self.feed, s.GraceOver())
            case s.Exit():
                self.universe.checkers.leaves(self, action)
                self.kill(action.code)
            case _:
                assert_never(action)

    def _send(self, command: Command) -> None:
        self.universe.ask(self.id, command)

    def _compute(self, action: s.Compute) -> None:
        """The user's code: forward and backward, slot by slot, in one piece or two."""
        universe = self.universe
        if action.idle:
            universe.after(universe.chance.uniform(0.2, 0.5), self._idled)
            return
        if self.kept_base != self.model.lineage or not self.machine.kept_gradients.slots:
            self.kept, self.kept_base = [], self.model.lineage
        slots = action.slots
        cut = universe.chance.randint(1, len(slots)) if universe.chance.random() < 0.2 else len(slots)
        universe.after(universe.chance.uniform(0.5, 1.5), self._computed, action.step, slots[:cut], slots[cut:])

    def _idled(self) -> None:
        self.feed(s.Computed(frozenset(), 0, 0, self._verified))

    @property
    def _verified(self) -> int | None:
        return self.said if self.machine.terms.verify else None

    def _computed(self, step: int, slots: tuple[int, ...], rest: tuple[int, ...]) -> None:
        if not self.up:
            return
        if self.paused:
            self.universe.after(0.5, self._computed, step, slots, rest)
            return
        universe = self.universe
        raising = universe.raises(self)
        if raising:
            samples = tuple(universe.samples(step, slot) for slot in slots)
            self.feed(s.UserCodeRaised(step, slots, samples, "ValueError: a bad sample"))
            return
        self.model = forward(self.model)
        error = (WRONG if self.tainted else 0) + (FALSE if self.errs or self.errs_once else 0)
        self.errs_once = False
        self.kept.extend(slot + error for slot in slots)
        grid, order = self.machine.terms.grid, universe.order
        samples_read = sum(len(grid.slot(step, slot)) for slot in slots)
        digest = sum(expected_slot_digest(grid, order, step, slot) for slot in slots)
        self.feed(s.Computed(frozenset(slots), samples_read, digest & ((1 << 64) - 1), self._verified))
        if rest and self.machine.phase is Phase.COMPUTING:
            universe.after(universe.chance.uniform(0.05, 0.3), self._computed, step, rest, ())

    def _collect(self, action: s.Collect) -> None:
        if action.whole_state_hash:
            action = replace(action, word=replace(action.word, state=self.model.hash))
        step = action.word.purpose is Purpose.STEP
        part = tuple(self.kept) if step and action.word.holds and action.word.slots else ()
        self.universe.fabric.enter(self.id, action, part)

    def reduction_returned(self, words: Words, content: Content) -> None:
        """What the collective wrote into our buffers, just before the machine hears that it returned."""
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
        self.universe.checkers.applies(self, line, content)
        self.model = applied(self.model, line.lineage, content)
        self.kept, self.kept_base = [], line.lineage
        self.universe.after(self.universe.chance.uniform(0.01, 0.1), self._post_step, line.lineage)

    def _post_step(self, lineage: Lineage) -> None:
        if not self.up:
            return
        if self.paused:
            self.universe.after(0.5, self._post_step, lineage)
            return
        self.model = post_step(self.model)
        self.universe.checkers.at_boundary(self)
        self.feed(s.Boundary(self.said))

    @property
    def said(self) -> int:
        """The hash of its state as the words carry it."""
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
            self.universe.after(0.5, self.feed, s.TransferBroken())
        for index, donor in enumerate(donors):
            self.universe.after(
                self.universe.chance.uniform(0.05, 0.5),
                self._stripe,
                self.transfer,
                index,
                len(donors),
                donor,
            )

    def _stripe(self, transfer: int, index: int, count: int, donor: MemberId) -> None:
        if not self.up or transfer != self.transfer:
            return
        source = self.universe.workers.get(donor)
        if (
            source is None
            or not source.up
            or self.universe.is_cut(donor, self.id)
            or self.universe.breaks_transfer(self)
        ):
            self.transfer += 1
            self.feed(s.TransferBroken())
            return
        if source.paused or source.machine.phase in (Phase.APPLIED, Phase.INSTALLING) or not source.machine.holds_state:
            # A state is captured at a boundary only (rule 3).
            self.universe.after(0.05, self._stripe, transfer, index, count, donor)
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
        self.universe.checkers.installs(self, action.lineage)
        model = next(iter(self.aside.values()))
        self.universe.checkers.forgets(self)
        donor = self.universe.workers.get(self.donors[0]) if len(self.donors) == 1 else None
        if donor is not None and donor.tainted:
            self.universe.checkers.escaped = True  # there was nobody to compare it with
        for line in action.replay:
            # The steps bring their small state along: the user's code does not run for them here.
            model = post_step(applied(model, line.lineage, self.reduced[line.lineage]))
        self.universe.after(self.universe.chance.uniform(0.01, 0.05), self._installed, model)

    def _installed(self, model: Model) -> None:
        if not self.up:
            return
        if self.paused:
            self.universe.after(0.5, self._installed, model)
            return
        self.model = model
        self.kept, self.kept_base = [], model.lineage
        self.universe.checkers.at_boundary(self)
        self.feed(s.Installed(self.said))

    def _ask_gradient(self, action: s.CatchUp) -> None:
        self.universe.after(self.universe.chance.uniform(0.02, 0.1), self._gradient, action)

    def _gradient(self, action: s.CatchUp) -> None:
        if not self.up:
            return
        source = self.universe.workers.get(action.donor)
        if source is None or not source.up or self.universe.is_cut(action.donor, self.id):
            self.feed(s.TransferBroken())
            return
        if source.paused:
            self.universe.after(0.2, self._gradient, action)
            return
        line = next((x for x in unreported_lines(source.machine) if x.lineage == action.lineage), None)
        content = source.reduced.get(action.lineage)
        if line is None or content is None:
            self.feed(s.Gradient(None))
            return
        self.reduced[action.lineage] = content
        self.feed(s.Gradient(line))

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        self.universe.after(self.universe.chance.uniform(0.05, 0.3), self._restored, checkpoint)

    def _restored(self, checkpoint: Checkpoint | None) -> None:
        if not self.up:
            return
        if self.paused:
            self.universe.after(0.5, self._restored, checkpoint)
            return
        if checkpoint is not None and (bad := self.universe.directory.unread(checkpoint)) is not None:
            self.feed(s.RestoreFailed("a byte is another one", damaged=bad))
            return
        self.model = self.universe.directory.read(checkpoint) if checkpoint else Model()
        self.kept, self.kept_base = [], None
        self.universe.checkers.saves.restores(self, checkpoint, self.universe.checkers.job)
        self.feed(s.Restored(self.said))

    def _snapshot(self, action: s.Snapshot) -> None:
        """One part is written at a time: a disk that is slow makes the next checkpoint fail, and not this one late."""
        if self.writing is not None and self.writing[1] and action.waits:
            self.unbegun = (action, False, self.model)
        elif self.writing is not None and self.writing[1]:
            self.feed(s.WriteFailed(action.name, "the previous checkpoint is still being written"))
        elif self.universe.chance.random() < self.universe.setting.full_disk:
            self.feed(s.WriteFailed(action.name, "the disk is full"))
        else:
            self.writing = (action, False, self.model)

    def _save(self, action: s.Save) -> None:
        if self.unbegun is not None and self.unbegun[0].name == action.name:
            self.unbegun = (self.unbegun[0], True, self.unbegun[2])
        elif self.writing is not None and self.writing[0].name == action.name:
            self.writing = (self.writing[0], True, self.writing[2])
            self.universe.after(self.universe.chance.uniform(0.1, 0.6), self._saved, *self.writing)

    def _discard(self, action: s.Discard) -> None:
        """A disk that is in the middle of it may finish all the same."""
        if self.unbegun is not None and self.unbegun[0].name == action.name:
            self.unbegun = None
        self.universe.checkers.saves.discards(self, action)

    def _saved(self, begun: s.Snapshot, _: bool, model: Model) -> None:
        if not self.up:
            return
        self.writing, self.unbegun = self.unbegun, None
        if self.writing is not None and self.writing[1]:
            self.universe.after(self.universe.chance.uniform(0.1, 0.6), self._saved, *self.writing)
        piece = self.universe.checkers.saves.writes_part(self, begun, model)
        checkpoint = Checkpoint(begun.lineage, begun.name, model.hash, (piece,))
        self.feed(s.WriteDone(checkpoint, begun.part, begun.count))
