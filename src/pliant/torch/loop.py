"""The training thread's part in a member's life: carrying out orders between one item and the next.

`next` is the iterator (rule 3: here, and nowhere else, a member switches, receives, saves and leaves); `finish_part`
is what `run.reduce()` does; `apply` what `run.apply()` does. Whatever goes wrong in a collective is fed to the machine,
and the iterator goes on from there.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
import torch

from pliant.core.grid import Grid, deal, idle_slot
from pliant.core.job import FENCED_CODE
from pliant.core.ledger import Line, Lineage
from pliant.core.member import Phase
from pliant.core.member import signals as s
from pliant.core.model import Checkpoint
from pliant.core.words import Purpose, Word
from pliant.errors import BadInput
from pliant.torch.data import Loader
from pliant.torch.group import Group, GroupBroken
from pliant.torch.left import Left
from pliant.torch.reducer import Reduced, Reducer
from pliant.torch.shelf import Shelf
from pliant.torch.state import TrainingState, gradient_from, gradient_state, moving_in
from pliant.train.cells import Row, weighted_means
from pliant.train.chance import step_key
from pliant.train.gate import Gate
from pliant.train.loader import Loaded, Part, WrongSamples, cut
from pliant.train.logged import Logged
from pliant.train.session import Session
from pliant.train.state import State


@dataclass(frozen=True, slots=True)
class Missed:
    """A step that others reduced and this member has yet to apply, in a body of the user's loop of its own."""

    line: Line
    reduced: Reduced
    rows: tuple[Row, ...]
    then: Callable[[int], s.Signal]  # what the machine waits for at the boundary after it


class Loop:
    """One run on one member. Everything is called by the training thread, except `capture` and `gradient`."""

    def __init__(
        self,
        session: Session,
        state: TrainingState,
        reducer: Reducer,
        loader: Loader,
        gate: Gate,
        step_optimizers: Callable[[], None],
        shelf: Shelf,
        *,
        expected: Callable[[int], int],
        seed: int,
        micro_batch: int | None,
        device: torch.device,
    ) -> None:
        self.session = session
        self.grid: Grid = session.machine.terms.grid
        self.part: Loaded | None = None  # in the user's hands
        self.ready: Reduced | None = None  # reduced, not applied
        self.logged = Logged()
        self.step = 0  # of the part that was yielded last
        self.applied: Line | None = None  # since the last boundary
        self.metrics: dict[str, float] = {}
        self.moved = False  # whether the state is not the initial one any more
        self.in_user_code_since: float | None = None
        self._state = state
        self._reducer = reducer
        self._loader = loader
        self._gate = gate
        self._step_optimizers = step_optimizers
        self._expected = expected  # the digest that a step's samples must have
        self._seed = seed
        self._micro_batch = micro_batch
        self._shelf = shelf
        self._device = device
        self._parts: deque[Part] = deque()
        self._idle = False
        self._weight = 0.0  # of the parts kept in this step
        self._missed: Missed | None = None
        self._followed: tuple[Reduced, tuple[Row, ...]] | None = None
        self._line: Line | None = None
        self._then: Callable[[int], s.Signal] = s.Boundary
        self._last: tuple[Lineage, Reduced] | None = None

    # ------------------------------------------------------------------------------------------- the iterator

    def next(self) -> Loaded | None:
        """The next part for the user's code; None when training is complete. Raises `Left`."""
        self.in_user_code_since = None
        if self.part is not None:
            raise BadInput("run.step() was not called for the last item: call it once in every turn of the loop.")
        if self.ready is not None:
            raise BadInput("run.reduce() was True, but run.apply() was not called: call it in the same turn.")
        if self.applied is not None:
            self.applied = None
            self._at_boundary(self._then)
        while not self._parts:
            if self._carry_out(self.session.take()):
                return None
        self.in_user_code_since = time.monotonic()  # reading is the user's code, too
        return self._begin(self._parts.popleft())

    def _at_boundary(self, then: Callable[[int], s.Signal]) -> None:
        self._state.buffers.rebase()  # what the user's code did to them after the step is part of it
        state = self._state.fingerprint()
        self.session.feed(then(state))
        self._gate.open(self.session.machine.lineage, state)

    def _carry_out(self, order: object) -> bool:
        """Do what the machine ordered; whether training is complete."""
        match order:
            case s.Compute():
                self._compute(order)
            case s.Collect(world, word) if word.purpose is Purpose.STEP:
                self._follow(world.number, word)
            case s.Collect(world, word):
                self._compare(world.number, word)
            case s.Install():
                self._install(order)
            case s.Apply(line):
                received = self.session.take_received()
                self._apply_missed(Missed(line, gradient_from(received, self._device), (), s.Boundary))
            case s.Restore(checkpoint):
                self._restore(checkpoint)
            case s.Snapshot(lineage):
                self._shelf.keep(lineage)
            case s.Save(lineage, name):
                self._shelf.save(lineage, name, lambda saved: self.session.feed(s.Written(saved)))
            case s.Exit(_, _, True):
                return True
            case s.Exit(code, why, False):
                raise Left(code, why)
            case _:
                raise AssertionError(order)
        return False

    # ----------------------------------------------------------------------------------------------- the parts

    def _compute(self, order: s.Compute) -> None:
        if not self.session.machine.part.slots:
            self._forget_kept()
        self._idle = order.idle
        if order.idle:
            parts: tuple[Part, ...] = (self._idle_part(order.step, order.slots[0]),)
        else:
            parts = cut(self.grid, order.step, order.slots, self._micro_batch)
        self._parts.extend(parts)
        self._loader.expect([*self._parts, *self._ahead(order.step)])

    def _idle_part(self, step: int, slot: int) -> Part:
        """A real slot, with its neighbours until there are two samples: a batch of one breaks BatchNorm."""
        filled = len(self.grid.filled(step))
        first = last = slot
        enough = min(2, self._micro_batch or 2)
        while (
            sum(len(self.grid.slot(step, each)) for each in range(first, last + 1)) < enough
            and last - first + 1 < filled
        ):
            first, last = (first, last + 1) if last + 1 < filled else (first - 1, last)
        return Part(step, tuple(range(first, last + 1)))

    def _ahead(self, step: int) -> list[Part]:
        """What this member will read next if nothing changes, for data workers to begin with."""
        found: list[Part] = []
        machine = self.session.machine
        if not self._loader.reads_ahead or machine.world is None:
            return found
        weights = [w if rank in machine.holders else 0 for rank, w in enumerate(machine.world.weights)]
        if not sum(weights):
            return found
        mine = deal(self.grid.slots, weights)[machine.rank]
        for later in range(step + 1, self.grid.total_steps + 1):
            found += cut(self.grid, later, mine, self._micro_batch)
            if len(found) >= self._loader.reads_ahead:
                break
        return found

    def _begin(self, part: Part) -> Loaded:
        loaded = self.part = self._loader.load(part)
        self.step = part.step
        self.logged.begin()
        seed_all(step_key(self._seed, part.step, part.slots[0]))
        last = not self._parts and not self._idle
        group = self.session.group(self.session.machine.number) if last else None
        self._reducer.begin_part(float(loaded.samples), group if isinstance(group, Group) else None)
        return loaded

    def weigh(self, weight: float) -> None:
        """The part's weight, if it is not the number of its samples. Before its backward."""
        if not self._idle:
            self._reducer.weigh(weight)

    def finish_part(self) -> Reduced | None:
        """The user's code is done with the part. The step's gradient if all of it is here now, to be applied."""
        loaded, self.part = self.part, None
        self.in_user_code_since = None
        if loaded is None:
            raise BadInput("run.step() belongs to an item of the loop: call it once for each, inside the loop.")
        weight = self._reducer.weight
        self._state.buffers.end_part(weight, drop=self._idle or not weight)
        if self._idle or not weight:
            self._reducer.drop_part()
            self.logged.drop()
        else:
            self._weight += weight
            self.logged.weigh(weight)
        if self._missed is not None:
            return self._take_missed(self._missed)
        if self._parts:
            self._reducer.end_part()
        slots = frozenset() if self._idle else _as_set(loaded.part.slots)
        samples, digest = (0, 0) if self._idle else (loaded.samples, loaded.digest)
        self.session.feed(s.Computed(slots, samples, digest))
        if self._parts:
            if self.session.machine.phase is not Phase.COMPUTING:
                self._parts.clear()  # told to stop: what was computed is kept
            return None
        order = self.session.take_step()
        if order is None:
            self._reducer.abandon()
            self._reducer.end_part()
            return None
        return self._reduce(order)

    # -------------------------------------------------------------------------------------------- collectives

    def _reduce(self, order: s.Collect) -> Reduced | None:
        number = order.world.number
        row = Row(order.word, self._weight, self.logged.names_key, self.logged.weight, self.logged.sums)
        try:
            rows, reduced = self._reducer.reduce(self._group(number), row)
        except GroupBroken as error:
            self._reducer.end_part()
            self.session.feed(s.Failed(number, error.peer))
            return None
        self.session.feed(s.Returned(number, tuple(each.word for each in rows)))
        apply = self._take_apply()
        if apply is None:
            self._reducer.end_part()
            return None
        self._require_promised(apply.line)
        self._line, self._then = apply.line, s.Boundary
        return self._give(reduced, rows)

    def _require_promised(self, line: Line) -> None:
        """What all members really read must be what the order promises; else nothing is applied, anywhere (H15)."""
        if line.digest != self._expected(line.lineage.step):
            raise WrongSamples(line.lineage.step)

    def _take_apply(self) -> s.Apply | None:
        """The order to apply; before it there may be something to be saved, because this step committed the last."""
        while (order := self.session.take_now(s.Snapshot, s.Save, s.Apply)) is not None:
            if isinstance(order, s.Apply):
                return order
            self._carry_out(order)
        return None

    def _give(self, reduced: Reduced, rows: Sequence[Row]) -> Reduced:
        if rows:
            reduced.logged = weighted_means(rows, self.logged.names)
        self._reducer.give(reduced)
        self.ready = reduced
        return reduced

    def _compare(self, number: int, word: Word) -> None:
        """A collective of words only."""
        try:
            answers = self._group(number).gather(msgspec.msgpack.encode(word))
            words = tuple(msgspec.msgpack.decode(answer, type=Word) for answer in answers)
        except GroupBroken as error:
            self.session.feed(s.Failed(number, error.peer))
        except msgspec.MsgspecError:
            self.session.feed(s.Failed(number, None))
        else:
            self.session.feed(s.Returned(number, words))

    def _follow(self, number: int, word: Word) -> None:
        """Enter a step without state: add nothing, and keep what came of it for when the state is in place."""
        try:
            if not self.session.wait_for_state(number) or self.session.received is None:
                raise GroupBroken("the generation is over")
            self._state.buffers.learn(moving_in(self.session.received))
            rows, reduced = self._reducer.reduce(self._group(number), Row(word), follow=True)
        except GroupBroken as error:
            self.session.feed(s.Failed(number, error.peer))
            return
        self._followed = (reduced, rows)
        self.session.feed(s.Returned(number, tuple(row.word for row in rows)))

    def _group(self, number: int) -> Group:
        group = self.session.group(number)
        if not isinstance(group, Group):
            raise GroupBroken(f"generation {number} is over")
        return group

    # ------------------------------------------------------------------------------------------ missed steps

    def _install(self, order: s.Install) -> None:
        received = self.session.take_received()
        self._gate.shut()
        self._state.install(received)
        self.moved = True
        self._forget_kept()
        if not order.replay:
            self._at_boundary(s.Installed)
            return
        (line,) = order.replay  # a joiner enters a collective only with the state at hand: one step, never more
        assert self._followed is not None
        reduced, rows = self._followed
        self._apply_missed(Missed(line, reduced, rows, s.Installed))

    def _apply_missed(self, missed: Missed) -> None:
        """Yield an idle part, so that the user's code runs for this step here, too; its apply is the missed one."""
        self._missed = missed
        self._followed = None
        self._idle = True
        step = missed.line.lineage.step
        self._parts.append(self._idle_part(step, idle_slot(self.grid, step, self.session.machine.rank)))
        self._loader.expect([*self._parts, *self._ahead(step)])

    def _take_missed(self, missed: Missed) -> Reduced:
        self._missed = None
        self._line, self._then = missed.line, missed.then
        return self._give(missed.reduced, missed.rows)

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        """The base of a rollback world: a checkpoint, or the state this worker began with."""
        if checkpoint is not None:
            self._gate.shut()
            self._state.install(self._shelf.read(checkpoint))
            self.moved = True
        elif self.moved:
            raise Left(FENCED_CODE, "the job starts again from its beginning, and this worker's state has moved on")
        self._forget_kept()
        self._at_boundary(s.Restored)

    # ------------------------------------------------------------------------------------------------- apply

    def apply(self) -> None:
        """Change the state: the only place where a step does (rule 14)."""
        reduced, self.ready = self.ready, None
        if reduced is None or self._line is None:
            raise BadInput("run.apply() comes after a run.reduce() that was True.")
        self._gate.shut()
        self._state.buffers.apply(reduced.buffers, reduced.weight)
        self._step_optimizers()
        self._reducer.drop_part()
        self._forget_kept()
        self.metrics = reduced.logged
        self.applied, self._line = self._line, None
        self.moved = True
        if reduced.buckets:
            self._last = (self.applied.lineage, reduced)
            self._reducer.next_turn()
        seed_all(step_key(self._seed, self.applied.lineage.step, None))
        self.in_user_code_since = time.monotonic()

    def _forget_kept(self) -> None:
        self._reducer.drop_kept()
        self._state.buffers.drop_staged()
        self.logged.clear()
        self._weight = 0.0

    def gradient(self, lineage: Lineage) -> State | None:
        """The reduced gradient of the step applied last, for a member that missed it. From any thread."""
        last = self._last
        return gradient_state(last[1]) if last is not None and last[0] == lineage else None


@lru_cache(maxsize=64)
def _as_set(slots: tuple[int, ...]) -> frozenset[int]:
    """The same set for the same slots: a member has the same ones in most steps."""
    return frozenset(slots)


def seed_all(key: int) -> None:
    """Python's, numpy's and torch's generators, of every device in use."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.manual_seed_all(key)
