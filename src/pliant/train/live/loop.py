"""Carry out the machine's orders in the training thread, between one item of the user's loop and the next.

Three calls of user code lead here: the iterator (`next`), `run.reduce()` (`finish_part`) and `run.apply()` (`apply`).
A member switches worlds, receives a state, saves and leaves in the iterator only (rule 3).

The training thread alternates with the machine: it carries out an order, reports the outcome with
`session.feed_and_take`, and gets the next order back from the same call. If there is none yet, because it depends on
another thread, the iterator waits for it. A collective that fails is reported like any other outcome.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never, cast

import msgspec

from pliant.core.accounting.pauses import CHECKPOINTING
from pliant.core.data.grid import Grid, idle_slot, slot_set
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member import Phase
from pliant.core.member import signals as s
from pliant.core.member.common import history_position
from pliant.core.member.control_words import Purpose, Word
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Dispute
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.train.data.batch_size import BatchSize
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, SampleIndices, WrongSamples, step_seed
from pliant.train.data.microbatches import MicroBatcher
from pliant.train.group.contract import GroupBroken
from pliant.train.live.checkpointing import MemberCheckpoints
from pliant.train.live.engine import Engine, PartLoader, StepGradient, StepGroup
from pliant.train.live.errors import Left
from pliant.train.live.replay import Replay
from pliant.train.live.state_hash import StateHash
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.noise import NoiseScale
from pliant.train.reduce.spot_checks import SpotCheck
from pliant.train.session import Order, Session
from pliant.train.state.flat import State
from pliant.train.state.state_lock import StateLock

LEFT_MISSED_STEP = "The training loop was left in a step that the other members had applied."


@dataclass(frozen=True, slots=True)
class MissedStep:
    """A step that the other members reduced and this member still has to apply, with one extra item of the loop."""

    line: LedgerLine
    reduced: StepGradient
    boundary_signal: Callable[[int], s.Signal]  # reports the boundary after it to the machine


class Loop:
    """One run on one member. The training thread makes all calls but `gradient`."""

    def __init__(
        self,
        session: Session,
        engine: Engine,
        loader: PartLoader,
        state_lock: StateLock,
        checkpoints: MemberCheckpoints,
        logged: StepMetrics,
        parts: MicroBatcher,
        hashes: StateHash,
        *,
        indices: SampleIndices,
        noise: NoiseScale | None,
        batch: BatchSize | None,
        seed: int,
        checks: Callable[[int, int, s.Shares], Sequence[SpotCheck]],
    ) -> None:
        self.session = session
        self.part: LoadedMicroBatch | None = None  # being computed by user code
        self.ready: StepGradient | None = None  # reduced, not applied
        self._in_step = False  # an item is being read, or the last one was ended and its step not continued or applied
        self.logged = logged
        self.step = 0  # step of the last item
        self.applied: LedgerLine | None = None  # since the last boundary
        self.metrics: dict[str, float] = {}
        self.moved = False  # whether the state differs from the initial one
        self.restored_to: int | None = None  # the step of a base that was installed, until the run has taken note
        self.in_user_code_since: float | None = None
        self.longest_in_user_code_s = 0.0
        self.replay: Replay | None = None  # set by `pliant replay`, to end the run after a step
        self._engine = engine
        self._state = engine.state
        self._buffers = engine.buffers
        self._reducer = engine.reducer
        self._loader = loader
        self.state_lock = state_lock
        self._indices = indices
        self._noise = noise
        self._batch = batch
        self._grid_in_use = session.machine.terms.grid
        self._whole_square = 0.0  # of the gradient that is ready to be applied; only with `noise`
        self._seed = seed
        self._micro_batcher = parts
        self._hashes = hashes
        self._checks = checks  # returns the spot checks of a step in a generation
        self._spots = 0  # number of spot checks at the head of `_parts`
        self._is_spot = False  # whether user code computes a spot check
        self._checkpoints = checkpoints
        self._parts: deque[MicroBatch] = deque()
        self._idle = False
        self._weight = 0.0  # total weight of the parts kept in this step
        self._missed: MissedStep | None = None
        self._followed_gradient: StepGradient | None = None
        self._line: LedgerLine | None = None
        self._boundary_signal: Callable[[int], s.Signal] = s.Boundary
        self._last: tuple[Lineage, StepGradient] | None = None
        self._ending: s.LoopEnded | None = None  # user code computes nothing more
        self._order: Order | None = None  # taken from the session, to be carried out by the iterator
        self._join: Callable[[], None] | None = None  # set until the warm-up item is computed

    @property
    def grid(self) -> Grid:
        """The grid, with the changes of the batch so far."""
        return self.session.machine.terms.grid

    @property
    def is_after_step(self) -> bool:
        """True between a step and the next item of user code."""
        return self.applied is not None

    def check_batch(self, batch: int) -> None:
        """Raise BadInput if the steps cannot have this batch."""
        self._micro_batcher.check_batch(batch)

    @property
    def committed_step(self) -> int:
        """The last step that is known to be committed."""
        return self.session.machine.committed_step

    # -------------------------------------------------------------------------------------------- the warm-up

    def warm_up(self, step: int, size: int, join: Callable[[], None]) -> None:
        """Yield items that do not count, as of this step and a world of that size, and then call `join` (ADR 0062)."""
        self._join, self._idle = join, True
        self._parts.extend(self._micro_batcher.first_items(min(step, self.grid.total_steps), size))
        self._loader.expect(self._parts)

    @property
    def is_warming_up(self) -> bool:
        """True until this member joins."""
        return self._join is not None

    def end_warm_up(self) -> None:
        """Drop what is left of the warm-up, and join. Without a warm-up it does nothing."""
        join, self._join = self._join, None
        if join is not None:
            self._parts.clear()
            self._idle = False
            if self.part is not None:
                self._drop_part()
            join()

    def _drop_part(self) -> None:
        self.part = None
        self._reducer.drop_part()
        self.logged.drop()
        self._buffers.end_part(0.0, drop=True)

    # ------------------------------------------------------------------------------------------- the iterator

    def next(self) -> LoadedMicroBatch | None:
        """Return the next part for user code, or None when training is complete. Raises `Left`."""
        self._leave_user_code()
        if self.part is not None:
            raise BadInput("run.step() was not called for the last item. Call it once for each item of the loop.")
        if self.ready is not None:
            raise BadInput("run.reduce() returned True, but run.apply() was not called. Call it for the same item.")
        self._require_no_failed_step()
        if self.applied is not None:
            self._in_step = True
            self._engine.settle()
            self._in_step = False
            step, self.applied = self.applied.lineage.step, None
            self._order = self._at_boundary(self._boundary_signal, step)
        if not self._parts:
            self.end_warm_up()
        while not self._parts:
            order, self._order = self._order or self.session.wait_for_order(), None
            if isinstance(order, s.Exit) and order.complete:
                return None
            self._order = self._carry_out(order)
            if self._ending is not None and self._parts and self._missed is None:
                self._end_step(self._ending)
        self.in_user_code_since = time.monotonic()  # reading runs user code, too
        self._in_step = True
        loaded = self._begin(self._parts.popleft())
        self._in_step = False
        return loaded

    def finish(self, why: str) -> None:
        """Let the job end with the last applied step, once user code asks for the next item."""
        self._ending = s.LoopEnded(finish=True, why=why)

    def leave(self) -> None:
        """Take part in what the others do after user code left its loop. Return once the job has ended.

        Raises BadInput if the others go on, or if the last step was reduced and not applied.
        """
        self._leave_user_code()
        self.end_warm_up()
        if self.ready is not None or self._in_step or self._missed is not None:
            self._reducer.drop_part()  # the model may be trained again
            if self.ready is not None:
                raise BadInput(
                    "The training loop was left between run.reduce() and run.apply(). Call run.apply() before leaving."
                )
            self._require_no_failed_step()
            raise BadInput(LEFT_MISSED_STEP)
        if self.part is not None:
            group = self.session.group(self.session.machine.generation)
            if self._reducer.has_sent and group is not None:
                group.break_off()  # the others wait for the rest of these gradients: all go on in a recovery world
            self._reducer.abandon()
            self._drop_part()
        self._parts.clear()
        self._ending = self._ending or s.LoopEnded(finish=False)
        if self.session.machine.phase is Phase.COMPUTING:
            self._end_step(self._ending)
        try:
            if self.next() is not None:
                raise BadInput(LEFT_MISSED_STEP)
        except Left as left:
            view = self.session.machine.view
            if left.code != 1 or (view is not None and view.state.ended):
                raise
            raise BadInput(f"{left.why[:1].upper()}{left.why[1:]}.") from None

    def _require_no_failed_step(self) -> None:
        """Refuse to go on after an exception in the step that user code caught. The machine waits for its end."""
        if self._in_step:
            raise BadInput(
                "The last step was not completed, because the iterator or run.step() raised an exception. Let it end "
                'the script. To leave out steps whose gradient is not finite, pass nonfinite="skip" to job.train.'
            )

    def _end_step(self, ending: s.LoopEnded) -> None:
        """Enter the collective of the step with nothing computed. All slots of this member are empty."""
        self._parts.clear()
        self._spots = 0
        self._is_spot = self._idle = False
        self._forget_kept()
        machine = self.session.machine
        for slot in machine.shares[machine.rank]:
            self._reducer.begin_part(
                MicroBatch(machine.lineage.step + 1, (slot,)), 0.0, None, machine.shares, idle=False
            )
            self._reducer.end_part()
        order = self.session.feed_and_take(ending)
        if isinstance(order, s.Collect) and order.word.purpose is Purpose.STEP:
            self._reduce(order)
        else:
            self._order = order
        self._forget_kept()

    def _leave_user_code(self) -> None:
        if self.in_user_code_since is not None:
            spent_s = time.monotonic() - self.in_user_code_since
            self.longest_in_user_code_s = max(self.longest_in_user_code_s, spent_s)
        self.in_user_code_since = None

    def note_progress(self) -> None:
        """Note that user code got further: it is not stuck."""
        if self.in_user_code_since is not None:
            self.in_user_code_since = time.monotonic()

    def _at_boundary(self, signal: Callable[[int], s.Signal], step: int) -> Order | None:
        self._buffers.rebase()  # what user code did to them after the step belongs to the step
        state = self._hashes.at_boundary(step)
        self._checkpoints.at_boundary(step, self.session.machine.view)
        order = self.session.feed_and_take(signal(state))
        self.state_lock.allow_reads(self.session.machine.lineage, self._hashes.label(state))
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
                self._apply_missed(MissedStep(line, self._engine.gradient_from(received), s.Boundary))
            case s.Restore(checkpoint):
                return self._restore(checkpoint)
            case s.Snapshot():
                with self.session.pauses.during(order.lineage.step + 1, CHECKPOINTING):
                    self._checkpoints.start_write(order)
            case s.Save():
                self._checkpoints.commit(order)
            case s.Exit(code, why):
                raise Left(code, why)
            case _:
                assert_never(order)
        return None

    # ----------------------------------------------------------------------------------------------- the parts

    def _compute(self, order: s.Compute) -> None:
        if not self.session.machine.kept_gradients.slots:
            self._forget_kept()
        self._use_grid()
        self._idle = order.idle
        machine = self.session.machine
        checks = self._checks(order.step, machine.generation, machine.shares)
        changes = machine.terms.grid.changes_at(order.step)
        spots = [MicroBatch(order.step, (each.slot,), changes) for each in checks if each.second == machine.rank]
        self._spots = len(spots)
        idle = [self._micro_batcher.idle(order.step, order.slots[0])] if order.idle else []
        self._yield(order.step, *spots, *(idle or self._micro_batcher.cut(order.step, order.slots)))

    def _use_grid(self) -> None:
        """Cut, read and reduce by the current grid. Only a change of the batch replaces it."""
        grid = self.grid
        if grid is not self._grid_in_use:
            self._grid_in_use = grid
            self._micro_batcher.set_grid(grid)
            self._indices.set_grid(grid)
            self._reducer.set_grid(grid)
            self._checkpoints.set_grid(grid)

    def _yield(self, step: int, *parts: MicroBatch) -> None:
        """Append parts to those that the iterator yields."""
        self._parts.extend(parts)
        ahead = self._micro_batcher.ahead(self.session.machine, step, self._loader.reads_ahead)
        self._loader.expect([*self._parts, *ahead])

    def _begin(self, part: MicroBatch) -> LoadedMicroBatch:
        loaded = self.part = self._loader.load(part)
        self.step = part.step
        self.logged.begin(part.slots[0])
        self._engine.seed(step_seed(self._seed, part.step, part.slots[0]))
        self._is_spot = self._spots > 0
        self._spots = max(self._spots - 1, 0)
        dropped = self._idle or self._is_spot
        last = not self._parts and not dropped
        group = self.session.group(self.session.machine.generation) if last else None
        shares = self.session.machine.shares
        self._reducer.begin_part(part, float(loaded.samples), cast("StepGroup | None", group), shares, idle=dropped)
        return loaded

    @property
    def item_weight(self) -> float:
        """The weight of the current part in the step's gradient; 0 if its gradient is dropped."""
        return 0.0 if self._idle or self._is_spot else self._reducer.weight

    @property
    def begins_step(self) -> bool:
        """True if no gradient of an earlier part is kept in the step of the current part."""
        return not self._weight

    def weigh(self, weight: float) -> None:
        """Set the part's weight, before backward, if it is not the number of its samples."""
        if not self._idle or self._is_spot:
            self._reducer.weigh(weight)

    def finish_part(self) -> StepGradient | None:
        """End the part that user code computed. Return the step's gradient if it is complete, to be applied."""
        loaded, self.part = self.part, None
        self._leave_user_code()
        if loaded is None:
            raise BadInput("run.step() was called without an item. Call it once for each item, inside the loop.")
        self._in_step = True
        reduced = self._finish(loaded)
        self._in_step = reduced is not None
        self.in_user_code_since = time.monotonic()
        return reduced

    def _finish(self, loaded: LoadedMicroBatch) -> StepGradient | None:
        if self._join is not None:
            self._drop_part()
            return None
        if self._is_spot:
            self._finish_spot(loaded.micro_batch.slots[0])
            return None
        weight = self._reducer.weight
        if self._noise is not None:
            counted = 0.0 if self._idle else weight
            square = self._engine.part_square() if counted else 0.0
            self.logged.log(self._noise.log_of_part(square, counted))
        self._buffers.end_part(weight, drop=self._idle or not weight)
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
        computed = s.Computed(slots, samples, digest, state, self._batch.wanted if self._batch is not None else 0)
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
        """End a spot check: another member's slot, computed here to compare the gradients (verify_slots)."""
        self._buffers.end_part(0.0, drop=True)
        self.logged.drop()
        self._reducer.keep_spot_hash(slot)

    # -------------------------------------------------------------------------------------------- collectives

    def _reduce(self, order: s.Collect) -> StepGradient | None:
        number = order.world.number
        row = ControlRow(order.word, self._weight, self.logged.names_hash, self.logged.weight, self.logged.sums)
        try:
            checks = self._checks(order.word.step, number, order.shares)
            began = time.monotonic()
            rows, reduced = self._reducer.reduce(self._group(number), row, order.shares, checks)
            self.session.pauses.reduced(order.word.step, number, time.monotonic() - began)
        except GroupBroken as error:
            self._reducer.abandon()  # the group may have broken before the first wait
            self._reducer.end_part()
            self._order = self.session.feed_and_take(s.Failed(number, error.peer))
            return None
        next_order = self._feed_returned(order.world, rows, reduced)
        while isinstance(next_order, s.Snapshot | s.Save):  # this step committed the one before, which may be saved
            self._carry_out(next_order)
            next_order = self.session.take_queued()
        if not isinstance(next_order, s.Apply):
            self._order = next_order
            self._reducer.end_part()
            return None
        self._require_expected_samples(next_order.line)
        self._line, self._boundary_signal = next_order.line, s.Boundary
        return self._offer_gradient(reduced)

    def _require_expected_samples(self, line: LedgerLine) -> None:
        """Compare what all members read with the sample order. If it differs, no member applies the step."""
        if line.digest != self._indices.expected(line.lineage.step):
            raise WrongSamples(line.lineage.step)

    def _offer_gradient(self, reduced: StepGradient) -> StepGradient:
        self._reducer.write_gradients(reduced)
        if self._noise is not None:
            self._whole_square = self._engine.whole_square(reduced)
        self.ready = reduced
        return reduced

    def _compare(self, order: s.Collect) -> Order | None:
        """Exchange control words without gradients."""
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
        """Enter a step without a state: contribute nothing, and keep the gradient until the state is installed."""
        number = order.world.number
        try:
            if not self.session.wait_for_state(number) or self.session.received is None:
                raise GroupBroken("the generation is over")
            self._engine.follow(self.session.received)
            checks = self._checks(history_position(self.session.machine).step + 1, number, order.shares)
            row = ControlRow(order.word)
            rows, reduced = self._reducer.reduce(self._group(number), row, order.shares, checks, follow=True)
        except GroupBroken as error:
            return self.session.feed_and_take(s.Failed(number, error.peer))
        self._followed_gradient = reduced
        return self._feed_returned(order.world, rows, reduced)

    def _feed_returned(self, world: World, rows: Sequence[ControlRow], reduced: StepGradient) -> Order | None:
        names = world.members
        disputes = tuple(Dispute(each.slot, names[each.owner], names[each.second]) for each in reduced.disputed)
        return self.session.feed_and_take(s.Returned(world.number, tuple(row.word for row in rows), disputes))

    def _group(self, number: int) -> StepGroup:
        group = self.session.group(number)
        if group is None:
            raise GroupBroken(f"generation {number} is over")
        return cast(StepGroup, group)

    # ------------------------------------------------------------------------------------------ missed steps

    def _install(self, order: s.Install) -> Order | None:
        received = self.session.take_received()
        self.before_change()
        self._state.install(received)
        self.moved = True
        self._forget_kept()
        if not order.replay:
            return self._at_boundary(s.Installed, order.lineage.step)
        (line,) = order.replay  # never more than one: a joiner enters a collective only once it has the state
        assert self._followed_gradient is not None
        self._apply_missed(MissedStep(line, self._followed_gradient, s.Installed))
        return None

    def _apply_missed(self, missed: MissedStep) -> None:
        """Yield an idle part, so that user code runs once for the missed step and applies its gradient."""
        self._use_grid()
        self._missed = missed
        self._followed_gradient = None
        self._idle = True
        self._spots = 0
        step = missed.line.lineage.step
        self._yield(step, self._micro_batcher.idle(step, idle_slot(self.grid, step, self.session.machine.rank)))

    def _take_missed(self, missed: MissedStep) -> StepGradient:
        self._missed = None
        self._line, self._boundary_signal = missed.line, missed.boundary_signal
        return self._offer_gradient(missed.reduced)

    def _restore(self, checkpoint: Checkpoint | None) -> Order | None:
        """Install the base of a rollback world: a checkpoint, or the initial state of this worker."""
        self.before_change()
        if (unread := self._checkpoints.restore(checkpoint, moved=self.moved)) is not None:
            return self.session.feed_and_take(unread)
        self.moved = self.moved or checkpoint is not None
        if self._ending is not None and self._ending.finish:
            self._ending = None  # that was after a step that is gone
        self._forget_kept()
        self.restored_to = checkpoint.lineage.step if checkpoint is not None else 0
        return self._at_boundary(s.Restored, self.restored_to)

    # ------------------------------------------------------------------------------------------------- apply

    def apply(self) -> None:
        """Apply the step: the only place where a step changes the state (rule 14)."""
        reduced, self.ready = self.ready, None
        if reduced is None or self._line is None:
            raise BadInput("run.apply() was called without a gradient. Call it after run.reduce() returned True.")
        self._leave_user_code()
        skip = not self._engine.can_step(self._line.lineage.step)
        self.before_change()
        names = self.logged.names  # a member without slots in this step knows them by now, too
        self._engine.apply(reduced, skip=skip)
        self._reducer.drop_part()
        self._forget_kept()
        self.metrics = dict(zip(names, reduced.means, strict=False))
        if self._noise is not None:
            self._noise.apply(self.metrics, self._whole_square, reduced.weight)
        self.applied, self._line = self._line, None
        self._in_step = False
        self.moved = True
        if reduced.is_shared:
            self._last = (self.applied.lineage, reduced)
            self._reducer.swap_buffers()
        self._engine.seed(step_seed(self._seed, self.applied.lineage.step, None))
        self.in_user_code_since = time.monotonic()

    def before_change(self) -> None:
        """Call before the state changes: stop donors from reading it, and copy what a checkpoint still needs."""
        self.state_lock.block_reads()
        began = time.monotonic()
        self._checkpoints.copy_before_change()
        self.session.pauses.add(self.step, CHECKPOINTING, time.monotonic() - began)

    def _forget_kept(self) -> None:
        self._reducer.drop_kept()
        self._buffers.drop_staged()
        self.logged.clear()
        self._weight = 0.0

    def gradient(self, lineage: Lineage) -> State | None:
        """Return the reduced gradient of the last applied step, for a member that missed it. Any thread may call it."""
        last = self._last
        return self._engine.gradient_state(last[1]) if last is not None and last[0] == lineage else None
