"""JAX steps whose parameters are on parameter servers.

def loss_fn(params, rows, labels): ...

step = JaxTableStep(run, loss_fn, ServerParams(run, "dense", params, 64))
for ids, labels in run:
    loss = step({"ads": ids}, labels)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from pliant.ps.gradients import DenseRows, TableGradients, TableRun

__all__ = ["JaxTableStep", "ServerParams"]


class ServerParams:
    """A tree of parameters in a table, as rows of `dim` numbers each. The first worker's initial values count."""

    def __init__(self, run: TableRun, table: str, params: Any, dim: int) -> None:
        leaves, self._tree = jax.tree.flatten(params)
        self._run = run
        self._types = [np.asarray(leaf).dtype for leaf in leaves]
        self._rows = DenseRows(table, [np.shape(leaf) for leaf in leaves], dim)
        run.create(table, self._rows.ids, self._rows.pack(leaves))

    def pull(self) -> Any:
        """Return the tree with the values on the servers."""
        found = self._rows.unpack(self._run.pull(self._rows.table, self._rows.ids))
        return jax.tree.unflatten(
            self._tree, [each.astype(kind) for each, kind in zip(found, self._types, strict=True)]
        )

    def add_gradients(self, found: TableGradients, gradients: Any) -> None:
        """Add the gradients of the tree to those that are pushed next."""
        found.add(self._rows.table, self._rows.ids, self._rows.pack(jax.tree.leaves(gradients)))


class JaxTableStep:
    """A training step: pull rows, compute the loss and its gradients in one compiled function, and push them.

    `loss_fn(params, rows, *batch)` returns the loss, or the loss and something more with `has_aux`. `rows` has an
    array for each table, in the shape of its ids and one more dimension. These shapes do not depend on how many ids
    differ, so batches of one size are compiled once. `params` is None without `dense`.
    """

    def __init__(
        self, run: TableRun, loss_fn: Callable[..., Any], dense: ServerParams | None = None, *, has_aux: bool = False
    ) -> None:
        self._run, self._dense = run, dense
        self._loss = jax.jit(loss_fn)
        self._gradients = jax.jit(jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=has_aux))

    def __call__(self, ids: Mapping[str, npt.ArrayLike], *batch: Any) -> Any:
        """Train on a batch, again if its gradients were too old. Return what `loss_fn` returned."""
        asked = {table: np.asarray(each) for table, each in ids.items()}
        while True:
            value, (params, rows) = self._gradients(*self._pulled(asked), *batch)
            found = TableGradients()
            for table, each in asked.items():
                found.add(table, each, np.asarray(rows[table]))
            if self._dense is not None:
                self._dense.add_gradients(found, params)
            if found.push(self._run):
                return value

    def evaluate(self, ids: Mapping[str, npt.ArrayLike], *batch: Any) -> Any:
        """Return what `loss_fn` returns for a batch, and train nothing."""
        return self._loss(*self._pulled({table: np.asarray(each) for table, each in ids.items()}), *batch)

    def _pulled(self, ids: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        rows = {table: self._run.pull(table, each) for table, each in ids.items()}
        return (None if self._dense is None else self._dense.pull()), rows
