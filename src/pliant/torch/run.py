"""What user code holds in its hands while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from pliant.core.job.launches import FENCED_CODE
from pliant.errors import BadInput
from pliant.torch.errors import Left
from pliant.torch.evaluate import Evaluation, EvaluationId, EvaluationResults, Totals, compute_batch, evaluation_mode
from pliant.torch.loop import Loop
from pliant.torch.state.optimizers import Optimizers
from pliant.train.data.loader import LoadedMicroBatch


class Run:
    """A training run on this member: iterate over it, and call `step` once in every turn of the loop.

    `rank`, `size` and `generation` are those of the world this member is in; they change between two turns only.
    """

    def __init__(
        self,
        loop: Loop,
        model: nn.Module,
        optimizers: Optimizers,
        board: EvaluationResults,
        tell: Callable[[bytes], None],
        device: torch.device,
    ) -> None:
        self._loop = loop
        self._model = model
        self._optimizers = optimizers
        self._board = board
        self._tell = tell
        self._device = device
        self._peeked: LoadedMicroBatch | None = None
        self._turn = 0  # evaluations since the last boundary
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
        """The nested form: `for epoch in run.epochs(): for x, y in epoch: ...`.

        What comes after the inner loop belongs to the epoch's last step.
        """
        while (loaded := self._advance()) is not None:
            self._peeked = loaded
            epoch = Epoch(self, self.epoch)
            yield epoch
            if not epoch.is_over:
                raise BadInput("The loop over an epoch was left before its end: go through all of it.")

    def _advance(self) -> LoadedMicroBatch | None:
        if self.complete:
            return None
        loaded = self._loop.next()
        machine = self._loop.session.machine
        self.rank, self.generation = machine.rank, machine.generation
        self.size = len(machine.world.members) if machine.world else 1
        self._turn = 0
        self.complete = loaded is None
        return loaded

    # ----------------------------------------------------------------------------------------------- the step

    def backward(self, loss: Tensor, weight: float | Tensor | None = None) -> None:
        """`loss.backward()` for a loss that is a mean over something else than samples: `weight` says over how many.

        With a scaler it scales the loss as well.
        """
        if weight is not None:
            self._loop.weigh(float(weight))
        self._optimizers.scaled(loss).backward()  # type: ignore[no-untyped-call]  # torch's own

    def step(self) -> bool:
        """Call once in every turn. True once the step is applied, on this member too; False: more parts are to come."""
        if not self.reduce():
            return False
        self.apply()
        return True

    def reduce(self) -> bool:
        """The first half of `step`. True when `.grad` holds the global gradient; then look at it, and `apply`."""
        if self._loop.finish_part() is None:
            return False
        self._optimizers.unscale()
        return True

    def apply(self) -> None:
        """The second half of `step`: clip, step the optimizers, and forget the gradients."""
        self._loop.apply()

    def log(self, **values: float | Tensor) -> None:
        """Values of this part; once the step is applied, `metrics` has their means over all its parts."""
        if self._loop.part is None:
            raise BadInput("run.log belongs before run.step(), to the item it is about: call it there.")
        bare = {name: value.detach() if isinstance(value, Tensor) else value for name, value in values.items()}
        self._loop.logged.log(bare)

    @property
    def metrics(self) -> Mapping[str, float]:
        """What was logged in the step applied last, the same on every member."""
        return self._loop.metrics

    # ---------------------------------------------------------------------------------------------- where we are

    @property
    def step_number(self) -> int:
        """The step under way, counted from 1."""
        return self._loop.step

    @property
    def total_steps(self) -> int:
        return self._loop.grid.total_steps

    @property
    def epoch(self) -> int:
        """The epoch of the step under way, counted from 0."""
        return self._epoch_of(self._loop.step)

    def _epoch_of(self, step: int) -> int:
        return self._loop.grid.cursor(step).epoch if step else 0

    # ----------------------------------------------------------------------------------------------- evaluation

    def evaluate(
        self, fn: Callable[[Any], Mapping[str, Any]], dataset: Any, *, batch_size: int, collate_fn: Any = None
    ) -> Totals:
        """Totals of `fn(batch)` over a data set, shared by all members: call it on every one, after a step.

        `fn` gives a dictionary of sums, such as `{"loss": F.cross_entropy(..., reduction="sum"), "count": len(y)}`.
        The model is in evaluation mode meanwhile, and no gradients are kept.
        """
        if batch_size < 1 or not hasattr(dataset, "__len__") or not len(dataset):
            raise BadInput("run.evaluate needs data with a length, and a batch_size of at least 1.")
        if not self.complete and (self._loop.part is not None or self._loop.applied is None):
            raise BadInput("run.evaluate belongs after run.step(), once it was True: before it members may differ.")
        session = self._loop.session
        self._turn += 1
        key = EvaluationId(session.machine.lineage, self._turn, len(dataset), batch_size)
        collate = default_collate if collate_fn is None else collate_fn
        with evaluation_mode(self._model):
            return Evaluation(
                session,
                self._board,
                self._tell,
                key,
                lambda number: compute_batch(key, number, fn, dataset, collate, self._device),
            ).run()


class Epoch:
    """One pass over the data, for the nested form."""

    def __init__(self, run: Run, number: int) -> None:
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
            raise Left(FENCED_CODE, "the job went back, or on, to another epoch than this worker's loop is in")
        return loaded.data

    @property
    def is_over(self) -> bool:
        """Whether its last step is applied, or nothing is left to do."""
        applied = self._run._loop.applied
        last = (self.number + 1) * self._run._loop.grid.steps_per_epoch
        return self._run.complete or (applied is not None and applied.lineage.step == last)
