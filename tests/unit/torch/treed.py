"""Members that reduce along the tree, for tests: a model, the slots of a step, and who computes which."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import Lineage
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import Shares
from pliant.torch.reduce.buckets import ReducedGradient
from pliant.torch.reduce.deterministic import DeterministicReducer
from pliant.torch.state.buffers import Buffers
from pliant.train.data.loader import MicroBatch
from pliant.train.group.contract import GroupBroken
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.metrics import StepMetrics
from unit.torch.wires import ranks, same_bits, together

CPU = torch.device("cpu")
WORD = Word(Purpose.STEP, 3, 17, Lineage(2, 16, 2**64 - 1), holds=True, samples=8)


@dataclass
class Case:
    """The computation, the same on every member: a model, and for each slot of each step a loss and a weight."""

    model: Callable[[], nn.Module]
    slots: int
    loss: Callable[[nn.Module, int, int], Tensor]
    weight: Callable[[int], float] = lambda slot: 1.0 + slot % 3
    short: int | None = None  # how many slots every second step has, if fewer

    @property
    def grid(self) -> Grid:
        width = 2
        short = self.slots if self.short is None else self.short
        return Grid(width * (self.slots + short), width * self.slots, self.slots, epochs=100)

    def filled(self, step: int) -> int:
        return len(self.grid.filled(step))


@dataclass
class Outcome:
    """The result of a step on one member."""

    grads: list[Tensor | None]
    reduced: ReducedGradient
    rows: tuple[ControlRow, ...]
    buffers: list[Tensor] = field(default_factory=list)

    def same(self, other: "Outcome") -> bool:
        """Return whether it is the same, bit by bit."""
        return (
            self.same_gradients(other)
            and all(same_bits(a, b) for a, b in zip(self.buffers, other.buffers, strict=True))
            and self.reduced.weight == other.reduced.weight
            and self.reduced.means == other.reduced.means
        )

    def same_gradients(self, other: "Outcome") -> bool:
        return all(
            a is b if a is None or b is None else same_bits(a, b) for a, b in zip(self.grads, other.grads, strict=True)
        )


class Member:
    """One rank's model with its reducer, driven as the training loop does."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = case.model()
        self.buffers = Buffers(self.model)
        self.logged = StepMetrics()
        self.reducer = DeterministicReducer(self.model, self.buffers, self.logged, CPU, case.grid)
        self.kept: set[int] = set()

    def compute(self, step: int, slots: Sequence[int], group: Any, shares: Shares, *, stop: bool = False) -> None:
        """One part for each slot. The last one's gradients stay where they are, unless training is to stop here."""
        for at, slot in enumerate(slots):
            last = at == len(slots) - 1 and not stop
            self.logged.begin(slot)
            part = MicroBatch(step, (slot,))
            self.reducer.begin_part(part, self.case.weight(slot), group if last else None, shares, idle=False)
            weight = self.case.weight(slot)
            self.reducer.weigh(weight)
            loss = self.case.loss(self.model, step, slot)
            self.logged.log({"loss": loss.detach()})
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            self.buffers.end_part(weight, drop=not weight)
            self.logged.finish(weight)
            if not weight:
                self.reducer.drop_part()
            if not last:
                self.reducer.end_part()
            self.kept.add(slot)

    def idle(self, step: int, shares: Shares) -> None:
        """A part of which nothing is kept: a member without slots has one, so that its loop runs (rule 22)."""
        self.logged.begin(0)
        self.reducer.begin_part(MicroBatch(step, (0,)), 1.0, None, shares, idle=True)
        loss = self.case.loss(self.model, step, 0)
        self.logged.log({"loss": loss.detach()})
        loss.backward()  # type: ignore[no-untyped-call]
        self.buffers.end_part(1.0, drop=True)
        self.reducer.drop_part()
        self.logged.drop()

    def reduce(
        self, group: Any, shares: Shares, *, follow: bool = False
    ) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        row = ControlRow(
            WORD, names_hash=self.logged.names_hash, log_weight=self.logged.weight, logged=self.logged.sums
        )
        return self.reducer.reduce(group, row, shares, follow=follow)

    def apply(self, rows: tuple[ControlRow, ...], reduced: ReducedGradient) -> Outcome:
        """Return what the loop does with what was reduced; nothing is trained."""
        self.reducer.write_gradients(reduced)
        grads = [None if param.grad is None else param.grad.clone() for param in self.model.parameters()]
        self.buffers.apply(reduced.buffers, reduced.weight)
        self.reducer.drop_part()
        self.reducer.drop_kept()
        self.logged.clear()
        self.buffers.drop_staged()
        self.buffers.rebase()
        self.kept.clear()
        self.reducer.swap_buffers()
        return Outcome(grads, reduced, rows, [each.clone() for each in self.model.buffers()])

    def step(self, step: int, group: Any, shares: Shares) -> Outcome:
        self.compute_rest(step, group, shares)
        return self.apply(*self.reduce(group, shares))

    def compute_rest(self, step: int, group: Any, shares: Shares) -> None:
        """Return what of its share it has not kept; if there is nothing, an idle part."""
        mine = [slot for slot in shares[group.rank] if slot not in self.kept]
        if mine:
            self.compute(step, mine, group, shares)
        else:
            self.idle(step, shares)

    def broken_step(self, step: int, group: Any, shares: Shares) -> None:
        """A step in a group that breaks."""
        self.compute_rest(step, group, shares)
        try:
            self.reduce(group, shares)
        except GroupBroken:
            self.reducer.end_part()
        else:
            raise AssertionError("the group did not break")


def alone(case: Case, *steps: int) -> list[Outcome]:
    """One member with all slots."""
    member = Member(case)
    (group,) = ranks(1)
    found = [member.step(step, group, (tuple(range(case.filled(step))),)) for step in steps]
    member.reducer.close()
    return found


def steps(case: Case, groups: Sequence[Any], *dealt: Shares) -> list[list[Outcome]]:
    """Several steps, with these shares in each; by step, then by rank."""
    members = [Member(case) for _ in groups]
    found = []
    for step, shares in enumerate(dealt, 1):
        acts = [partial(m.step, step, group, shares) for m, group in zip(members, groups, strict=True)]
        found.append(together(*acts))
    for member in members:
        member.reducer.close()
    return found


# ------------------------------------------------------------------------------------------------------------- models


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3)).to(dtype)


def batch(step: int, slot: int, count: int = 3) -> Tensor:
    """Heavy-tailed numbers, so that the order of additions shows."""
    chance = torch.Generator().manual_seed(1000 * step + slot)
    drawn = torch.randn(count, 7, generator=chance)
    return drawn / torch.randn(count, 1, generator=chance).abs().clamp(1e-3)


def loss_of(model: nn.Module, step: int, slot: int) -> Tensor:
    x = batch(step, slot).to(next(model.parameters()).dtype)
    out: Tensor = model(x)
    return (out * x.sum(dim=1, keepdim=True)).square().mean()
