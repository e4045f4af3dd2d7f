"""Loaders and sources as pliant.torch opens them."""

from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from pliant.core.data.grid import Grid
from pliant.torch.data.tools import TorchTools
from pliant.train.data.loader import SampleIndices
from pliant.train.live.data import source, stream
from pliant.train.live.data.loader import LiveLoader

TOOLS = TorchTools()

open_source = partial(source.open_source, tools=TOOLS)
beginning = partial(stream.beginning, tools=TOOLS)


class Loader(LiveLoader):
    def __init__(
        self,
        dataset: Any,
        indices: SampleIndices,
        grid: Grid,
        *,
        device: torch.device,
        pin_memory: bool = False,
        collate_fn: Any = None,
        **options: Any,
    ) -> None:
        tools = TorchTools(device, pin_memory=pin_memory)
        collate = None if collate_fn is default_collate else collate_fn
        super().__init__(dataset, indices, grid, tools=tools, collate_fn=collate, **options)
