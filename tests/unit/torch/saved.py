"""A small training, and checkpoints of it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pliant.core.data.ledger import Lineage
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.training_state import TrainingState
from pliant.train.checkpoint import CheckpointFacts, PieceWriter, open_storage, write_manifest
from pliant.train.state.flat import State

LINEAGE = Lineage(1, 3, 5)


class Net(nn.Module):
    """With buffers, a scalar one among them, and two types."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.last = nn.Linear(7, 3).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x)).to(torch.bfloat16)).float()
        return out


def trained(steps: int = 3) -> tuple[Net, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(steps):
        step(model, optimizer)
        scheduler.step()
    return model, optimizer, scheduler


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.arange(20.0).reshape(4, 5)).square().mean().backward()
    optimizer.step()


def state_of(model: Net, optimizer: torch.optim.Optimizer, scheduler: Any) -> TrainingState:
    return TrainingState(model, [optimizer], Buffers(model), {"scheduler": scheduler})


def publish(where: Path, state: State, count: int = 1, name: str = "one") -> Checkpoint:
    place = open_storage(where)
    pieces: list[Piece] = []
    for index in range(count):
        writer = PieceWriter(place, name, state.tree, index, count, f"m-{index}")
        for leaf in writer.leaves:
            writer.write(state.leaves[leaf].content)
        pieces += writer.finish()
    checkpoint = Checkpoint(LINEAGE, name, 1, tuple(pieces))
    write_manifest(place, checkpoint, CheckpointFacts(at=1.8e9, job="demo"))
    return checkpoint
