"""The run: the object that user code iterates over while it trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.core.job.launches import FENCED_CODE
from pliant.errors import BadInput
from pliant.train.data.loader import LoadedMicroBatch
from pliant.train.live.engine import RowGradients, Rows, StepTables
from pliant.train.live.errors import Left
from pliant.train.live.evaluate import (
    Evaluation,
    EvaluationId,
    EvaluationResults,
    Numbers,
    Totals,
    compute_batch,
)
from pliant.train.live.loop import Loop
from pliant.train.live.step_log import StepLog
from pliant.train.reduce.own_model import OwnModel


class LiveRun:
    """A training run on this member. Iterate over it, and call `step` once for each item.

    `rank`, `size` and `generation` describe the world of this member. They change between two items only.
    """

    def __init__(
        self,
        loop: Loop,
        results: EvaluationResults,
        send: Callable[[bytes], None],
    ) -> None:
        self._loop = loop
        self._results = results
        self._send = send
        self._peeked: LoadedMicroBatch | None = None
        self._turn = 0  # number of evaluations since the last boundary
        self._step_log: StepLog | None = None
        self._own: OwnModel | None = None  # with model averaging
        self._tables: StepTables | None = None  # on parameter servers
        self.complete = False
        self.rank = 0
        self.size = 1
        self.generation = 0

    # ----------------------------------------------------------------------------------------------- the loop

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        loaded = self._advance()
        if loaded is None:
            raise StopIteration
        return loaded.data

    def epochs(self) -> Iterator[Epoch]:
        """Yield epochs, for a nested loop: `for epoch in run.epochs(): for x, y in epoch: ...`.

        Code after the inner loop belongs to the epoch's last step.
        """
        self._loop.end_warm_up()  # its item would be in another epoch than the next one
        while (loaded := self._advance()) is not None:
            self._peeked = loaded
            epoch = Epoch(self, self.epoch)
            yield epoch
            if not epoch.is_over:
                raise BadInput("The loop over an epoch ended early. Iterate over all of its items.")

    def _advance(self) -> LoadedMicroBatch | None:
        if self.complete:
            return None
        loaded = self._loop.next()
        if self._tables is not None:
            self._tables.drop_part()  # of an item that did not count
        machine = self._loop.session.machine
        self.rank, self.generation = machine.rank, machine.generation
        self.size = len(machine.world.members) if machine.world else 1
        self._turn = 0
        self.complete = loaded is None
        self._write_log()
        self._began(loaded)
        return loaded

    def _began(self, loaded: LoadedMicroBatch | None) -> None:
        """Prepare the framework for an item, or for the end of training."""

    def _left_item(self) -> None:
        """Undo what `_began` prepared, if user code left the loop within an item."""

    # ----------------------------------------------------------------------------------------------- the step

    def apply(self) -> None:
        """Do the second half of `step`: apply the global gradient."""
        self._loop.apply()
        if self._loop.step == self.total_steps:
            self._end_rows()
        if self._step_log is not None:
            self._step_log.add(self._loop.step, self.epoch, self._loop.metrics)

    def finish(self, why: str = "") -> None:
        """End the job for all members with the last applied step, which is saved; `why` is its reason.

        One member is enough. The loop ends at its next item, on every member. Call this after a step was applied, for
        early stopping for instance.
        """
        if not isinstance(why, str):
            raise BadInput(f"The reason given to run.finish must be a text, got {why!r}.")
        if self._loop.part is not None:
            raise BadInput("run.finish was called within a step. Call it after run.step() is True.")
        self._end_rows()
        self._loop.finish(why)

    def log(self, **values: Any) -> None:
        """Log values of this item. After the step, `metrics` has their means over all its items."""
        if self._loop.part is None:
            raise BadInput("run.log was called after run.step(). Call it before, for the same item.")
        self._loop.logged.log({name: self._bare(value) for name, value in values.items()})

    def log_to(self, folder: str | os.PathLike[str]) -> None:
        """Write the values of every committed step to `metrics.csv` and TensorBoard's files in this folder.

        Call it on every member, before the loop. Rank 0 writes, and another member continues when rank 0 moves, so all
        machines must reach the folder. A start from the beginning replaces the content.
        """
        if self._step_log is not None or self._loop.step:
            raise BadInput("run.log_to was called twice, or within the loop. Call it once, before the loop.")
        self._step_log = StepLog(Path(folder))

    def _begin_averaging(self, alpha: float, count: int) -> OwnModel:
        """Return this member's own model of so many trained arrays. Raises BadInput where the run cannot have one."""
        if self._own is not None or self._loop.step:
            raise BadInput("run.average_models was called twice, or within the loop. Call it once, before the loop.")
        if dict(self._loop.session.machine.terms.extra).get("deterministic") == "True":
            raise BadInput(
                "With run.average_models a gradient depends on the member that computes it, so the bits depend on the "
                "membership. Remove deterministic=True."
            )
        self._own = OwnModel(alpha, count)
        return self._own

    def _bare(self, value: Any) -> Any:
        """Return a value to log, without the framework's references to what it was computed from."""
        return value

    def note(self, **values: Any) -> None:
        """Add values to the log of the step that was just applied, as they are: a validation loss, a learning rate.

        They must be equal on every member: rank 0 writes its own.
        """
        if self._loop.applied is None:
            raise BadInput(
                "run.note was called outside of a step. Call it after run.step() is True, for the same item."
            )
        if self._step_log is not None:
            self._step_log.note({name: float(value) for name, value in values.items()})

    def _write_log(self) -> None:
        if self._step_log is None:
            return
        base, self._loop.restored_to = self._loop.restored_to, None
        if base is not None:
            self._step_log.roll_back(base)
        machine = self._loop.session.machine  # `rank` is that of the last item, and the world may have changed since
        if machine.rank == 0 and (self._step_log.is_open or not machine.released_by):
            self._step_log.write(self._loop.committed_step)
        elif machine.rank != 0:
            self._step_log.close()

    def _close_log(self) -> None:
        """Write what is committed, and close the log. The job calls it at its end.

        A member that was released never opens the log for that: another one may be writing to it.
        """
        self._write_log()
        if self._step_log is not None:
            self._step_log.close()

    @property
    def metrics(self) -> Mapping[str, float]:
        """The means of the values logged in the last applied step, equal on every member."""
        return self._loop.metrics

    # ------------------------------------------------------------------------------------------------ tables

    def _pull_rows(self, table: str, ids: npt.ArrayLike) -> Rows:
        """Return rows with all pushes of the steps before this one, and none of this step."""
        if self.complete:
            raise BadInput(
                "run.pull was called after the loop: the servers end with the job. Call it in the loop, such as once "
                "run.step_number is run.total_steps."
            )
        loop = self._loop
        step = loop.step + 1 if loop.is_after_step else loop.step
        return self._with_tables().pull(table, ids, step, idle=loop.part is not None and not loop.item_weight)

    def _push_rows(self, gradients: RowGradients) -> None:
        """Keep gradients of rows until the item ends."""
        tables = self._with_tables()
        if self._loop.part is None:
            raise BadInput("run.push was called outside of an item. Call it before run.step(), for the same item.")
        tables.push(gradients)

    def _with_tables(self) -> StepTables:
        if self._tables is None:
            raise BadInput("This run has no tables. Pass tables=[Table(...)] to job.train.")
        return self._tables

    def _end_rows(self) -> None:
        """Let the servers apply the last step, since no pull of a later one does."""
        if self._tables is not None:
            self._tables.end(self._loop.step + 1)

    def _send_rows(self) -> None:
        """Send the item's gradients of rows, so that the servers have them before any member applies the step."""
        loaded, weight = self._loop.part, self._loop.item_weight
        if self._tables is None or loaded is None or not weight:
            return
        if weight != loaded.samples:
            raise BadInput(
                f"An item of {loaded.samples} samples has the weight {weight:g}. With tables= the loss must be a mean "
                "over the samples: call run.backward without weight=."
            )
        part = loaded.micro_batch
        self._tables.end_part(part.step, part.slots[0], loaded.samples / self._loop.grid.size(part.step))

    # ---------------------------------------------------------------------------------------------- progress

    @property
    def step_number(self) -> int:
        """The current step, counted from 1."""
        return self._loop.step

    @property
    def batch_size(self) -> int:
        """The global batch of the current step. The last step of an epoch may have fewer samples."""
        return self._loop.grid.stretch(max(self._loop.step, 1)).batch

    @property
    def total_steps(self) -> int:
        """The number of the job's last step; a change of the batch changes it."""
        return self._loop.grid.total_steps

    @property
    def epoch(self) -> int:
        """The epoch of the current step, counted from 0."""
        return self._epoch_of(self._loop.step)

    def _epoch_of(self, step: int) -> int:
        return self._loop.grid.cursor(step).epoch if step else 0

    # ----------------------------------------------------------------------------------------------- evaluation

    def _evaluate(
        self,
        fn: Callable[[Any], Mapping[str, Any]],
        dataset: Any,
        batch_size: int,
        read: Callable[[range, int], Any],
        evaluating: AbstractContextManager[None],
    ) -> Totals:
        """Return the totals of `fn(batch)` over a data set, within the framework's evaluation mode."""
        if batch_size < 1 or not hasattr(dataset, "__len__") or not len(dataset):
            raise BadInput("run.evaluate needs a data set with at least one sample, and a batch_size of at least 1.")
        if not self.complete and (self._loop.part is not None or self._loop.applied is None):
            raise BadInput(
                "run.evaluate was called within a step, where members may differ. Call it after run.step() is True."
            )
        session = self._loop.session
        self._turn += 1
        key = EvaluationId(session.machine.lineage, self._turn, len(dataset), batch_size)
        with evaluating:
            return Evaluation(
                session,
                self._results,
                self._send,
                key,
                lambda number: compute_batch(key, number, fn, read, self._as_array),
                self._loop.note_progress,
            ).run()

    def _as_array(self, value: Any) -> Numbers:
        """Return a value that the function of `evaluate` computed, as numbers in double precision."""
        return np.asarray(value, dtype=np.float64)


class Epoch:
    """One pass over the data, as part of a nested loop."""

    def __init__(self, run: LiveRun, number: int) -> None:
        self._run = run
        self.number = number

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        run = self._run
        loaded, run._peeked = run._peeked, None
        if loaded is None and self.is_over:
            raise StopIteration
        loaded = loaded or run._advance()
        if loaded is None:
            raise StopIteration
        if run._epoch_of(loaded.micro_batch.step) != self.number:
            raise Left(FENCED_CODE, "the job moved to another epoch than this worker's loop")
        return loaded.data

    @property
    def is_over(self) -> bool:
        """True once its last step is applied, or training is complete."""
        applied = self._run._loop.applied
        if self._run.complete or applied is None:
            return self._run.complete
        grid, step = self._run._loop.grid, applied.lineage.step
        return grid.cursor(step).epoch == self.number and grid.ends_epoch(step)
