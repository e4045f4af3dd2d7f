"""A model over batches of records: the checks of its outputs and scores, and the name of its table.

The adapters of frameworks share them. Nothing here computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from pliant.errors import BadInput

ROW = 64  # numbers in a row of the table of a model's own parameters

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StillValues:
    """An array of a model that training does not change, and that no server keeps."""

    name: str
    shape: Shape
    kind: object  # of its numbers; shown by repr
    content: Any  # bytes, or a buffer of them


def model_table(trained: Iterable[tuple[str, Shape]], still: Iterable[StillValues]) -> str:
    """Return the name of the table of a model; empty if the model has nothing.

    The name has a hash of the names and shapes of the trained parameters, and of the values of all others.
    """
    shapes, fixed = list(trained), sorted(still, key=lambda each: each.name)
    digest = hashlib.sha256(repr(shapes).encode())
    for each in fixed:
        digest.update(repr((each.name, each.shape, each.kind)).encode())
        digest.update(each.content)
    return f"model-{digest.hexdigest()[:8]}" if shapes or fixed else ""


def require_score(module: str, score: str, shape: Shape, count: int) -> None:
    """Refuse a loss or a metric that is neither a value of each record nor one value. Raises BadInput."""
    if prod(shape) not in (1, count):
        raise BadInput(
            f"{module}: {score} returned a tensor of shape {shape} for {count} records. Return a value of each record, "
            "or their mean."
        )


def plain_rows(
    module: str, outputs: Any, count: int, tensor: type[Any], plain: Callable[[Any], list[Any]]
) -> list[Any]:
    """Return one plain value for each record: a number, a list, or a dictionary of them. Raises BadInput."""
    if isinstance(outputs, Mapping):
        columns = {str(key): _rows(module, each, count, tensor, plain) for key, each in outputs.items()}
        return [{key: rows[at] for key, rows in columns.items()} for at in range(count)]
    return _rows(module, outputs, count, tensor, plain)


def _rows(module: str, outputs: Any, count: int, tensor: type[Any], plain: Callable[[Any], list[Any]]) -> list[Any]:
    shape = tuple(outputs.shape) if isinstance(outputs, tensor) else None
    if shape is None or not shape or shape[0] != count:
        found = type(outputs).__name__ if shape is None else f"shape {shape}"
        raise BadInput(
            f"{module}: the model's output for {count} records is of {found}. Return a tensor, or a dictionary of "
            "tensors, with one row for each record."
        )
    return plain(outputs)


def require_still(module: str, moved: list[str], kind: str) -> None:
    """Refuse a model whose training changes what no server keeps. Raises BadInput."""
    if moved:
        raise BadInput(
            f"{module}: training changes the {kind} {', '.join(moved)}, which parameter servers do not keep. "
            "Use a layer without running statistics, such as LayerNorm, or train live with pliant.join()."
        )
