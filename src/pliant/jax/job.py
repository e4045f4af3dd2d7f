"""A JAX worker's membership in a job, from `pliant.jax.join()` to the end of the `with` block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax

from pliant.errors import BadInput
from pliant.jax.frame import JaxFrame
from pliant.jax.run import JaxRun
from pliant.train.data.loader import OrderOfEpoch
from pliant.train.live.arrays.job import ArrayJob, TrainArguments, as_dataset
from pliant.train.live.arrays.state import StatefulObject
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.job import STALL_S, prepare_join


def join() -> JaxJob:
    """Return this worker's job, for a `with` statement. Call it once.

    The environment names the coordinator; `pliant run` sets it. Without a coordinator this worker trains alone.
    """
    return JaxJob(*prepare_join(_refuse_own_group))


def _refuse_own_group() -> None:
    if jax.distributed.is_initialized():
        raise BadInput(
            "jax.distributed is initialized. It ends the process when another one leaves, and pliant.join() connects "
            "the workers itself. Remove jax.distributed.initialize, or run the script without pliant.join()."
        )


class JaxJob(ArrayJob):
    """This worker's membership in a job. It ends with the `with` block."""

    def train(
        self,
        params: Any,
        optimizer: Any,
        dataset: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        max_steps: int | None = None,
        seed: int = 0,
        slots: int | None = None,
        part: int | None = None,
        compute: Callable[[Any, Any, Any], Any] | None = None,
        moves: Any = None,
        order: str | OrderOfEpoch = "shuffled",
        samples_per_epoch: int | None = None,
        state: Mapping[str, StatefulObject] | None = None,
        clip_norm: float | None = None,
        nonfinite: Literal["raise", "skip", "ignore"] = "raise",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        stall_s: float = STALL_S,
        deterministic: bool = False,
        other_bits: bool = False,
        verify: int = 0,
        verify_slots: float = 0.0,
    ) -> JaxRun:
        """Join the job and return its run. Raises if a setting differs from that of the other members.

        `optimizer` is one of optax, or a pair of an update function and its first state. `dataset` is a tuple of
        arrays, or anything with `__len__` and `__getitem__`. `batch_size` is global, whatever the number of members.

        `part` is the largest number of samples of an item. Items have few sizes, whatever the world. With
        `compute(params, batch, key)` each of them is compiled before the worker joins, and a change of the membership
        compiles nothing. `moves` is a pytree of values that the forward pass changes.
        """
        _refuse_own_group()
        self._open_once()
        frame, tools = JaxFrame(params, optimizer, moves), ArrayTools()
        frame.compile()

        def warm_up(batch: Any) -> None:
            assert compute is not None
            jax.block_until_ready(compute(frame.params, batch, jax.random.key(0)))

        given = TrainArguments(
            batch_size=batch_size,
            epochs=epochs,
            max_steps=max_steps,
            seed=seed,
            slots=slots,
            part=part,
            order=order,
            samples_per_epoch=samples_per_epoch,
            state=state,
            clip_norm=clip_norm,
            nonfinite=nonfinite,
            checkpoint_dir=checkpoint_dir,
            collate_fn=collate_fn,
            stall_s=stall_s,
            deterministic=deterministic,
            other_bits=other_bits,
            verify=verify,
            verify_slots=verify_slots,
        )
        loop, engine = self._begin(frame, as_dataset(dataset), tools, given, warm_up if compute is not None else None)
        return self._opened(JaxRun(loop, engine, tools, *self._evaluation, frame))
