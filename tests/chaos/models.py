"""The models that `training.py` trains, with their data, random draws and optimizers.

All are small, and each has something else in it that can go out of step. `first` is the layer that is called first in a
forward pass and last in a backward pass: the harness watches a worker there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # as is usual
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

FEATURES, HIDDEN, CLASSES = 16, 32, 4
WIDE = 600  # so that the gradients fill more than one bucket
WORDS, LENGTH, BLANK = 24, 12, 0
PIXELS = 8


@dataclass
class Lesson:
    """A model and all that goes with it. `items` are the samples as they lie there, `read` what the model sees."""

    model: nn.Module
    first: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    items: tuple[Tensor, Tensor]
    read: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]  # a mean, and over how many if not over samples
    clip_norm: float | None = None


def _clouds(samples: int, steps: int) -> Lesson:
    """Points in a few noisy clouds, for a small network with BatchNorm and dropout."""
    chance = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES, generator=chance)
    labels = torch.randint(CLASSES, (samples,), generator=chance)
    points = 0.7 * centres[labels] + torch.randn(samples, FEATURES, generator=chance)
    first, second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
    model = nn.Sequential(first, nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Dropout(0.1), second)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = CosineAnnealingLR(optimizer, steps, eta_min=1e-4)
    return Lesson(model, first, optimizer, scheduler, (points, labels), _as_it_is, _classified(model))


def _mlp(samples: int, steps: int) -> Lesson:
    """The same points for a wide network without BatchNorm and dropout: what differs, differs by its sums alone."""
    points, labels = _clouds(samples, steps).items
    first = nn.Linear(FEATURES, WIDE)
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, steps, eta_min=1e-3)
    return Lesson(model, first, optimizer, scheduler, (points, labels), _with_noise, _classified(model))


def _cnn(samples: int, steps: int) -> Lesson:
    """Pictures of bars that lie or stand, for convolutions with BatchNorm and dropout."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (samples,), generator=chance)
    pictures = 0.5 * torch.randn(samples, 1, PIXELS, PIXELS, generator=chance)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        where = 2 + 3 * (label % 2)
        (picture[0, where] if label < 2 else picture[0, :, where]).add_(1.0)
    first = nn.Conv2d(1, 8, 3, padding=1)
    model = nn.Sequential(
        first,
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(12 * PIXELS * PIXELS // 4, CLASSES),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = CosineAnnealingLR(optimizer, steps, eta_min=1e-4)
    return Lesson(model, first, optimizer, scheduler, (pictures, labels), _moved, _classified(model))


class _Transformer(nn.Module):
    def __init__(self, width: int = 24, heads: int = 2, depth: int = 1) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.words(tokens) + self.places.weight))  # type: ignore[no-any-return]


def _transformer(samples: int, steps: int) -> Lesson:
    """Counting by one to three; some numbers are blanked out and to be guessed. The loss is a mean over those."""
    chance = torch.Generator().manual_seed(0)
    start, by = (torch.randint(1, most, (samples, 1), generator=chance) for most in (WORDS, 4))
    lines = 1 + (start + by * torch.arange(LENGTH)) % (WORDS - 1)
    model = _Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    scheduler = OneCycleLR(optimizer, 5e-3, total_steps=steps + 1)

    def loss(seen: Tensor, meant: Tensor) -> tuple[Tensor, Tensor]:
        hidden = seen == BLANK
        return F.cross_entropy(model(seen)[hidden], meant[hidden]), hidden.sum()

    return Lesson(model, model.words, optimizer, scheduler, (lines, lines), _blanked, loss, clip_norm=0.5)


LESSONS: dict[str, Callable[[int, int], Lesson]] = {
    "clouds": _clouds,
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
}
"""By name, made for so many samples and steps."""


def _classified(model: nn.Module) -> Callable[[Tensor, Tensor], tuple[Tensor, None]]:
    return lambda x, y: (F.cross_entropy(model(x), y), None)


# What is drawn in reading a sample: with each of the three generators that user code draws from.


def _as_it_is(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y


def _with_noise(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + 0.1 * torch.from_numpy(np.random.standard_normal(x.shape).astype(np.float32)), y


def _moved(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    turned: Any = x.flip(random.choice(((1,), (2,), (1, 2))))
    return turned.roll(random.randint(-1, 1), dims=1), y


def _blanked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    hidden = torch.rand(x.shape) < 0.3
    hidden[torch.randint(LENGTH, (1,))] = True  # one at least
    return torch.where(hidden, BLANK, x), y
