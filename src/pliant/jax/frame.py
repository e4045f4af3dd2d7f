"""JAX's parameters and optimizer state as arrays, and the step that replaces them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pliant.core.model.fingerprint import Fingerprint
from pliant.errors import BadInput
from pliant.train.live.arrays.frame import Array, Gradients, aligned
from pliant.train.live.arrays.hashing import arrays_hash
from pliant.train.live.arrays.job import digest_of

Update = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Takes gradients, the optimizer's state and the parameters. Returns the new parameters and the new state."""


class JaxFrame:
    """Parameters, optimizer state and moving values as pytrees. Only `apply` and `install` replace the first two.

    The step is compiled once and gives its inputs' memory to its outputs. Its gradients are either the sums of all
    members, or, in a world of one, those of the only part: both have the same types, so it is compiled for both.
    """

    keeps_values = True  # an array of JAX never changes

    def __init__(self, params: Any, optimizer: Any, moves: Any) -> None:
        self._device = jax.local_devices()[0]
        self.params = self._owned(params)
        leaves, self._tree = jax.tree.flatten(self.params)
        if not leaves:
            raise BadInput("params has no array to train. Pass the pytree of the trained parameters.")
        if wrong := [leaf.dtype for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]:
            raise BadInput(
                f"params has an array of type {wrong[0]}. Train floating-point arrays, and keep others apart."
            )
        update, first = _update_of(optimizer, self.params)
        self.opt_state = self._owned(first)
        self.shown: Any = None  # parameters in place of `params` for user code
        self._update = update
        self.extra = None if moves is None else jax.tree.map(jnp.array, moves)
        self._opt_tree = jax.tree.structure(self.opt_state)
        self._moves_tree = jax.tree.structure(self.extra)
        self.shapes = [tuple(leaf.shape) for leaf in leaves]
        self.dtype = np.float64 if any(leaf.dtype == jnp.float64 for leaf in leaves) else np.float32
        kinds = [(leaf.shape, str(leaf.dtype)) for leaf in (*leaves, *jax.tree.leaves(self.opt_state))]
        count = sum(leaf.size for leaf in leaves)
        digest = digest_of((str(self._tree), str(self._opt_tree), str(self._moves_tree), kinds))
        self.about = (("framework", "jax"), ("model", f"{count:,} parameters ({digest})"))
        self.key = 0

        def step(params: Any, opt_state: Any, sums: list[Any], scale: Any) -> tuple[Any, Any]:
            given = [
                (each * scale).astype(leaf.dtype) for each, leaf in zip(sums, jax.tree.leaves(params), strict=True)
            ]
            return update(jax.tree.unflatten(self._tree, given), opt_state, params)

        self._step = jax.jit(step, donate_argnums=(0, 1))

    def _owned(self, tree: Any) -> Any:
        """Return copies, since the step gives their memory away, bound to this worker's device.

        JAX compiles a function once more for arrays that are bound to a device. So they always are.
        """
        return jax.tree.map(lambda leaf: jax.device_put(jnp.array(leaf), self._device), tree)

    def compile(self) -> None:
        """Compile the step, without a change of the state."""
        keep = self._owned((self.params, self.opt_state))
        zeros = [aligned(int(np.prod(shape, dtype=np.int64)), self.dtype).reshape(shape) for shape in self.shapes]
        self.apply(zeros, 0.0)
        self.params, self.opt_state = keep

    def _scale(self, scale: float) -> Any:
        return np.asarray(scale, self.dtype)

    def arrays(self, grads: Any) -> Gradients:
        leaves, tree = jax.tree.flatten(grads)
        if tree != self._tree:
            raise BadInput(
                f"The gradients given to run.step have the structure {tree}, and the parameters {self._tree}. Pass the "
                "gradient of a loss with respect to run.params."
            )
        return [np.asarray(leaf) for leaf in leaves]  # waits, and copies nothing on a CPU

    def apply(self, sums: Gradients, scale: float) -> None:
        self._apply([self._view(array, shape) for array, shape in zip(sums, self.shapes, strict=True)], scale)

    def _view(self, array: Array | None, shape: tuple[int, ...]) -> Any:
        if array is None:
            array = np.zeros(shape, self.dtype)
        elif array.flags.writeable and not array.ctypes.data % 64 and self._device.platform == "cpu":
            return jax.device_put(jax.dlpack.from_dlpack(array), self._device)  # shares the memory
        return jax.device_put(array, self._device)

    def apply_own(self, grads: Any, scale: float) -> None:
        self._apply([leaf.astype(self.dtype) for leaf in jax.tree.leaves(grads)], scale)

    def _apply(self, given: list[Any], scale: float) -> None:
        new = self._step(self.params, self.opt_state, given, self._scale(scale))
        self.params, self.opt_state = jax.block_until_ready(new)  # the sums' memory is used again after this

    def moves(self) -> list[Array]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.extra)]

    def set_moves(self, arrays: Sequence[Array]) -> None:
        self.extra = jax.tree.unflatten(self._moves_tree, [jnp.array(array) for array in arrays])

    def take_moves(self, moves: Any) -> None:
        """Take the moving values that a part's forward pass returned."""
        if (tree := jax.tree.structure(moves)) != self._moves_tree:
            raise BadInput(
                f"The moves given to run.step have the structure {tree}, and those given to job.train "
                f"{self._moves_tree}. Pass what the forward pass made of run.extra."
            )
        self.extra = moves

    def value(self) -> Any:
        trees = (self.params, self.opt_state)
        return {"framework": "jax", "arrays": [[np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in trees]}

    def install(self, value: Any) -> None:
        if not isinstance(value, dict) or value.get("framework") != "jax":
            raise BadInput("The received state is not one of pliant.jax. Start every member with the same script.")
        params, opt_state = (self._owned(arrays) for arrays in value["arrays"])
        self.params = jax.tree.unflatten(self._tree, params)
        self.opt_state = jax.tree.unflatten(self._opt_tree, opt_state)

    def trained(self) -> list[Array]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.params)]

    def show(self, arrays: Sequence[Array] | None) -> None:
        if arrays is None:
            self.shown = None
            return
        kinds = [leaf.dtype for leaf in jax.tree.leaves(self.params)]
        given = [np.asarray(array).astype(kind) for array, kind in zip(arrays, kinds, strict=True)]
        self.shown = self._owned(jax.tree.unflatten(self._tree, given))

    def loss_scale(self) -> float:
        return 1.0

    def require_plain_sgd(self) -> None:
        """Step the optimizer aside. An update function does not tell what it does."""
        if not _is_plain_sgd(self._update, self.params, self.opt_state):
            raise BadInput(
                "run.average_models needs an optimizer that subtracts the gradient times a rate, and this one does "
                "more. Pass optax.sgd(rate) without momentum, weight decay and clipping."
            )
        self._rates = jax.jit(partial(_rates, self._update))
        self.rates()

    def rates(self) -> list[float]:
        """Return what a step subtracts for a gradient of ones. A schedule in the optimizer's state counts."""
        return [float(rate) for rate in self._rates(self.params, self.opt_state)]

    def seed(self, key: int) -> None:
        self.key = key & 0x7FFFFFFF

    def hyperparameters(self) -> dict[str, float]:
        """Return nothing: a rate is part of the update function, and one in its state is compared with the state."""
        return {}

    def set_hyperparameter(self, name: str, value: float) -> None:
        raise AssertionError(f"{name}={value}: pliant.jax has no hyperparameters apart from the state")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        key = self.key
        try:
            yield
        finally:
            self.key = key

    def bits(self) -> Fingerprint:
        device = jax.devices()[0]
        return (
            ("jax", jax.__version__),
            ("device", f"{device.platform} ({device.device_kind})"),
            ("threads", str(len(os.sched_getaffinity(0)))),
            ("fingerprint", _kernel_hash()),
        )


def _update_of(optimizer: Any, params: Any) -> tuple[Update, Any]:
    """Return the update function and the first state of an optax optimizer, or of a pair of such functions."""
    init, update = getattr(optimizer, "init", None), getattr(optimizer, "update", None)
    if init is not None and update is not None:

        def step(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
            updates, state = update(grads, state, params)
            return jax.tree.map(lambda leaf, change: leaf + change.astype(leaf.dtype), params, updates), state

        return step, init(params)
    if isinstance(optimizer, tuple) and len(optimizer) == 2 and callable(optimizer[0]):
        return optimizer
    raise BadInput(
        "optimizer must be one of optax, or a pair (update, state) with update(grads, state, params) that returns the "
        f"new parameters and the new state, got {optimizer!r}."
    )


def _rates(update: Update, params: Any, opt_state: Any) -> list[Any]:
    """Return what a step subtracts from each parameter array at zero, for a gradient of ones."""
    zeros, ones = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.ones_like, params)
    return [-leaf.reshape(-1)[0] for leaf in jax.tree.leaves(update(ones, opt_state, zeros)[0])]


def _is_plain_sgd(update: Update, params: Any, opt_state: Any) -> bool:
    """Return whether a step only subtracts the gradient times a rate, whatever the parameters and the step before.

    Gradients are large, so that rounding hides nothing and clipping shows.
    """
    zeros = jax.tree.map(jnp.zeros_like, params)
    away = jax.tree.map(lambda leaf: leaf + 1, params)  # weights that begin at zero would not decay
    grads = jax.tree.map(lambda leaf: ((jnp.cos(jnp.arange(leaf.size)) + 2) * 1e6).reshape(leaf.shape), params)
    grads = jax.tree.map(lambda grad, leaf: grad.astype(leaf.dtype), grads, params)
    rates = _rates(update, params, opt_state)
    moved, after = update(grads, opt_state, zeros)
    for start, factor in ((zeros, 1.0), (away, 1.0), (zeros, 4.0)):
        found = update(jax.tree.map(lambda grad, by=factor: grad * by, grads), opt_state, start)[0]
        for now, before, grad, rate in zip(*map(jax.tree.leaves, (found, start, grads)), rates, strict=True):
            wanted = np.asarray(before, np.float64) - float(rate) * factor * np.asarray(grad, np.float64)
            tolerance = 8 * float(jnp.finfo(now.dtype).eps) * (np.abs(wanted).max(initial=0.0) + 2)
            if not np.allclose(np.asarray(now, np.float64), wanted, rtol=0, atol=tolerance):
                return False
    still = [update(zeros, state, away)[0] for state in (opt_state, after)]
    same = [jax.tree.map(lambda now, before: bool((now == before).all()), each, away) for each in still]
    return all(jax.tree.leaves(same)) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(moved))


def _kernel_hash() -> str:
    """Return a hash of the results of some kernels, forward and backward."""
    chance = np.random.Generator(np.random.PCG64(5))
    x, w = (jnp.asarray(chance.normal(size=shape), jnp.float32) for shape in ((64, 65), (65, 96)))

    def total(x: Any, w: Any) -> Any:
        hidden = jax.nn.gelu(x @ w)
        attended = jax.nn.softmax(hidden @ hidden.T / 8.0) @ hidden
        return jnp.tanh(attended).sum() + jax.nn.logsumexp(hidden, 0).std()

    value, grads = jax.jit(jax.value_and_grad(total, (0, 1)))(x, w)
    return f"{arrays_hash([np.asarray(each) for each in (value, *grads)]):016x}"
