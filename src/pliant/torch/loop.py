"""The training thread's part in a member's life: carrying out orders between one item and the next.

`next` is the iterator (rule 3: here, and nowhere else, a member switches, receives, saves and leaves); `finish_part`
is what `run.reduce()` does; `apply` what `run.apply()` does. Whatever goes wrong in a collective is fed to the machine,
and the iterator goes on from there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import msgspec
import torch

from pliant.core.accounting.pauses import CHECKPOINTING
from pliant.core.data.grid import Grid, idle_slot
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member import Phase
from pliant.core.member import signals as s
from pliant.core.member.common import history_position
from pliant.core.member.control_words import Purpose, Word
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Dispute
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.torch.checkpointing import MemberCheckpoints
from pliant.torch.data.loader import Loader
from pliant.torch.data.seeds import seed_all
from pliant.torch.errors import Left
from pliant.torch.gloo.group import GlooGroup, GroupBroken
from pliant.torch.reduce.base import Reducer
from pliant.torch.reduce.buckets import ReducedGradient
from pliant.torch.replay import Replay
from pliant.torch.state.state_hash import StateHash
from pliant.torch.state.training_state import TrainingState, gradient_from, gradient_state, moving_buffers
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, WrongSamples, step_seed
from pliant.train.data.microbatches import MicroBatcher, slot_set
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.spot_checks import SpotCheck
from pliant.train.session import Order, Session
from pliant.train.state.flat import State
from pliant.train.state.state_lock import StateLock


@dataclass(frozen=True, slots=True)
class MissedStep:
    """A step that others reduced and this member has yet to apply, in a body of the user's loop of its own."""

    line: LedgerLine
    reduced: ReducedGradient
    then: Callable[[int], s.Signal]  # what the machine waits for at the boundary after it


class Loop:
    """One run on one member. Everything is called by the training thread, except `capture` and `gradient`."""

    def __init__(
        self,
        session: Session,
        state: TrainingState,
        reducer: Reducer,
        loader: Loader,
        gate: StateLock,
        step_optimizers: Callable[[], None],
        shelf: MemberCheckpoints,
        logged: StepMetrics,
        parts: MicroBatcher,
        hashes: StateHash,
        *,
        expected: Callable[[int], int],
        seed: int,
        checks: Callable[[int, int, s.Shares], Sequence[SpotCheck]],
        device: torch.device,
    ) -> None:
        self.session = session
        self.grid: Grid = session.machine.terms.grid
        self.part: LoadedMicroBatch | None = None  # in the user's hands
        self.ready: ReducedGradient | None = None  # reduced, not applied
        self.logged = logged
        self.step = 0  # of the part that was yielded last
        self.applied: LedgerLine | None = None  # since the last boundary
        self.metrics: dict[str, float] = {}
        self.moved = False  # whether the state is not the initial one any more
        self.in_user_code_since: float | None = None
        self.replay: Replay | None = None  # set to end the run after some step
        self._state = state
        self._reducer = reducer
        self._loader = loader
        self._gate = gate
        self._step_optimizers = step_optimizers
        self._expected = expected  # the digest that a step's samples must have
        self._seed = seed
        self._cutting = parts
        self._hashes = hashes
        self._checks = checks  # the spot checks of a step in a generation
        self._spots = 0  # of the parts to come, the first so many are spot checks
        self._is_spot = False  # so is the one in the user's hands
        self._shelf = shelf
        self._device = device
        self._parts: deque[MicroBatch] = deque()
        self._idle = False
        self._weight = 0.0  # of the parts kept in this step
        self._missed: MissedStep | None = None
        self._followed: ReducedGradient | None = None
        self._line: LedgerLine | None = None
        self._then: Callable[[int], s.Signal] = s.Boundary
        self._last: tuple[Lineage, ReducedGradient] | None = None
        self._order: Order | None = None  # taken from the session, to be carried out by the iterator

    # ------------------------------------------------------------------------------------------- the iterator

    def next(self) -> LoadedMicroBatch | None:
        """The next part for the user's code; None when training is complete. Raises `Left`."""
        self.in_user_code_since = None
        if self.part is not None:
            raise BadInput("run.step() was not called for the last item: call it once in every turn of the loop.")
        if self.ready is not None:
            raise BadInput("run.reduce() was True, but run.apply() was not called: call it in the same turn.")
        if self.applied is not None:
            step, self.applied = self.applied.lineage.step, None
            self._order = self._at_boundary(self._then, step)
        while not self._parts:
            order = self._order or self.session.wait_for_order()
            if isinstance(order, s.Exit) and order.complete:
                return None
            self._order = self._carry_out(order)
        self.in_user_code_since = time.monotonic()  # reading is the user's code, too
        return self._begin(self._parts.popleft())

    def _at_boundary(self, then: Callable[[int], s.Signal], step: int) -> Order | None:
        self._state.buffers.rebase()  # what the user's code did to them after the step is part of it
        state = self._hashes.at_boundary(step)
        self._shelf.at_boundary(step, self.session.machine.view)
        order = self.session.feed_and_take(then(state))
        self._gate.allow_reads(self.session.machine.lineage, self._hashes.label(state))
        if self.replay:
            self.replay.at_boundary(step, state)
        return order

    def _carry_out(self, order: Order) -> Order | None:
        """Carry out an order of the machine, and return the next one if that leads to it at once."""
        match order:
            case s.Compute():
                self._compute(order)
            case s.Collect(word=word) if word.purpose is Purpose.STEP:
                return self._follow(order)
            case s.Collect():
                return self._compare(order)
            case s.Install():
                return self._install(order)
            case s.Apply(line):
                received = self.session.take_received()
                self._apply_missed(MissedStep(line, gradient_from(received, self._device), s.Boundary))
            case s.Restore(checkpoint):
                return self._restore(checkpoint)
            case s.Snapshot():
                with self.session.pauses.during(order.lineage.step + 1, CHECKPOINTING):
                    self._shelf.start_write(order)
            case s.Save():
                self._shelf.commit(order)
            case s.Exit(code, why):
                raise Left(code, why)
            case _:
                assert_never(order)
        return None

    # ----------------------------------------------------------------------------------------------- the parts

    def _compute(self, order: s.Compute) -> None:
        if not self.session.machine.kept_gradients.slots:
            self._forget_kept()
        self._idle = order.idle
        machine = self.session.machine
        checks = self._checks(order.step, machine.generation, machine.shares)
        spots = [MicroBatch(order.step, (each.slot,)) for each in checks if each.second == machine.rank]
        self._spots = len(spots)
        idle = [self._cutting.idle(order.step, order.slots[0])] if order.idle else []
        self._yield(order.step, *spots, *(idle or self._cutting.cut(order.step, order.slots)))

    def _yield(self, step: int, *parts: MicroBatch) -> None:
        """These come next, after those that are still to come."""
        self._parts.extend(parts)
        ahead = self._cutting.ahead(self.session.machine, step, self._loader.reads_ahead)
        self._loader.expect([*self._parts, *ahead])

    def _begin(self, part: MicroBatch) -> LoadedMicroBatch:
        loaded = self.part = self._loader.load(part)
        self.step = part.step
        self.logged.begin(part.slots[0])
        seed_all(step_seed(self._seed, part.step, part.slots[0]))
        self._is_spot = self._spots > 0
        self._spots = max(self._spots - 1, 0)
        dropped = self._idle or self._is_spot
        last = not self._parts and not dropped
        group = self.session.group(self.session.machine.generation) if last else None
        group = group if isinstance(group, GlooGroup) else None
        self._reducer.begin_part(part, float(loaded.samples), group, self.session.machine.shares, idle=dropped)
        return loaded

    def weigh(self, weight: float) -> None:
        """The part's weight, if it is not the number of its samples. Before its backward."""
        if not self._idle or self._is_spot:
            self._reducer.weigh(weight)

    def finish_part(self) -> ReducedGradient | None:
        """The user's code is done with the part. The step's gradient if all of it is here now, to be applied."""
        loaded, self.part = self.part, None
        self.in_user_code_since = None
        if loaded is None:
            raise BadInput("run.step() belongs to an item of the loop: call it once for each, inside the loop.")
        if self._is_spot:
            self._finish_spot(loaded.micro_batch.slots[0])
            return None
        weight = self._reducer.weight
        self._state.buffers.end_part(weight, drop=self._idle or not weight)
        if self._idle or not weight:
            self._reducer.drop_part()
            self.logged.drop()
        else:
            self._weight += weight
            self.logged.finish(weight)
        if self._missed is not None:
            return self._take_missed(self._missed)
        if self._parts:
            self._reducer.end_part()
        slots = frozenset() if self._idle else slot_set(loaded.micro_batch.slots)
        samples, digest = (0, 0) if self._idle else (loaded.samples, loaded.digest)
        state = self._hashes.after_backward() if not self._parts else None
        computed = s.Computed(slots, samples, digest, state)
        if self._parts:
            self.session.feed(computed)
            if self.session.machine.phase is not Phase.COMPUTING:
                self._parts.clear()  # the machine stopped the step: what was computed is kept
            return None
        order = self.session.feed_and_take(computed)
        if isinstance(order, s.Collect) and order.word.purpose is Purpose.STEP:
            return self._reduce(order)
        # The iterator carries it out. It may be a comparison, if a recovery world was wired meanwhile.
        self._order = order
        self._reducer.abandon()
        self._reducer.end_part()
        return None

    def _finish_spot(self, slot: int) -> None:
        """Somebody else's slot, computed here to see whether it is the same (verify_slots)."""
        self._state.buffers.end_part(0.0, drop=True)
        self.logged.drop()
        self._reducer.keep_spot_hash(slot)

    # -------------------------------------------------------------------------------------------- collectives

    def _reduce(self, order: s.Collect) -> ReducedGradient | None:
        number = order.world.number
        row = ControlRow(order.word, self._weight, self.logged.names_hash, self.logged.weight, self.logged.sums)
        try:
            checks = self._checks(order.word.step, number, order.shares)
            began = time.monotonic()
            rows, reduced = self._reducer.reduce(self._group(number), row, order.shares, checks)
            self.session.pauses.reduced(order.word.step, number, time.monotonic() - began)
        except GroupBroken as error:
            self._reducer.abandon()  # the group may have gone before anything was waited for
            self._reducer.end_part()
            self._order = self.session.feed_and_take(s.Failed(number, error.peer))
            return None
        then = self._feed_returned(order.world, rows, reduced)
        while isinstance(then, s.Snapshot | s.Save):  # this step committed the last, which may be due to be saved
            self._carry_out(then)
            then = self.session.take_queued()
        if not isinstance(then, s.Apply):
            self._order = then
            self._reducer.end_part()
            return None
        self._require_promised(then.line)
        self._line, self._then = then.line, s.Boundary
        return self._give(reduced)

    def _require_promised(self, line: LedgerLine) -> None:
        """What all members really read must be what the order promises; else nothing is applied, anywhere (H15)."""
        if line.digest != self._expected(line.lineage.step):
            raise WrongSamples(line.lineage.step)

    def _give(self, reduced: ReducedGradient) -> ReducedGradient:
        self._reducer.write_gradients(reduced)
        self.ready = reduced
        return reduced

    def _compare(self, order: s.Collect) -> Order | None:
        """A collective of words only."""
        number, word = order.world.number, order.word
        if order.whole_state_hash:
            word = replace(word, state=self._hashes.whole())
        try:
            answers = self._group(number).gather(msgspec.msgpack.encode(word))
            words = tuple(msgspec.msgpack.decode(answer, type=Word) for answer in answers)
        except GroupBroken as error:
            return self.session.feed_and_take(s.Failed(number, error.peer))
        except msgspec.MsgspecError:
            return self.session.feed_and_take(s.Failed(number, None))
        return self.session.feed_and_take(s.Returned(number, words))

    def _follow(self, order: s.Collect) -> Order | None:
        """Enter a step without state: add nothing, and keep what came of it for when the state is in place."""
        number = order.world.number
        try:
            if not self.session.wait_for_state(number) or self.session.received is None:
                raise GroupBroken("the generation is over")
            self._state.buffers.learn(moving_buffers(self.session.received))
            checks = self._checks(history_position(self.session.machine).step + 1, number, order.shares)
            row = ControlRow(order.word)
            rows, reduced = self._reducer.reduce(self._group(number), row, order.shares, checks, follow=True)
        except GroupBroken as error:
            return self.session.feed_and_take(s.Failed(number, error.peer))
        self._followed = reduced
        return self._feed_returned(order.world, rows, reduced)

    def _feed_returned(self, world: World, rows: Sequence[ControlRow], reduced: ReducedGradient) -> Order | None:
        names = world.members
        disputes = tuple(Dispute(each.slot, names[each.owner], names[each.second]) for each in reduced.disputed)
        return self.session.feed_and_take(s.Returned(world.number, tuple(row.word for row in rows), disputes))

    def _group(self, number: int) -> GlooGroup:
        group = self.session.group(number)
        if not isinstance(group, GlooGroup):
            raise GroupBroken(f"generation {number} is over")
        return group

    # ------------------------------------------------------------------------------------------ missed steps

    def _install(self, order: s.Install) -> Order | None:
        received = self.session.take_received()
        self._shut()
        self._state.install(received)
        self.moved = True
        self._forget_kept()
        if not order.replay:
            return self._at_boundary(s.Installed, order.lineage.step)
        (line,) = order.replay  # a joiner enters a collective only with the state at hand: one step, never more
        assert self._followed is not None
        self._apply_missed(MissedStep(line, self._followed, s.Installed))
        return None

    def _apply_missed(self, missed: MissedStep) -> None:
        """Yield an idle part, so that the user's code runs for this step here, too; its apply is the missed one."""
        self._missed = missed
        self._followed = None
        self._idle = True
        self._spots = 0
        step = missed.line.lineage.step
        self._yield(step, self._cutting.idle(step, idle_slot(self.grid, step, self.session.machine.rank)))

    def _take_missed(self, missed: MissedStep) -> ReducedGradient:
        self._missed = None
        self._line, self._then = missed.line, missed.then
        return self._give(missed.reduced)

    def _restore(self, checkpoint: Checkpoint | None) -> Order | None:
        """The base of a rollback world: a checkpoint, or the state this worker began with."""
        self._shut()
        if (unread := self._shelf.restore(checkpoint, moved=self.moved)) is not None:
            return self.session.feed_and_take(unread)
        self.moved = self.moved or checkpoint is not None
        self._forget_kept()
        return self._at_boundary(s.Restored, checkpoint.lineage.step if checkpoint is not None else 0)

    # ------------------------------------------------------------------------------------------------- apply

    def apply(self) -> None:
        """Change the state: the only place where a step does (rule 14)."""
        reduced, self.ready = self.ready, None
        if reduced is None or self._line is None:
            raise BadInput("run.apply() comes after a run.reduce() that was True.")
        self._shut()
        names = self.logged.names  # known by now to whoever had nothing to compute in this step, too
        self._state.buffers.apply(reduced.buffers, reduced.weight)
        self._step_optimizers()
        self._reducer.drop_part()
        self._forget_kept()
        self.metrics = dict(zip(names, reduced.means, strict=False))
        self.applied, self._line = self._line, None
        self.moved = True
        if reduced.buckets:
            self._last = (self.applied.lineage, reduced)
            self._reducer.swap_buffers()
        seed_all(step_seed(self._seed, self.applied.lineage.step, None))
        self.in_user_code_since = time.monotonic()

    def _shut(self) -> None:
        """The state is about to change: nobody reads it any more, and what was to be saved of it is copied."""
        self._gate.block_reads()
        with self.session.pauses.during(self.step, CHECKPOINTING):
            self._shelf.copy_before_change()

    def _forget_kept(self) -> None:
        self._reducer.drop_kept()
        self._state.buffers.drop_staged()
        self.logged.clear()
        self._weight = 0.0

    def gradient(self, lineage: Lineage) -> State | None:
        """The reduced gradient of the step applied last, for a member that missed it. From any thread."""
        last = self._last
        return gradient_state(last[1]) if last is not None and last[0] == lineage else None
