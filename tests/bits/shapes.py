"""Three models to train, each cut into steps and slots in several ways."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chaos.job import Task

LESSONS = ("mlp", "cnn", "transformer")
EPOCHS = 12


@dataclass(frozen=True)
class Shape:
    """The division of the data into steps and slots."""

    name: str
    samples: int
    batch: int
    slots: int

    def task(self, lesson: str, epochs: int = EPOCHS) -> Task:
        return Task(
            epochs,
            samples=self.samples,
            batch=self.batch,
            slots=self.slots,
            lesson=lesson,
            deterministic=True,
        )


EVEN = Shape("even", 256, 32, 8)
ODD = Shape("odd slots", 256, 32, 7)
PRIME = Shape("prime length", 251, 32, 8)
NOTHING = Shape("nothing divides", 251, 37, 5)
SHAPES = (EVEN, ODD, PRIME, NOTHING)


def plain(task: Task) -> Task:
    """The same with `deterministic=False`: it must not come to the same bits, or the comparison shows nothing."""
    return replace(task, deterministic=False)
