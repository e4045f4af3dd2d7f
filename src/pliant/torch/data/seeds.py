"""What user code draws from while it trains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(key: int) -> None:
    """Python's, numpy's and torch's generators, of every device in use."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.manual_seed_all(key)


def seed_for_reading(key: tuple[int, int, int]) -> None:
    """Seed the generators a data set may draw from. Those of a GPU are not touched: it does not read data."""
    random.seed(key[0])
    np.random.seed(key[1] & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key[2])


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Put this process's generators back as they were. Hold it around reading in a training process."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.default_generator.set_state(tensors)
