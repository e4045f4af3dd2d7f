"""Training scripts as users write them, for members in processes of their own, with faults where a plan wants them.

What a member tells is a line of JSON in its log; everything else in the log is what a user would see.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset, WeightedRandomSampler

import pliant.torch as pliant
from live.reports import say
from pliant.train.group.tcp import TcpGroup
from pliant.train.group.wiring import TcpWiring
from pliant.train.state import transfer
from pliant.train.state.transfer import StateSource

FEATURES, CLASSES = 6, 3
NO_WORD = -100
_NEVER = threading.Event()


@dataclass
class Plan:
    """The instructions of a member.

    Faults are by place: `{"forward": 3}` strikes in the forward pass of its first step from 3 on that is a multiple of
    `fault_every`.
    """

    folder: str  # where `fast` and other files appear that members wait for
    samples: int = 160
    batch: int = 8
    epochs: int = 5
    seed: int = 7
    slots: int | None = None
    micro_batch: int | None = None
    num_workers: int = 0
    source: str = "numbered"  # the kind of the data: a key of `SOURCES`
    hidden: int = 8
    activation: str = "Tanh"
    own_seed: int = 0  # of the initial weights: every member's may be another, and the lowest rank's wins
    pace_s: float = 0.1  # a step takes that long until the file `fast` is there
    kill: dict[str, int] = field(default_factory=dict)
    stop: dict[str, int] = field(default_factory=dict)  # SIGSTOP instead
    raises: dict[str, int] = field(default_factory=dict)
    fault_every: int = 1
    bad_sample: int | None = None
    double: bool = True
    norm: bool = False  # with BatchNorm, whose statistics belong to the state
    nested: bool = False
    evaluate: bool = False
    hold_at: int | None = None  # post-step, wait for the file `go`
    hold_first: bool = False  # in the first item, wait for the file `go`
    lr_of: float | None = None  # set by hand after step 3
    deterministic: bool = False
    averages: bool = False  # train a model of its own, by model averaging
    finish_at: int | None = None  # after that step, call `run.finish`
    leave_at: int | None = None  # after that step, leave the loop by `break`
    leave_within: int | None = None  # the same, in the middle of that step
    leave_backward: int | None = None  # the same, after its backward
    batches: list[list[int]] = field(default_factory=list)  # [step, batch]: after that step, set that batch


class LoopLeft(Exception):
    """The script leaves its loop from within the body of it, as by `break`."""


def warm_up() -> None:
    """Import what torch imports only when it is used first, once for all members."""
    torch.set_num_threads(1)
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=0.1)
    optimizer.step()  # without a gradient: autograd would touch a GPU, after which no member can be forked
    torch.optim.lr_scheduler.StepLR(optimizer, 1)


def data(plan: Plan) -> "Data":
    return Data(plan.samples, plan.double, plan.bad_sample)


class Data(Dataset[tuple[Tensor, Tensor]]):
    """Points of three classes, the same in every process."""

    def __init__(self, samples: int, double: bool, bad: int | None = None) -> None:
        made = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, FEATURES, generator=made, dtype=torch.float64 if double else torch.float32)
        self.y = (self.x[:, 0] > 0).long() + (self.x[:, 1] > 0.3).long()
        self.bad = bad

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.bad:
            raise ValueError(f"sample {index} is rotten")
        return self.x[index], self.y[index]


class Shards:
    """The same points in shards of 10, as files would be."""

    def __init__(self, plan: Plan) -> None:
        self.points = data(plan)
        self.shards = [min(10, plan.samples - begin) for begin in range(0, plan.samples, 10)]

    def read(self, shard: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.points[10 * shard + at] for at in range(start, self.shards[shard]))


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same points as a stream, in another order in each pass."""

    def __init__(self, plan: Plan) -> None:
        self.points = data(plan)
        self.number = 0

    def set_epoch(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = len(self.points)
        return (self.points[stream_point(count, self.number, item)] for item in range(count))


def stream_point(count: int, number: int, item: int) -> int:
    return (7 * item + number) % count


class Sentences(Data):
    """Sentences of no to 4 points, each with its class."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        words = (torch.arange(index % 5) + index) % len(self)
        return self.x[words], self.y[words]


def padded(sentences: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    xs, ys = [x for x, _ in sentences], [y for _, y in sentences]
    return pad_sequence(xs, batch_first=True), pad_sequence(ys, batch_first=True, padding_value=NO_WORD)


def word_loss(scores: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The mean over words, and their number."""
    count = int((y != NO_WORD).sum())
    total = cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=NO_WORD, reduction="sum")
    return total / max(count, 1), count


def weighted(plan: Plan) -> WeightedRandomSampler:
    """A sampler that draws half as many as there are, the later ones more often."""
    return WeightedRandomSampler([1.0 + each for each in range(plan.samples)], plan.samples // 2)


SOURCES: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "numbered": lambda plan: {"dataset": data(plan)},
    "sampler": lambda plan: {"dataset": data(plan), "sampler": weighted(plan)},
    "shards": lambda plan: {"dataset": Shards(plan)},
    "stream": lambda plan: {"dataset": Stream(plan)},
    "sentences": lambda plan: {"dataset": Sentences(plan.samples, plan.double), "collate_fn": padded},
}


def net(plan: Plan) -> nn.Module:
    torch.manual_seed(plan.own_seed)
    between = nn.BatchNorm1d(plan.hidden) if plan.norm else nn.Identity()
    model = nn.Sequential(
        nn.Linear(FEATURES, plan.hidden), between, getattr(nn, plan.activation)(), nn.Linear(plan.hidden, CLASSES)
    )
    return model.double() if plan.double else model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


class Average:
    """An average of the weights, kept by the user: what `state=` is for."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.mean = [param.detach().clone() for param in model.parameters()]
        self.steps = 0

    def update(self) -> None:
        self.steps += 1
        for mean, param in zip(self.mean, self.model.parameters(), strict=True):
            mean.mul_(0.9).add_(param.detach(), alpha=0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mean, saved in zip(self.mean, state["mean"], strict=True):
            mean.copy_(saved)
        self.steps = state["steps"]


def digest(tensors: Iterator[Tensor]) -> str:
    """Equal only for equal bits."""
    found = blake2b(digest_size=8)
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


class Faults:
    """Does at one place of one step what the plan says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.step = 0

    def at(self, where: str) -> None:
        plan = self.plan
        if self._due(plan.kill, where):
            say(killed=where, at=self.step)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._due(plan.stop, where):
            say(stopped=where, at=self.step)
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._due(plan.raises, where):
            raise RuntimeError(f"the script's own mistake in {where}")

    def _due(self, faults: dict[str, int], where: str) -> bool:
        if where in faults and self.step >= faults[where] and self.step % self.plan.fault_every == 0:
            del faults[where]
            return True
        return False

    def install(self) -> None:
        """Places that user code does not see: inside the collective, the wiring and the sending of a state."""
        self._before(TcpGroup, "all_reduce", "reduce")
        if "wiring" in self.plan.kill:
            generation = self.plan.kill["wiring"]

            def build(wiring: TcpWiring, real: Callable[[TcpWiring], TcpGroup] = TcpWiring._build) -> TcpGroup:
                if wiring._world.number >= generation:
                    say(killed="wiring", generation=wiring._world.number)
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(wiring)

            TcpWiring._build = build  # type: ignore[method-assign, assignment]
        if "receiving" in self.plan.kill:

            def read(*_: Any) -> Any:
                say(killed="receiving")
                os.kill(os.getpid(), signal.SIGKILL)

            transfer._read = read  # type: ignore[assignment]
        if "sending" in self.plan.kill:

            def give(source: StateSource, kind: str, head: bytes) -> Any:
                say(killed="sending")
                os.kill(os.getpid(), signal.SIGKILL)

            StateSource.answer = give  # type: ignore[method-assign, assignment]

    def _before(self, owner: type, name: str, where: str) -> None:
        real = getattr(owner, name)

        def first(this: Any, *args: Any) -> Any:
            self.at(where)
            return real(this, *args)

        setattr(owner, name, first)


def pace(plan: Plan) -> None:
    """A step takes a while, until the test has seen what it wanted to see."""
    if not (Path(plan.folder) / "fast").exists():
        _NEVER.wait(plan.pace_s)


def wait_for_file(plan: Plan, name: str) -> None:
    while not (Path(plan.folder) / name).exists():
        _NEVER.wait(0.01)


def train(plan: Plan) -> None:
    """The script."""
    faults = Faults(plan)
    faults.install()
    model = net(plan).to(pliant.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05) if plan.averages else optimizer_of(model)
    optimizer.register_step_pre_hook(lambda *_: faults.at("apply"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4 if plan.nested else 30, 0.9)
    average, batch = Average(model), pliant.BatchSize()
    state: dict[str, Any] = {"scheduler": scheduler, "average": average} | ({"batch": batch} if plan.batches else {})
    with pliant.join() as job:
        job.on_leave(lambda: say(on_leave=True))
        say(member=job.member, pid=os.getpid())
        run = job.train(
            model,
            optimizer,
            **SOURCES[plan.source](plan),
            batch_size=plan.batch,
            epochs=plan.epochs,
            seed=plan.seed,
            slots=plan.slots,
            micro_batch=plan.micro_batch,
            num_workers=plan.num_workers,
            deterministic=plan.deterministic,
            state=state,
        )
        own = run.average_models(0.2) if plan.averages else None
        say(joined=True)

        def body(x: Tensor, y: Tensor) -> bool:
            faults.step = run.step_number
            if plan.hold_first:
                plan.hold_first = False
                say(first_item=run.step_number)
                wait_for_file(plan, "go")
            found = model(x) if own is None else own(x)
            loss, words = word_loss(found, y) if y.ndim == 2 else (cross_entropy(found, y), None)
            faults.at("forward")
            if words is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                run.backward(loss, weight=words)
            faults.at("backward")
            if run.step_number == plan.leave_backward:
                raise LoopLeft
            run.log(loss=loss)
            stepped = run.step() if own is None else own.step()
            if stepped:
                for wanted in [to for step, to in plan.batches if step == run.step_number]:
                    batch.set(wanted)
                applied(plan, run, faults, scheduler, average, optimizer)
            return stepped

        if plan.nested:
            for epoch in run.epochs():
                for x, y in epoch:
                    body(x, y)
                scheduler.step()
                if plan.evaluate:
                    evaluate(plan, run, model, faults)
                say(epoch=epoch.number, rate=scheduler.get_last_lr()[0])
        else:
            with suppress(LoopLeft):
                for x, y in run:
                    if run.step_number == plan.leave_within:
                        break
                    if body(x, y) and run.step_number == plan.leave_at:
                        break
        everything = [*model.state_dict().values(), *average.mean]
        say(
            done=True,
            distance=0.0 if own is None else own.distance,
            digest=digest(iter(everything)),
            steps=average.steps,
            scheduler=scheduler.last_epoch,
            rate=scheduler.get_last_lr()[0],
            weights=[value for param in model.parameters() for value in param.detach().reshape(-1).tolist()],
        )


def applied(
    plan: Plan,
    run: pliant.Run,
    faults: Faults,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    average: Average,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Return what the script does after each step."""
    if not plan.nested:
        scheduler.step()
    average.update()
    say(
        step=run.step_number,
        epoch=run.epoch,
        size=run.size,
        rank=run.rank,
        generation=run.generation,
        loss=run.metrics["loss"],
        batch=run.batch_size,
    )
    faults.at("after")
    if plan.lr_of is not None and run.step_number == 3:
        optimizer.param_groups[0]["lr"] = plan.lr_of
    if plan.finish_at == run.step_number:
        run.finish("it is good enough")
    if plan.hold_at == run.step_number:
        wait_for_file(plan, "go")
    pace(plan)


def evaluate(plan: Plan, run: pliant.Run, model: nn.Module, faults: Faults) -> None:
    """Each sample once over the members."""
    seen = 0

    def sums(batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        nonlocal seen
        x, y = batch
        if seen == 1:
            faults.at("evaluate")
        seen += 1
        _NEVER.wait(0.0 if (Path(plan.folder) / "fast").exists() else 0.01)
        return {"loss": cross_entropy(model(x), y, reduction="sum"), "count": len(y), "sum": x.sum(0)}

    totals = run.evaluate(sums, data(plan), batch_size=7)
    say(
        evaluated=run.epoch,
        loss=totals["loss"],
        count=totals["count"],
        sum=totals["sum"].tolist(),
        computed=seen,
    )
