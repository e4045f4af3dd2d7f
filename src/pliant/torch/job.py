"""A PyTorch worker's membership in a job, from `pliant.torch.join()` to the end of the `with` block."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import default_collate

from pliant import settings
from pliant.core.data.grid import Grid
from pliant.core.messages import Join
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.ps.tables.live import BATCH_SIZE, DETERMINISTIC, SAVES_ALONE, SCALER, SKIP, LiveTables, check_live_tables
from pliant.ps.tables.spec import Table
from pliant.torch import arguments as own
from pliant.torch.data.tools import TorchTools
from pliant.torch.determinism import DeterminismOptions
from pliant.torch.engine import TorchEngine
from pliant.torch.group import choice
from pliant.torch.group.nccl_wiring import NcclWiring
from pliant.torch.group.tcp import TensorTcpWiring
from pliant.torch.join_terms import extra_terms, model_device
from pliant.torch.run import Run
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.optimizers import Optimizers
from pliant.torch.state.training_state import Stateful, TrainingState
from pliant.train.data.batch_size import BatchSize, batch_size_of
from pliant.train.data.loader import OrderOfEpoch, check_micro_batch
from pliant.train.data.microbatches import MicroBatcher
from pliant.train.group.contract import GroupWiring
from pliant.train.live import arguments
from pliant.train.live.data.source import open_source
from pliant.train.live.job import STALL_S, LiveJob, NoPeers, prepare_join
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.noise import NoiseScale, noise_scale_of


def join() -> TrainingJob:
    """Return this worker's job, for a `with` statement. Call it once.

    The environment names the coordinator; `pliant run` sets it. Without a coordinator this worker trains alone.
    """
    return TrainingJob(*prepare_join(_refuse_own_group))


def _refuse_own_group() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise BadInput(
            "torch.distributed is initialized. pliant.join() connects the workers itself, and replacements get no RANK "
            "and WORLD_SIZE. Remove init_process_group, or run the script without pliant.join()."
        )


def device() -> torch.device:
    """Return the device for this worker's model: its GPU, else the CPU. Call it before you build the model."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", settings.read_worker().local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


class TrainingJob(LiveJob):
    """This worker's membership in a job. It ends with the `with` block."""

    warms_up = True

    def __init__(self, found: settings.Settings, worker: settings.WorkerSettings) -> None:
        super().__init__(found, worker)
        self._device = torch.device("cpu")
        self._collectives = choice.TCP

    def total_steps(self, samples: Any, *, batch_size: int, epochs: int = 1, turns: int = 1) -> int:
        """Return the number of steps that `train` takes with these arguments, for a scheduler that is built before.

        `samples` is the data set, the sampler, or the number of samples of an epoch. `turns` is the number of
        optimizers that take turns.
        """
        samples, batch_size, epochs, turns = arguments.whole_numbers(
            samples=len(samples) if hasattr(samples, "__len__") else samples,
            batch_size=batch_size,
            epochs=epochs,
            turns=turns,
        )
        return Grid(samples, batch_size, 1, epochs, turns).total_steps

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
        dataset: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        max_steps: int | None = None,
        seed: int = 0,
        slots: int | None = None,
        micro_batch: int | None = None,
        order: str | OrderOfEpoch = "shuffled",
        sampler: Iterable[int] | None = None,
        samples_per_epoch: int | None = None,
        state: Mapping[str, Stateful] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        nonfinite: Literal["raise", "skip", "ignore"] = "raise",
        collectives: Literal["nccl", "tcp"] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        stall_s: float = STALL_S,
        deterministic: bool = False,
        other_bits: bool = False,
        verify: int = 0,
        verify_slots: float = 0.0,
        tables: Sequence[Table] = (),
    ) -> Run:
        """Join the job and return its run. Raises if a setting differs from that of the other members.

        While others train, the loop yields two items that do not count, and then the iterator joins and raises instead.

        `batch_size` is global, whatever the number of members. `slots` is the number of pieces it is divided into, by
        default one for each sample; members beyond that number are spares. `micro_batch` limits the samples of an item,
        `max_steps` the length of the job. `state` names other objects that move with the model.

        With `deterministic` an item is one slot, and the result has the same bits whatever happens to the membership. A
        member whose software or hardware would compute other bits stays a spare, unless `other_bits` allows it. With
        `verify=N` members compare hashes of their whole state every N steps, and a member that differs is evicted. With
        `verify_slots=R` a second member computes that fraction of the slots and compares the gradients.

        `tables` are on parameter servers, for `run.pull` and `run.push`. An item is one slot then, too.
        """
        self._open_once()
        batch_size, epochs, seed, num_workers, verify = arguments.whole_numbers(
            batch_size=batch_size, epochs=epochs, seed=seed, num_workers=num_workers, verify=verify
        )
        slots, micro_batch, per_epoch, max_steps = arguments.optional_whole_numbers(
            slots=slots, micro_batch=micro_batch, samples_per_epoch=samples_per_epoch, max_steps=max_steps
        )
        own.check(model, slots, batch_size, clip_norm, nonfinite, collate_fn, stall_s, verify_slots)
        arguments.check_flags(pin_memory=pin_memory, deterministic=deterministic, other_bits=other_bits)
        others = own.check_state(state, scaler)
        self._checkpoint_dir = arguments.check_folder(checkpoint_dir)
        options = DeterminismOptions(seed, deterministic, other_bits, verify, verify_slots)
        bare, where = self._place(model, collectives)
        tools = TorchTools(where, pin_memory=pin_memory)
        source = open_source(dataset, order=order, sampler=sampler, samples_per_epoch=per_epoch, seed=seed, tools=tools)
        optimizers = self._close_later(Optimizers(bare, optimizer, scaler, clip_norm, nonfinite))
        grid = Grid(source.samples, batch_size, slots or batch_size, epochs, len(optimizers.turns) or 1, max_steps)
        indices = self._indices = source.indices(grid, seed)
        engine, logged = self._engine(bare, optimizers, options, others, grid, compiled=bare is not model)
        collate = None if collate_fn is default_collate else collate_fn
        loaded = source.loader(indices, seed=seed, collate_fn=collate, num_workers=num_workers, tools=tools)
        loader, one_slot = self._open_loader(loaded), deterministic or bool(tables)
        parts, policies = _parts(grid, micro_batch, one_slot=one_slot), _policies(others, optimizers)
        self._open_tables(tables, slots, nonfinite, [*others.values()], deterministic=deterministic)
        terms = self._terms(grid, options, (*extra_terms(bare, optimizers, indices, others), *self._library_term))
        join = Join(self.member, self._agent, terms, fingerprint=options.fingerprint(where))
        loop = self._assemble(terms, engine, loader, logged, options, parts, indices, join.fingerprint, *policies)
        self._start(join, stall_s)
        return self._opened(Run(loop, model, optimizers, others.values(), *self._evaluation, where))

    def _close_later(self, optimizers: Optimizers) -> Optimizers:
        self._closing.append(optimizers.close)
        return optimizers

    def _open_tables(
        self, tables: Sequence[Table], slots: int | None, nonfinite: str, others: list[object], *, deterministic: bool
    ) -> None:
        """Open the tables of this run. Raises BadInput if they cannot be combined with the other arguments."""
        if not tables:
            return
        alone = not self._settings.coordinators
        given = {
            DETERMINISTIC: deterministic,
            SKIP: nonfinite == "skip",
            SCALER: any(isinstance(each, torch.amp.GradScaler) for each in others),
            BATCH_SIZE: any(isinstance(each, BatchSize) for each in others),
            SAVES_ALONE: alone and (self._checkpoint_dir or self._worker.checkpoint_dir) is not None,
        }
        check_live_tables(slots, given)
        self._tables = LiveTables(self.member, tables, self._wait_for_servers, self._peer_tls(), alone=alone)

    @property
    def _library_term(self) -> tuple[tuple[str, str], ...]:
        return (("collectives", choice.NCCL),) if self._collectives == choice.NCCL else ()

    def _place(self, model: nn.Module, collectives: str | None) -> tuple[nn.Module, torch.device]:
        """Return the model without wrappers and its device, and choose the library that reduces its gradients."""
        bare, self._device = _bare_model(model)
        worker = self._worker
        self._collectives = choice.choose(
            collectives, self._device, local_rank=worker.local_rank, may_share_gpu=worker.may_share_gpu
        )
        return bare, self._device

    def _engine(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        options: DeterminismOptions,
        others: Mapping[str, Stateful],
        grid: Grid,
        *,
        compiled: bool,
    ) -> tuple[TorchEngine, StepMetrics]:
        step = self._optimizer_step(options, optimizers, self._device, compiled=compiled)
        state = TrainingState(model, optimizers.all, Buffers(model), others)
        state.capture()  # find a state that cannot be sent now, not when a member joins
        logged = StepMetrics()
        over_nccl = self._collectives == choice.NCCL
        reducer = options.reducer(model, state.buffers, logged, self._device, grid, over_nccl=over_nccl)
        return TorchEngine(state, reducer, step, optimizers, self._device), logged

    def _optimizer_step(
        self, options: DeterminismOptions, optimizers: Optimizers, device: torch.device, *, compiled: bool
    ) -> Callable[[], None]:
        """Return the function that steps the optimizers. In deterministic training it refuses changed settings."""
        deterministic = options.apply(optimizers, device, compiled=compiled)
        if deterministic is None:
            return optimizers.step
        self._closing.append(deterministic.close)
        return deterministic.guard(optimizers.step)

    def _make_wiring(self, world: World, key: str) -> GroupWiring:
        if self._collectives == choice.NCCL:
            peers = self._peers or NoPeers()
            return NcclWiring(world, key, self.member, peers, self._peer_values, self._device)
        return TensorTcpWiring(world, self.member, self._peers)


def _bare_model(model: nn.Module) -> tuple[nn.Module, torch.device]:
    """Return the model without the wrapper of torch.compile, and its device."""
    bare: nn.Module = getattr(model, "_orig_mod", model)
    return bare, model_device(bare)


def _parts(grid: Grid, micro_batch: int | None, *, one_slot: bool) -> MicroBatcher:
    check_micro_batch(grid, micro_batch)
    return MicroBatcher(grid, micro_batch, one_slot=one_slot)


def _policies(others: Mapping[str, Stateful], optimizers: Optimizers) -> tuple[NoiseScale | None, BatchSize | None]:
    """Return the noise scale and the batch size among the objects of the state."""
    noise = noise_scale_of(others.values())
    if noise is not None and optimizers.turns:
        raise BadInput("NoiseScale measures one gradient, but optimizers that take turns have several. Remove it.")
    return noise, batch_size_of(others.values())
