"""Seed and restore the random generators that user code draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(key: int) -> None:
    """Seed the generators of Python, numpy and torch, on every device in use."""
    seed_for_reading((key, key, key))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        for generator in torch.cuda.default_generators:  # as `manual_seed_all`, which also looks whether CUDA runs
            generator.manual_seed(key)


def seed_for_reading(key: tuple[int, int, int]) -> None:
    """Seed the generators that a data set may draw from: those of the CPU."""
    random.seed(key[0])
    np.random.seed(key[1] & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key[2])


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore this process's generators at the end of the block. Use it around reading in a training process."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.default_generator.set_state(tensors)
