"""A worker of `bench/bits.py`: alternates deterministic, plain and DDP steps, then measures reductions and errors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from training_worker import EPOCHS, Raw, drawn, network, sgd

import pliant.torch as pliant
from pliant.core.data.grid import Grid, deal_slots
from pliant.core.data.ledger import Lineage
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import Shares
from pliant.torch.group.tcp import TensorTcpGroup
from pliant.torch.reduce.base import Reducer
from pliant.torch.reduce.buckets import ReducedGradient
from pliant.torch.reduce.deterministic import DeterministicReducer
from pliant.torch.reduce.floating import FloatingReducer
from pliant.torch.state.buffers import Buffers
from pliant.train.data.loader import MicroBatch
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.metrics import StepMetrics

BATCH = {"S": 192, "M": 192, "L": 48}
FEW = {"S": ("bench", "small 16", "bits 16", "bits 12"), "M": ("bench", "small 16", "bits 16", "bits 12")}
LANES = FEW | {"L": ("bench", "bits 16")}  # more would need too much memory
ERROR_NUMEL = 1_000_000
ERROR_SLOTS = (16, 64)
CPU = torch.device("cpu")
ROW = ControlRow(Word(Purpose.STEP, 1, 1, Lineage(0, 0, 0), holds=True), weight=1.0)


def job_name(lane: str) -> str:
    return lane.replace(" ", "-")


class Lane:
    """One job: plain, plain in parts of a slot's size, or deterministic."""

    def __init__(self, stack: ExitStack, name: str, model: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
        kind, _, slots = name.partition(" ")
        if kind != "bench":  # the agent set that one
            os.environ["PLIANT_JOB"] = job_name(name)
            for theirs in ("PLIANT_AGENT", "PLIANT_MEMBER", "PLIANT_TOKEN_FILE"):
                os.environ.pop(theirs, None)
        self.name = name
        self.model = model
        self._deterministic = kind == "bits"
        self._slots = int(slots or 1)
        micro_batch = batch // self._slots if kind == "small" else None
        self.run = stack.enter_context(pliant.join()).train(
            model,
            sgd(model),
            TensorDataset(x, y),
            batch_size=batch,
            epochs=EPOCHS,
            slots=self._slots if slots else None,
            micro_batch=micro_batch,
            deterministic=self._deterministic,
        )

        self.run._optimizers.close()  # it would refuse the steps of other optimizers

    def block(self, steps: int) -> float:
        """Train, and return the seconds of a step."""
        torch.use_deterministic_algorithms(self._deterministic)  # for this lane only
        dist.barrier()
        began = time.perf_counter()
        self.steps(steps)
        spent = (time.perf_counter() - began) / steps
        torch.use_deterministic_algorithms(False)
        return spent

    def steps(self, count: int) -> None:
        for x, y in self.run:
            F.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]
            count -= self.run.step()
            if not count:
                return

    def wait_for(self, size: int) -> None:
        """Train until all members have joined."""
        while self.run.size < size:
            self.steps(1)

    @property
    def group(self) -> TensorTcpGroup:
        """Return the group of the current world, for use between two steps."""
        session = self.run._loop.session
        group = session.group(session.machine.generation)
        assert isinstance(group, TensorTcpGroup)
        return group

    @property
    def alone(self) -> Alone:
        """Return the reducer, for use between two steps. A plain one has one part on each rank."""
        group = self.group
        slots = self._slots if self._deterministic else group.size
        reducer = self.run._loop._reducer
        assert isinstance(reducer, Reducer)
        return Alone(reducer, self.model, group, slots)


# -------------------------------------------------------------------------------------------------- reductions alone


class Alone:
    """A reducer without a training loop around it."""

    def __init__(self, reducer: Reducer, model: nn.Module, group: TensorTcpGroup, slots: int) -> None:
        self.reducer = reducer
        self._model = model
        self._group = group
        self._shares: Shares = tuple(tuple(run) for run in deal_slots(slots, (1,) * group.size))

    def bring(self, grads: Callable[[int], Sequence[Tensor]]) -> None:
        """Run one part for each slot, and leave the last gradients in `.grad`, as backward does."""
        slots = self._shares[self._group.rank]
        for at, slot in enumerate(slots):
            self.reducer.begin_part(MicroBatch(1, (slot,)), 1.0, None, self._shares, idle=False)
            for param, grad in zip(self._model.parameters(), grads(slot), strict=True):
                param.grad = grad
            if at < len(slots) - 1:
                self.reducer.end_part()

    def reduce(self) -> ReducedGradient:
        return self.reducer.reduce(self._group, ROW, self._shares)[1]

    def clear(self) -> None:
        self.reducer.drop_part()
        self.reducer.drop_kept()
        self.reducer.swap_buffers()


def time_of(act: Callable[[], object]) -> float:
    dist.barrier()
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def reductions(lanes: Sequence[Lane], rounds: int) -> dict[str, object]:
    """Return the seconds of a reduction with all gradients ready, by round, and the most bytes a rank sends."""
    ways = {lane.name: lane.alone for lane in lanes if not lane.name.startswith("small")}
    grads = [torch.randn_like(param) for param in lanes[0].model.parameters()]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    sent: dict[str, float] = {}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            way.bring(lambda _slot: grads)
            before = sent_bytes(way)
            seconds[name].append(time_of(way.reduce))
            sent[name] = sent_bytes(way) - before
            way.clear()
    names = [name for name in ways if name.startswith("bits")]
    return {
        "reduce_s": {name: agreed(found[1:]) for name, found in seconds.items()},
        "bytes": dict(zip(names, agreed([sent[name] for name in names]), strict=True)),
    }


def sent_bytes(way: Alone) -> float:
    return way.reducer.sent_bytes if isinstance(way.reducer, DeterministicReducer) else 0.0


# ------------------------------------------------------------------------------------------------------------ errors


class Numbers(nn.Module):
    """A model with one row of parameters."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.zeros(numel))


def heavy_tailed(slot: int, seed: int) -> Tensor:
    """Draw from Student's t with two degrees of freedom, whose variance is infinite."""
    chance = torch.Generator().manual_seed(1_000_003 * seed + slot)
    normal = torch.randn(ERROR_NUMEL, generator=chance, dtype=torch.float64)
    square = -2.0 * torch.rand(ERROR_NUMEL, generator=chance, dtype=torch.float64).clamp_min(1e-300).log()
    return (normal / (square / 2.0).sqrt()).float()


def reducers(model: nn.Module, slots: int) -> dict[str, Reducer]:
    common = (model, Buffers(model), StepMetrics(), CPU)
    return {"plain": FloatingReducer(*common), "bits": DeterministicReducer(*common, Grid(slots, slots, slots, 1))}


def errors(group: TensorTcpGroup, seed: int) -> list[dict[str, object]]:
    """Return the errors of each kind of sum against double precision: in L2 and at most, relative to the sum."""
    model, found = Numbers(ERROR_NUMEL), []
    for slots in ERROR_SLOTS:
        exact = torch.zeros(ERROR_NUMEL, dtype=torch.float64)
        one_by_one = torch.zeros(ERROR_NUMEL)
        for slot in range(slots):
            given = heavy_tailed(slot, seed)
            exact += given
            one_by_one += given
        sums = {"one by one": one_by_one}
        for name, reducer in reducers(model, slots).items():
            way = Alone(reducer, model, group, slots)
            way.bring(lambda slot: [heavy_tailed(slot, seed)])
            reduced = way.reduce()
            total = (
                reduced.buckets[-1][:ERROR_NUMEL] if reduced.buckets else model.row.grad
            )  # in a world of one it is the sum
            assert total is not None
            sums[name] = total.clone()
            way.clear()
            reducer.close()
        for name, total in sums.items():
            off = total.double() - exact
            l2, most = float(off.norm() / exact.norm()), float(off.abs().max() / exact.abs().max())
            found.append({"slots": slots, "sum": name, "relative_l2": l2, "relative_max": most})
    return found


# -------------------------------------------------------------------------------------------------------------- all


def agreed(seconds: Sequence[float]) -> list[float]:
    """Return each time of the slowest rank."""
    longest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    found: list[float] = longest.tolist()
    return found


def main() -> None:
    folder, size, name = Path(os.environ["BENCH_FOLDER"]), int(os.environ["BENCH_WORLD"]), os.environ["BENCH_MODEL"]
    rounds, steps, seed = (int(os.environ[f"BENCH_{key}"]) for key in ("ROUNDS", "STEPS", "SEED"))
    torch.set_num_threads(1)
    x, y = drawn(BATCH[name])
    with ExitStack() as stack:
        lanes = [Lane(stack, lane, network(name), x, y, BATCH[name]) for lane in LANES[name]]
        for lane in lanes:
            lane.wait_for(size)
        raw = Raw(network(name), folder, lanes[0].run.rank, size, x, y, BATCH[name])
        ways: dict[str, Callable[[int], float]] = {**{lane.name: lane.block for lane in lanes}, "ddp": raw.block}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for block in ways.values():
            block(max(2, steps // 4))  # warm-up
        for _ in range(rounds):
            for way, block in ways.items():
                seconds[way].append(block(steps))
        found: dict[str, object] = {"step_s": {way: agreed(each) for way, each in seconds.items()}}
        found |= reductions(lanes, max(rounds, 3))
        found |= {"errors": errors(lanes[0].group, seed)} if name == "S" else {}
        found["parameters"] = sum(param.numel() for param in lanes[0].model.parameters())
        if lanes[0].run.rank == 0:
            done = folder / "compared.json"
            done.with_suffix(".new").write_text(json.dumps(found))
            done.with_suffix(".new").rename(done)
        lanes[0].steps(1_000_000)  # until this worker is stopped


if __name__ == "__main__":
    main()
