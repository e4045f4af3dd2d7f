"""Export a checkpoint as one PyTorch file, for use without Pliant."""

from __future__ import annotations

import os
import secrets
from collections import deque
from pathlib import Path
from typing import Any

import torch

from pliant.torch.state.tensors import from_leaf
from pliant.train.checkpoint.export import origin_of
from pliant.train.checkpoint.manifest import Manifest
from pliant.train.state.flat import restore
from pliant.train.state.transfer import ReceivedState


def export_torch(file: Path, received: ReceivedState, manifest: Manifest) -> None:
    """Write a file for `torch.load(file, weights_only=True)`, atomically."""
    value = restore(received.tree, received.contents, from_leaf)
    kept = {key: _loadable(each) for key, each in value.items() if key != "moving"}  # used by Pliant only
    file.parent.mkdir(parents=True, exist_ok=True)
    hidden = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with hidden.open("xb") as opened:
            torch.save({**kept, **origin_of(manifest)}, opened)
            opened.flush()
            os.fsync(opened.fileno())
        hidden.replace(file)
    finally:
        hidden.unlink(missing_ok=True)


def _loadable(value: Any) -> Any:
    """Return the value in types that torch loads with `weights_only=True`."""
    match value:
        case dict():
            return type(value)({key: _loadable(each) for key, each in value.items()})
        case list() | deque():
            return [_loadable(each) for each in value]
        case tuple():
            return tuple(_loadable(each) for each in value)
        case _:
            return value
