"""What user code draws from while it trains."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(key: int) -> None:
    """Python's, numpy's and torch's generators, of every device in use."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        torch.cuda.manual_seed_all(key)
