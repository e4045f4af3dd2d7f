"""The interface that a framework implements for live training over arrays in host memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pliant.core.model.fingerprint import Fingerprint

Array: TypeAlias = npt.NDArray[Any]
Gradients: TypeAlias = Sequence[Array | None]


class Frame(Protocol):
    """A model and its optimizer, which only `apply` and `install` change.

    The training thread makes all calls but `value`, which any thread may call between two changes.
    """

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of the trained arrays, in a fixed order."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type of the sums: float32, or float64 for a model in double precision."""

    @property
    def about(self) -> tuple[tuple[str, str], ...]:
        """Name and value of everything that all members must share."""

    @property
    def keeps_values(self) -> bool:
        """True if the arrays of `value` never change, though the state moves on."""

    def arrays(self, grads: Any) -> Gradients:
        """Return a part's gradients in that order, without copying where possible. Waits until they are computed."""

    def apply(self, sums: Gradients, scale: float) -> None:
        """Step the optimizer with the sums times `scale`. When it returns, nothing reads the sums any more."""

    def apply_own(self, grads: Any, scale: float) -> None:
        """Step the optimizer with the gradients of one part, which did not leave the framework."""

    def moves(self) -> list[Array]:
        """Return the values that a forward pass changes, such as BatchNorm's statistics."""

    def set_moves(self, arrays: Sequence[Array]) -> None: ...

    def value(self) -> Any:
        """Return the rest of the state: a tree of plain values and arrays, in live memory."""

    def install(self, value: Any) -> None:
        """Replace the state by one that `value` returned on another member. Copies what it keeps."""

    def seed(self, key: int) -> None:
        """Seed the generators that the forward pass draws from."""

    def trained(self) -> list[Array]:
        """Return the trained arrays."""

    def show(self, arrays: Sequence[Array] | None) -> None:
        """Let user code compute with these trained arrays until the next call with None. `value` stays as it is."""

    def loss_scale(self) -> float:
        """Return the factor by which the optimizer scales the loss, and so each gradient before `apply`; mostly 1."""

    def require_plain_sgd(self) -> None:
        """Raise BadInput unless `apply` subtracts the mean gradient times a rate, for model averaging."""

    def rates(self) -> Sequence[float]:
        """Return the rate of each trained array in the next `apply`, if the optimizer is plain SGD."""

    def hyperparameters(self) -> Mapping[str, float]:
        """Return the numbers of the optimizer that are part of the state, such as the learning rate."""

    def set_hyperparameter(self, name: str, value: float) -> None: ...

    def evaluating(self) -> AbstractContextManager[None]:
        """Leave no trace of what runs within the block."""

    def bits(self) -> Fingerprint:
        """Return what the bits of a computation depend on here: versions, the device, a hash of some results."""


def aligned(count: int, dtype: npt.DTypeLike) -> Array:
    """Return zeroed memory that begins at a multiple of 64 bytes. TensorFlow ends the process for other memory."""
    kind = np.dtype(dtype)
    raw = np.zeros(count * kind.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + count * kind.itemsize].view(kind)


class Layout:
    """The places of the trained arrays in one flat array. Each begins at a multiple of 64 bytes."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.shapes = [tuple(shape) for shape in shapes]
        step = 64 // self.dtype.itemsize
        self._places: list[tuple[slice, tuple[int, ...]]] = []
        self.numel = 0
        for shape in self.shapes:
            size = math.prod(shape)
            self._places.append((slice(self.numel, self.numel + size), shape))
            self.numel += -(-size // step) * step

    def views(self, flat: Array) -> list[Array]:
        """Return each trained array's view of a flat array."""
        return [flat[place].reshape(shape) for place, shape in self._places]


def multiply_into(grad: Array, factor: float, out: Array) -> None:
    """Write a weighted gradient to `out`. Half precision is widened first, which a weighted sum would overflow."""
    if grad.dtype == out.dtype:
        np.multiply(grad, out.dtype.type(factor), out=out)
    else:
        out[...] = grad
        out *= out.dtype.type(factor)


def sum_of_squares(arrays: Gradients, dtype: npt.DTypeLike) -> float:
    """Return the square of the norm of arrays together, each summed in `dtype`."""
    flat = [np.asarray(each, dtype).reshape(-1) for each in arrays if each is not None]
    return math.fsum(float(np.dot(each, each)) for each in flat)
