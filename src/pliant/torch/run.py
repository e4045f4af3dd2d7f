"""The run of a PyTorch training: the object that user code iterates over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from pliant.torch.averaging import ModelAveraging
from pliant.torch.data.devices import move_to_device
from pliant.torch.data.seeds import seed_for_reading
from pliant.torch.evaluation_mode import evaluation_mode, modules_of
from pliant.torch.state.optimizers import Optimizers
from pliant.train.data.loader import LoadedMicroBatch
from pliant.train.live.engine import RowGradients, Rows
from pliant.train.live.evaluate import EvaluationResults, Numbers, Totals
from pliant.train.live.loop import Loop
from pliant.train.live.run import LiveRun


class Run(LiveRun):
    """A training run on this member. Iterate over it, and call `step` once for each item.

    `rank`, `size` and `generation` describe the world of this member. They change between two items only.
    """

    def __init__(
        self,
        loop: Loop,
        model: nn.Module,
        optimizers: Optimizers,
        others: Iterable[object],
        results: EvaluationResults,
        send: Callable[[bytes], None],
        device: torch.device,
    ) -> None:
        super().__init__(loop, results, send)
        self._model = model
        self._evaluated = [model, *modules_of(others)]  # all modules that `evaluate` finds by itself
        self._optimizers = optimizers
        self._device = device

    def _began(self, loaded: LoadedMicroBatch | None) -> None:
        if loaded is None:
            self._optimizers.close()
        else:
            self._optimizers.begin_turn(self._loop.grid.turn(loaded.micro_batch.step))

    # ----------------------------------------------------------------------------------------------- the step

    def backward(self, loss: Tensor, weight: float | Tensor | None = None) -> None:
        """Call `loss.backward()`, with a `weight` if the loss is not a mean over samples: the number it is a mean over.

        With a scaler, scale the loss first.
        """
        if weight is not None:
            self._loop.weigh(float(weight))
        self._optimizers.scaled(loss).backward()  # type: ignore[no-untyped-call]  # torch's own

    def step(self) -> bool:
        """End an item. Return True if the step is applied, False if more items of the step follow."""
        if not self.reduce():
            return False
        self.apply()
        return True

    def reduce(self) -> bool:
        """Do the first half of `step`. If it returns True, `.grad` holds the global gradient: call `apply` next."""
        self._send_rows()
        if self._loop.finish_part() is None:
            return False
        self._optimizers.unscale()
        return True

    def average_models(self, alpha: float = 0.1) -> ModelAveraging:
        """Return this member's own model, for synchronous model averaging. Call it once, before the loop.

        `alpha` is the share by which each step draws a member's own model to the mean of all.
        """
        self._optimizers.require_plain_sgd()
        trained = {name: param for name, param in self._model.named_parameters() if param.requires_grad}
        own = self._begin_averaging(alpha, len(trained))
        return ModelAveraging(self._loop, self._model, trained, self._optimizers, own, self.reduce, self.apply)

    def inner_loop(self) -> AbstractContextManager[None]:
        """Step an optimizer whose parameters live in one item without a warning: `with run.inner_loop(): ...`.

        It must hold none of the model's parameters.
        """
        return self._optimizers.inner_loop()

    def pull(self, table: str, ids: npt.ArrayLike) -> Rows:
        """Return the rows of a table by their ids, as float32 values in the shape of the ids and one more dimension.

        They have all pushes of the steps before this one, and none of this step.
        """
        return self._pull_rows(table, ids)

    def push(self, gradients: RowGradients) -> bool:
        """Keep gradients of the item's mean loss by row, `{"ads": (ids, gradients)}`, until `step` sends them.

        The servers apply the step's mean gradient once. Gradients of equal ids are added up. Returns True.
        """
        self._push_rows(gradients)
        return True

    @property
    def turn(self) -> str | None:
        """The name of the optimizer that the current step belongs to, if optimizers take turns."""
        turns = self._optimizers.turns
        return turns[self._loop.grid.turn(max(self._loop.step, 1))] if turns else None

    def _bare(self, value: Any) -> Any:
        return value.detach() if isinstance(value, Tensor) else value

    # ----------------------------------------------------------------------------------------------- evaluation

    def evaluate(
        self,
        fn: Callable[[Any], Mapping[str, Any]],
        dataset: Any,
        *,
        batch_size: int,
        collate_fn: Any = None,
        modules: Sequence[nn.Module] = (),
    ) -> Totals:
        """Return the totals of `fn(batch)` over a data set. The members share the work: call it on all of them.

        `fn` returns a dictionary of sums, such as `{"loss": F.cross_entropy(..., reduction="sum"), "count": len(y)}`.
        It runs without gradients, with the model, the modules in `state=` and those in `modules` in evaluation mode.
        Call this after a step was applied.
        """
        collate = default_collate if collate_fn is None else collate_fn

        def read(samples: range, key: int) -> Any:
            seed_for_reading((key, key, key))  # `evaluation_mode` restores the generators
            return move_to_device(collate([dataset[at] for at in samples]), self._device)

        evaluating = evaluation_mode(*self._evaluated, *modules)
        totals = self._evaluate(fn, dataset, batch_size, read, evaluating)
        return {name: value if isinstance(value, float) else torch.from_numpy(value) for name, value in totals.items()}

    def _as_array(self, value: Any) -> Numbers:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        array: Numbers = tensor.to(torch.float64).numpy()
        return array
