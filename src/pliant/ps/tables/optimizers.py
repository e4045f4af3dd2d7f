"""Optimizers of rows. Each updates a block of rows in place, with the row's own slots beside its values.

A block has the values in its first `dim` columns, then the slots. Only rows that a push names are updated, so the
momentum of a row rests while no batch uses it. Adam counts the updates of each row for its bias correction.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pliant.errors import BadInput

FloatRows = npt.NDArray[np.float32]


class _RowOptimizer(msgspec.Struct, frozen=True, tag=True):
    """Settings of one optimizer; `rate` is the learning rate."""

    rate: float

    def columns(self, dim: int) -> int:
        """Return the number of columns of the slots of a row with `dim` values."""
        raise NotImplementedError

    def update(self, block: FloatRows, dim: int, gradients: FloatRows, scale: FloatRows) -> None:
        """Update the rows of a block. `scale` has a factor of the rate for each row, in one column."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise BadInput for settings that cannot train."""
        name = type(self).__name__
        for field in msgspec.structs.fields(self):
            value: Any = getattr(self, field.name)
            if isinstance(value, float | int) and not 0 <= value < float("inf"):
                raise BadInput(f"{name}: {field.name} must be 0 or more, got {value}.")
        if not self.rate > 0:
            raise BadInput(f"{name}: rate must be above 0, got {self.rate}.")


class SGD(_RowOptimizer, frozen=True):
    def columns(self, dim: int) -> int:  # noqa: ARG002 - it has no slots
        return 0

    def update(self, block: FloatRows, dim: int, gradients: FloatRows, scale: FloatRows) -> None:
        block[:, :dim] -= self._rate(scale) * gradients

    def _rate(self, scale: FloatRows) -> FloatRows:
        return np.float32(self.rate) * scale


class Momentum(_RowOptimizer, frozen=True):
    momentum: float = 0.9

    def columns(self, dim: int) -> int:
        return dim

    def update(self, block: FloatRows, dim: int, gradients: FloatRows, scale: FloatRows) -> None:
        speed = block[:, dim:]
        speed *= np.float32(self.momentum)
        speed += gradients
        block[:, :dim] -= np.float32(self.rate) * scale * speed


class Adagrad(_RowOptimizer, frozen=True):
    initial: float = 0.0  # of the sum of squares
    eps: float = 1e-10

    def columns(self, dim: int) -> int:
        return dim

    def update(self, block: FloatRows, dim: int, gradients: FloatRows, scale: FloatRows) -> None:
        squares = block[:, dim:]
        squares += gradients * gradients
        root = np.sqrt(squares + np.float32(self.initial)) + np.float32(self.eps)
        block[:, :dim] -= np.float32(self.rate) * scale * gradients / root


class Adam(_RowOptimizer, frozen=True):
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def columns(self, dim: int) -> int:
        return 2 * dim + 1

    def update(self, block: FloatRows, dim: int, gradients: FloatRows, scale: FloatRows) -> None:
        values, mean, square, count = (
            block[:, :dim],
            block[:, dim : 2 * dim],
            block[:, 2 * dim : 3 * dim],
            block[:, 3 * dim :],
        )
        count += 1
        mean += np.float32(1 - self.beta1) * (gradients - mean)
        square += np.float32(1 - self.beta2) * (gradients * gradients - square)
        times = count.astype(np.float64)
        step = (self.rate / (1 - self.beta1**times)).astype(np.float32) * scale
        root = np.sqrt(square) / np.sqrt(1 - self.beta2**times).astype(np.float32) + np.float32(self.eps)
        values -= step * mean / root


class Ftrl(_RowOptimizer, frozen=True):
    """Follow the regularized leader, for sparse linear models: `l1` makes unimportant weights exactly 0."""

    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0

    def columns(self, dim: int) -> int:
        return 2 * dim

    def update(self, block: FloatRows, dim: int, gradients: FloatRows, scale: FloatRows) -> None:
        values, linear, squares = block[:, :dim], block[:, dim : 2 * dim], block[:, 2 * dim :]
        rate = np.float32(self.rate) * scale
        fresh = (squares == 0) & (linear == 0)
        begun = np.where(fresh, -values * (np.float32(self.beta) / rate + np.float32(self.l2)), linear)
        after = squares + gradients * gradients
        linear[:] = begun + gradients - (np.sqrt(after) - np.sqrt(squares)) / rate * values
        squares[:] = after
        shrunk = np.sign(linear) * np.float32(self.l1) - linear
        slope = (np.float32(self.beta) + np.sqrt(after)) / rate + np.float32(self.l2)
        values[:] = np.where(np.abs(linear) > self.l1, shrunk / slope, np.float32(0))


RowOptimizer = SGD | Momentum | Adagrad | Adam | Ftrl
