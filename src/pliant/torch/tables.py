"""PyTorch modules whose parameters are on parameter servers.

embedding = ServerEmbedding(run, "ads")
dense = ServerVariables(run, "dense", model)
for batch in run:
    dense.pull()
    loss(model(embedding(ids)), labels).backward()
    push_gradients(run, embedding, dense)
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from pliant.ps.gradients import Floats, Ids, RowRun, TableGradients, TableRun

__all__ = ["ServerEmbedding", "ServerVariables", "push_gradients"]


class TableModule(Protocol):
    """A module that has gradients for a table."""

    table: str

    def take_gradients(self) -> tuple[Ids, Floats] | None:
        """Return the gradients since the last call, by id; None if there are none."""


class ServerEmbedding(nn.Module):
    """An embedding whose rows are in a table. It has no parameters of its own.

    Each forward pass pulls the rows that it needs. Their gradients wait for `push_gradients`.
    """

    def __init__(self, run: RowRun, table: str) -> None:
        super().__init__()
        self.table = table
        self._run = run
        self._used: list[tuple[Ids, Tensor]] = []

    def forward(self, ids: Tensor) -> Tensor:
        unique, inverse = torch.unique(ids, return_inverse=True)
        wanted = unique.cpu().numpy()
        rows = torch.from_numpy(self._run.pull(self.table, wanted)).to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._used.append((wanted, rows))
        return nn.functional.embedding(inverse, rows)

    def take_gradients(self) -> tuple[Ids, Floats] | None:
        used, self._used = self._used, []
        found = [(ids, rows.grad.cpu().numpy()) for ids, rows in used if rows.grad is not None]
        if not found:
            return None
        return np.concatenate([ids for ids, _ in found]), np.concatenate([grad for _, grad in found])


class ServerVariables:
    """The parameters of a module, kept in a table as rows of `dim` numbers each.

    The first worker's initial values count. Call `pull` before each batch.
    """

    def __init__(self, run: TableRun, table: str, module: nn.Module, dim: int) -> None:
        self.table = table
        self._run = run
        self._parameters = [each for each in module.parameters() if each.requires_grad]
        self._dim = dim
        self._size = sum(each.numel() for each in self._parameters)
        self._ids: Ids = np.arange(-(-self._size // dim), dtype=np.int64)
        run.create(table, self._ids, self._rows([each.detach() for each in self._parameters]))

    def pull(self) -> None:
        """Set the parameters to their values on the servers."""
        flat = torch.from_numpy(self._run.pull(self.table, self._ids).reshape(-1)[: self._size])
        at = 0
        with torch.no_grad():
            for each in self._parameters:
                each.copy_(flat[at : at + each.numel()].view_as(each))
                at += each.numel()

    def take_gradients(self) -> tuple[Ids, Floats] | None:
        if all(each.grad is None for each in self._parameters):
            return None
        rows = self._rows([torch.zeros_like(each) if each.grad is None else each.grad for each in self._parameters])
        for each in self._parameters:
            each.grad = None
        return self._ids, rows

    def _rows(self, tensors: list[Any]) -> Floats:
        flat = np.zeros(len(self._ids) * self._dim, np.float32)
        flat[: self._size] = torch.cat([each.reshape(-1).cpu() for each in tensors]).numpy()
        return flat.reshape(-1, self._dim)


def push_gradients(run: RowRun, *modules: TableModule) -> bool:
    """Push the gradients of all modules together. Return False if they were too old: compute the batch again."""
    found = TableGradients()
    for module in modules:
        if (gradients := module.take_gradients()) is not None:
            found.add(module.table, *gradients)
    return found.push(run)
