"""The membership of a worker whose framework provides a `Frame`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pliant.core.data.grid import Grid
from pliant.core.messages import Join
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.train.data.batch_size import batch_size_of
from pliant.train.data.loader import OrderOfEpoch, check_micro_batch
from pliant.train.data.microbatches import LadderBatcher
from pliant.train.group.contract import GroupWiring
from pliant.train.group.wiring import TcpWiring
from pliant.train.live import arguments
from pliant.train.live.arrays.engine import ArrayEngine
from pliant.train.live.arrays.frame import Frame
from pliant.train.live.arrays.state import StatefulObject
from pliant.train.live.data.source import open_source
from pliant.train.live.data.tools import Arrays, ArrayTools
from pliant.train.live.job import LiveJob
from pliant.train.live.loop import Loop
from pliant.train.live.options import VerifyOptions
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.noise import noise_scale_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArguments:
    """The arguments of `job.train` that every framework over arrays has, as the user gave them."""

    batch_size: int
    epochs: int
    max_steps: int | None
    seed: int
    slots: int | None
    part: int | None
    order: str | OrderOfEpoch
    samples_per_epoch: int | None
    state: Mapping[str, StatefulObject] | None
    clip_norm: float | None
    nonfinite: str
    checkpoint_dir: str | os.PathLike[str] | None
    collate_fn: Callable[[list[Any]], Any] | None
    stall_s: float
    deterministic: bool
    other_bits: bool
    verify: int
    verify_slots: float


class ArrayJob(LiveJob):
    """This worker's membership in a job. It ends with the `with` block."""

    def total_steps(self, samples: Any, *, batch_size: int, epochs: int = 1) -> int:
        """Return the number of steps that `train` takes with these arguments, for a schedule that is built before.

        `samples` is the data set, or the number of samples of an epoch.
        """
        samples, batch_size, epochs = arguments.whole_numbers(
            samples=len(samples) if hasattr(samples, "__len__") else samples, batch_size=batch_size, epochs=epochs
        )
        return Grid(samples, batch_size, 1, epochs).total_steps

    def _begin(
        self,
        frame: Frame,
        dataset: Any,
        tools: ArrayTools,
        given: TrainArguments,
        warm_up: Callable[[Any], None] | None = None,
    ) -> tuple[Loop, ArrayEngine]:
        """Join the job. `warm_up` is called before, with a batch of each shape that a part can have."""
        batch_size, epochs, seed, verify = arguments.whole_numbers(
            batch_size=given.batch_size, epochs=given.epochs, seed=given.seed, verify=given.verify
        )
        slots, part, per_epoch, max_steps = arguments.optional_whole_numbers(
            slots=given.slots, part=given.part, samples_per_epoch=given.samples_per_epoch, max_steps=given.max_steps
        )
        arguments.check_common(slots, batch_size, given.clip_norm, given.nonfinite, given.collate_fn)
        arguments.check_numbers(given.stall_s, given.verify_slots)
        arguments.check_flags(deterministic=given.deterministic, other_bits=given.other_bits)
        others = _check_objects(given.state)
        self._checkpoint_dir = arguments.check_folder(given.checkpoint_dir)
        options = VerifyOptions(seed, given.deterministic, given.other_bits, verify, given.verify_slots)
        source = open_source(dataset, order=given.order, samples_per_epoch=per_epoch, seed=seed, tools=tools)
        grid = Grid(source.samples, batch_size, slots or batch_size, epochs, 1, max_steps)
        check_micro_batch(grid, part)
        indices = source.indices(grid, seed)
        loader = self._open_loader(source.loader(indices, seed=seed, collate_fn=given.collate_fn, tools=tools))
        logged = StepMetrics()
        engine = ArrayEngine(frame, grid, options, logged, others, clip_norm=given.clip_norm, nonfinite=given.nonfinite)
        engine.state.capture()  # find a state that cannot be sent now, not when a member joins
        parts = LadderBatcher(grid, part, one_slot=given.deterministic)
        if warm_up is not None:
            with tools.preserve():
                for each in parts.shapes():
                    warm_up(loader.load(each).data)
        length = () if indices.data == grid.samples else (("data", f"{indices.data} samples"),)
        extra = (
            *frame.about,
            ("clip_norm", str(given.clip_norm)),
            ("nonfinite", given.nonfinite),
            ("order", indices.fingerprint),
            *length,
            ("state", ", ".join(sorted(others))),
        )
        terms = self._terms(grid, options, extra)
        fingerprint = frame.bits() if given.deterministic and not given.other_bits else ()
        policies = (noise_scale_of(others.values()), batch_size_of(others.values()))
        loop = self._assemble(terms, engine, loader, logged, options, parts, indices, fingerprint, *policies)
        self._start(Join(self.member, self._agent, terms, fingerprint=fingerprint), given.stall_s)
        return loop, engine

    def _make_wiring(self, world: World, key: str) -> GroupWiring:  # noqa: ARG002  # the peers have the key
        return TcpWiring(world, self.member, self._peers)


def as_dataset(data: Any) -> Any:
    """Return a data set: a tuple of arrays becomes one whose samples are their rows."""
    return Arrays(*data) if isinstance(data, tuple) else data


def digest_of(value: object) -> str:
    """Return a short digest of what members must share, for `Frame.about`."""
    return hashlib.blake2b(repr(value).encode(), digest_size=6).hexdigest()


def _check_objects(state: object) -> dict[str, StatefulObject]:
    """Return the other objects that move with the model, by name."""
    if state is not None and not isinstance(state, Mapping):
        raise BadInput(
            f'state must be a dictionary of objects by name, such as {{"counter": counter}}, '
            f"got {arguments.a(type(state).__name__)}."
        )
    others = dict(state or {})
    for name, other in others.items():
        if not isinstance(name, str):
            raise BadInput(f"The names in state= must be strings, got {name!r}.")
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            raise BadInput(
                f'state["{name}"] is {arguments.a(type(other).__name__)}; '
                "wrap it in an object with state_dict and load_state_dict."
            )
    return others
