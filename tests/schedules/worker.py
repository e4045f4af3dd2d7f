"""One worker: the member's real machine on one thread, with a model of training for its work.

The twin of `pliant_sim.processes.worker.LiveWorker`, in a process of its own and in real time. Everything
happens on the thread that calls `run`; other threads put what they learn into the queue.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from time import monotonic, time
from typing import assert_never, get_args

from pliant.core.data.ledger import Lineage, expected_slot_digest
from pliant.core.data.sample_order import Order
from pliant.core.job.checkpoints import is_garbage
from pliant.core.member import Machine, Phase, react
from pliant.core.member import signals as s
from pliant.core.member.common import unreported_lines
from pliant.core.member.control_words import Purpose
from pliant.core.messages import Command
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.core.model.job import Terms
from pliant.core.model.names import MemberId
from pliant.wire.codec import decode_state, encode_state
from pliant_sim.live.toy_model import Content, ToyModel, applied, forward, post_step
from schedules import messages as w

REMEMBERED = 12  # reduced gradients kept, as the simulator's workers do
GRACE_MARGIN_S = 0.7
_SIGNALS = get_args(s.Signal)

Item = s.Signal | w.Down | w.Up | Callable[[], None]


class Worker:
    """One worker's one life. `say` reaches the harness, `send` the coordinator."""

    def __init__(
        self, member: MemberId, terms: Terms, files: Path, say: Callable[[w.Up], None], send: Callable[[Command], None]
    ) -> None:
        self.id = member
        self.machine = Machine(member, terms)
        self.inbox: SimpleQueue[Item] = SimpleQueue()
        self.left: s.Exit | None = None
        self.close_watch: Callable[[float], None] = lambda _: None
        self._say = say
        self._send = send
        self._files = files
        self._order = Order(terms.seed, terms.grid.samples)
        self._chance = Random(member)
        self._pace = 1.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._model = ToyModel()
        self._kept: list[int] = []  # slots whose gradients are in the local sum
        self._kept_base: Lineage | None = None
        self._reduced: dict[Lineage | None, Content] = {}
        self._incoming: Content = ()
        self._writing: tuple[s.Snapshot, ToyModel] | None = None
        self._aside: dict[int, ToyModel] = {}
        self._transfer = 0
        self._traced: tuple[object, ...] = ()

    # -------------------------------------------------------------------------------------------- the loop

    def run(self) -> s.Exit:
        """Until the machine says that it leaves."""
        while self.left is None:
            now = monotonic()
            if self._timers and self._timers[0][0] <= now:
                heappop(self._timers)[2]()
                continue
            try:
                item = self.inbox.get(timeout=self._timers[0][0] - now if self._timers else 1.0)
            except Empty:
                continue
            self._take(item)
        return self.left

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._timers, (monotonic() + delay_s, self._sequence, act))

    def _working(self, low_s: float, high_s: float, act: Callable[[], None]) -> None:
        self._after(self._chance.uniform(low_s, high_s) * self._pace, act)

    def _take(self, item: Item) -> None:
        match item:
            case w.Reduced():
                self._incoming = item.content
            case w.StripeWanted():
                self._give_stripe(item)
            case w.StripeGiven():
                self._stripe(item)
            case w.GradientWanted():
                self._give_gradient(item)
            case w.GradientGiven():
                self._gradient(item)
            case w.Broken():
                self._broken(item)
            case w.Pace():
                self._pace = item.factor
            case w.CloseWatch():
                self.close_watch(item.away_s)
            case w.Viewed() | w.Heard() | w.Acked() | w.Trouble():
                self._say(item)
            case _ if isinstance(item, _SIGNALS):
                self._feed(item)
            case _:
                item()  # type: ignore[operator]  # what is left is something to call

    def _feed(self, signal: s.Signal) -> None:
        """Let the machine react; the trace goes out before anything that it does."""
        if self.left is not None:
            return
        before = self.machine
        self.machine, actions = react(before, signal)
        m = self.machine
        if m.followed_steps is not before.followed_steps and m.followed_steps:
            self._remember(m.followed_steps[-1].line.lineage)
        looked_at = (m.phase, m.world, m.holds_state, m.lineage, tuple(m.committed_lines))
        if looked_at != self._traced:
            self._traced = looked_at
            self._say(w.State(time(), *looked_at))
        for action in actions:
            self._perform(action)

    def _perform(self, action: s.Action) -> None:
        match action:
            case s.Compute():
                self._compute(action)
            case s.Collect():
                step = action.word.purpose is Purpose.STEP
                part = tuple(self._kept) if step and action.word.holds and action.word.slots else ()
                self._say(w.Enter(action, part))
            case s.Apply():
                self._apply(action)
            case s.Send():
                self._send(action.command)
            case s.Wire() | s.Break():
                self._say(action)
            case s.SendToPeer(member, s.Admission() as signal):
                self._say(w.TellLetIn(member, signal))
            case s.SendToPeer(member, s.Released() as freed):
                self._say(w.TellReleased(member, freed))
            case s.SendToPeer():
                raise AssertionError(action)
            case s.Fetch():
                self._fetch(action)
            case s.CatchUp():
                self._say(w.AskGradient(action.donor, action.lineage))
            case s.Install():
                self._install(action)
            case s.Restore():
                self._working(0.02, 0.1, lambda: self._restored(action.checkpoint))
            case s.Snapshot():
                self._writing = (action, self._model)
            case s.Save():
                self._save(action)
            case s.CollectGarbage():
                self._tidy(action)
            case s.Discard():
                shutil.rmtree(self._files / action.name, ignore_errors=True)
            case s.StartGrace():
                self._after(max(action.grace_s - GRACE_MARGIN_S, 0.0), lambda: self._feed(s.GraceShort()))
                self._after(action.grace_s, lambda: self._feed(s.GraceOver()))
            case s.Exit():
                self._leave(action)
            case _:
                assert_never(action)

    def _leave(self, action: s.Exit) -> None:
        view = self.machine.view
        ended = view is not None and view.state.ended
        self._say(w.Leaves(action.code, action.why, action.complete, ended, view.checkpoint if view else None))
        self.left = action

    def refused(self, revision: int) -> None:
        """The coordinator does not know us: we are fenced, unless it knows less than we do."""
        view = self.machine.view
        if view is not None and revision >= view.revision:
            self._feed(s.ViewReceived(replace(view, revision=revision + 1, known=False)))

    # -------------------------------------------------------------------------------------------- the work

    def _compute(self, action: s.Compute) -> None:
        """The user's code: forward and backward, slot by slot, in one piece or two."""
        if action.idle:
            self._working(0.01, 0.03, lambda: self._feed(s.Computed(frozenset(), 0, 0)))
            return
        if self._kept_base != self._model.lineage:
            self._kept, self._kept_base = [], self._model.lineage
        slots = action.slots
        cut = self._chance.randint(1, len(slots)) if self._chance.random() < 0.2 else len(slots)
        self._working(0.03, 0.1, lambda: self._computed(action.step, slots[:cut], slots[cut:]))

    def _computed(self, step: int, slots: tuple[int, ...], rest: tuple[int, ...]) -> None:
        self._model = forward(self._model)
        self._kept.extend(slots)
        grid = self.machine.terms.grid
        samples = sum(len(grid.slot(step, slot)) for slot in slots)
        digest = sum(expected_slot_digest(grid, self._order, step, slot) for slot in slots)
        self._feed(s.Computed(frozenset(slots), samples, digest & ((1 << 64) - 1)))
        if rest and self.machine.phase is Phase.COMPUTING:
            self._working(0.01, 0.03, lambda: self._computed(step, rest, ()))

    def _remember(self, lineage: Lineage) -> None:
        self._reduced[lineage] = self._incoming
        while len(self._reduced) > REMEMBERED:
            del self._reduced[next(iter(self._reduced))]

    def _apply(self, action: s.Apply) -> None:
        line = action.line
        if line.lineage not in self._reduced:
            self._remember(line.lineage)
        content = self._reduced[line.lineage]
        self._model = applied(self._model, line.lineage, content)
        self._say(w.Applies(line, content, self._model))
        self._kept, self._kept_base = [], line.lineage
        self._working(0.002, 0.02, self._post_step)

    def _post_step(self) -> None:
        self._model = post_step(self._model)
        self._say(w.AtBoundary(self._model))
        self._feed(s.Boundary(self._model.hash))

    # ------------------------------------------------------------------------------------ state that moves

    def _fetch(self, action: s.Fetch) -> None:
        self._transfer += 1
        self._aside = {}
        donors = action.donors[:3]
        if not donors:
            self._after(0.2, lambda: self._feed(s.TransferBroken()))
        for index, donor in enumerate(donors):
            self._say(w.AskStripe(donor, self._transfer, index, len(donors)))

    def _give_stripe(self, ask: w.StripeWanted) -> None:
        m = self.machine
        if m.phase in (Phase.APPLIED, Phase.INSTALLING) or not m.holds_state:
            self._after(0.01, lambda: self._give_stripe(ask))  # a state is captured at a boundary only (rule 3)
            return
        self._say(w.GiveStripe(ask.asker, ask.transfer, ask.index, ask.count, self._model, unreported_lines(m)))

    def _stripe(self, given: w.StripeGiven) -> None:
        if given.transfer == self._transfer:
            model = self._aside[given.index] = given.model
            self._feed(s.Stripe(given.index, given.count, model.lineage, model.hash, given.lines))

    def _broken(self, broken: w.Broken) -> None:
        if broken.transfer == self._transfer:
            self._transfer += 1
        elif broken.transfer:
            return
        self._feed(s.TransferBroken())

    def _install(self, action: s.Install) -> None:
        self._say(w.Installs(action.lineage, tuple(self._aside.values())))
        model = next(iter(self._aside.values()))
        for line in action.replay:
            # The steps bring their small state along: the user's code does not run for them here.
            model = post_step(applied(model, line.lineage, self._reduced[line.lineage]))
        self._working(0.005, 0.02, lambda: self._installed(model))

    def _installed(self, model: ToyModel) -> None:
        self._model = model
        self._kept, self._kept_base = [], model.lineage
        self._say(w.AtBoundary(model))
        self._feed(s.Installed(model.hash))

    def _give_gradient(self, ask: w.GradientWanted) -> None:
        line = next((x for x in unreported_lines(self.machine) if x.lineage == ask.lineage), None)
        content = self._reduced.get(ask.lineage)
        if content is None:
            line = None
        self._say(w.GiveGradient(ask.asker, ask.lineage, line, content or ()))

    def _gradient(self, given: w.GradientGiven) -> None:
        if given.line is not None:
            self._reduced[given.lineage] = given.content
        self._feed(s.Gradient(given.line))

    # --------------------------------------------------------------------------------------- checkpoints

    def _save(self, action: s.Save) -> None:
        if self._writing is not None and self._writing[0].name == action.name:
            begun, model = self._writing
            self._working(0.02, 0.2, lambda: self._saved(begun, model))

    def _saved(self, begun: s.Snapshot, model: ToyModel) -> None:
        """Written whole under another name first; a name that is taken stays as it is (rule 17)."""
        folder = self._files / begun.name
        folder.mkdir(exist_ok=True)
        file = f"{begun.part}-of-{begun.count}-{self.id}"
        new = self._files / f".{begun.name}.{os.getpid()}"
        new.write_bytes(encode_state(model))
        target = folder / file
        try:
            target.hardlink_to(new)
        except FileExistsError:
            if target.read_bytes() != new.read_bytes():
                self._say(w.Trouble(f"rule 17: {file} of {begun.name} is taken by another state"))
        new.unlink()
        self._say(w.WroteFile(begun.name, file, model))
        piece = Piece(file, len(encode_state(model)), f"{model.hash:064x}")
        checkpoint = Checkpoint(begun.lineage, begun.name, model.hash, (piece,))
        self._feed(s.WriteDone(checkpoint, begun.part, begun.count))

    def _tidy(self, action: s.CollectGarbage) -> None:
        about = (
            action.kept_checkpoints,
            action.newest.lineage.step,
            action.history_from_generation,
            action.rollback_generation,
            action.generation,
        )
        for folder in self._files.iterdir():
            if folder.is_dir() and is_garbage(folder.name, *about):
                shutil.rmtree(folder, ignore_errors=True)

    def _restored(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            self._model = ToyModel()
        else:
            self._model = decode_state(
                (self._files / checkpoint.name / checkpoint.pieces[0].file).read_bytes(), ToyModel
            )
        self._kept, self._kept_base = [], None
        self._say(w.Restores(checkpoint, self._model))
        self._feed(s.Restored(self._model.hash))
