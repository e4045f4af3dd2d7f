"""The steps of a model module in PyTorch: train, evaluate and predict one batch, with parameters on servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pliant.ps.gradients import TableRun
from pliant.ps.model_batches import ROW, StillValues, model_table, plain_rows, require_score, require_still
from pliant.ps.tables.optimizers import RowOptimizer
from pliant.ps.tables.spec import Table
from pliant.torch.tables import ServerEmbedding, ServerVariables, push_gradients

Scored = Callable[[Any, Any], Any]


class TorchSteps:
    """A model whose parameters are in a table of their own. Call `bind` before the first batch.

    The table's name has a hash of the names and shapes of the trained parameters, so that a model never gets another
    one's rows. It also has the values of frozen parameters and of buffers: no server keeps them, so they must be equal
    on every worker, and later with the saved model.
    """

    def __init__(self, name: str, model: nn.Module, loss: Scored, metrics: Mapping[str, Scored]) -> None:
        self._name, self._model, self._loss, self._metrics = name, model, loss, metrics
        self._embeddings = [each for each in model.modules() if isinstance(each, ServerEmbedding)]
        self._table = _table_name(model)
        self._is_trained = any(each.requires_grad for each in model.parameters())
        self._run: TableRun
        self._dense: ServerVariables | None = None
        self._still: dict[str, Tensor] | None = {key: each.clone() for key, each in model.named_buffers()}

    def tables(self, optimizer: RowOptimizer) -> list[Table]:
        """Return the table of the model's own parameters, without rows if all are frozen; none if it has none."""
        return [Table(self._table, ROW, optimizer)] if self._table else []

    def bind(self, run: TableRun) -> None:
        """Keep the model's own parameters in the tables of this run."""
        self._run = run
        if self._is_trained:
            self._dense = ServerVariables(run, self._table, self._model, ROW)

    def train(self, features: Any, labels: Any, count: int) -> float:
        """Train on a batch, again if its gradients were too old. Return its mean loss."""
        while True:
            loss = self._mean_loss(features, labels, count)
            loss.backward()  # type: ignore[no-untyped-call]
            self._check_buffers()
            if push_gradients(self._run, *self._embeddings, *([self._dense] if self._dense else [])):
                return float(loss.detach())

    def evaluate(self, features: Any, labels: Any, count: int) -> dict[str, float]:
        """Return the totals of the loss and of each metric over the records of a batch."""
        with torch.no_grad():
            outputs = self._outputs(features, training=False)
            found = {"loss": self._loss(labels, outputs)}
            found |= {name: metric(labels, outputs) for name, metric in self._metrics.items()}
        return {name: float(self._mean(name, value, count)) * count for name, value in found.items()}

    def predict(self, features: Any, count: int) -> list[Any]:
        """Return one plain value for each record of a batch: a number, a list, or a dictionary of them."""
        with torch.no_grad():
            outputs = self._outputs(features, training=False)
        return plain_rows(self._name, outputs, count, Tensor, lambda each: each.cpu().tolist())

    def _outputs(self, features: Any, *, training: bool) -> Any:
        self._model.train(training)
        if self._dense is not None:
            self._dense.pull()
        return self._model(features)

    def _mean_loss(self, features: Any, labels: Any, count: int) -> Tensor:
        return self._mean("loss", self._loss(labels, self._outputs(features, training=True)), count)

    def _mean(self, name: str, value: Any, count: int) -> Tensor:
        found = value if isinstance(value, Tensor) else torch.as_tensor(value)
        require_score(self._name, name, tuple(found.shape), count)
        return found if found.dim() == 0 else found.to(torch.get_default_dtype()).mean()

    def _check_buffers(self) -> None:
        """Refuse a model whose forward pass changes buffers, at its first batch: servers do not keep them."""
        if self._still is None:
            return
        moved = [key for key, each in self._model.named_buffers() if not torch.equal(each, self._still[key])]
        require_still(self._name, moved, "buffers")
        self._still = None


def _table_name(model: nn.Module) -> str:
    still: dict[str, Tensor] = dict(model.named_buffers())
    still.update((key, each) for key, each in model.named_parameters() if not each.requires_grad)
    return model_table(
        ((key, tuple(each.shape)) for key, each in model.named_parameters() if each.requires_grad),
        (StillValues(key, tuple(each.shape), each.dtype, _content(each)) for key, each in still.items()),
    )


def _content(tensor: Tensor) -> Any:
    """Return the bytes of a tensor."""
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    return dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
