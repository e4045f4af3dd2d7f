"""A TensorFlow worker's membership in a job, from `pliant.tensorflow.join()` to the end of the `with` block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from pliant.errors import BadInput
from pliant.tensorflow.frame import TensorflowFrame
from pliant.tensorflow.run import TensorflowRun
from pliant.train.data.loader import OrderOfEpoch
from pliant.train.live.arrays.job import ArrayJob, TrainArguments, as_dataset
from pliant.train.live.arrays.state import StatefulObject
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.job import STALL_S, prepare_join


def join() -> TensorflowJob:
    """Return this worker's job, for a `with` statement. Call it once.

    The environment names the coordinator; `pliant run` sets it. Without a coordinator this worker trains alone.
    """
    return TensorflowJob(*prepare_join(_refuse_own_group))


def _refuse_own_group() -> None:
    if tf.distribute.has_strategy():
        raise BadInput(
            "A tf.distribute strategy is active. pliant.join() connects the workers itself, and a strategy cannot go "
            "on without a worker. Remove the strategy, or run the script without pliant.join()."
        )


class TensorflowJob(ArrayJob):
    """This worker's membership in a job. It ends with the `with` block."""

    def train(
        self,
        variables: Sequence[Any],
        optimizer: Any,
        dataset: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        max_steps: int | None = None,
        seed: int = 0,
        slots: int | None = None,
        part: int | None = None,
        compute: Callable[[Any], Any] | None = None,
        moves: Sequence[Any] = (),
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
    ) -> TensorflowRun:
        """Join the job and return its run. Raises if a setting differs from that of the other members.

        `optimizer` is one of Keras. `dataset` is a tuple of arrays, or anything with `__len__` and `__getitem__`.
        `batch_size` is global, whatever the number of members. `moves` are variables that the forward pass changes: for
        a Keras model `model.non_trainable_variables`, with BatchNorm's statistics and the seeds of dropout.

        `part` is the largest number of samples of an item. Items have few sizes, whatever the world. With
        `compute(batch)` each of them is traced before the worker joins.
        """
        _refuse_own_group()
        self._open_once()
        frame, tools = TensorflowFrame(variables, optimizer, moves), ArrayTools()
        frame.compile()

        def warm_up(batch: Any) -> None:
            assert compute is not None
            with frame.evaluating():
                compute(batch)

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
        return self._opened(TensorflowRun(loop, engine, tools, *self._evaluation, frame))
