"""A checkpoint as one file of PyTorch's own, for a script that knows nothing of Pliant."""

from __future__ import annotations

import os
import secrets
from collections import deque
from pathlib import Path
from typing import Any

import torch

from pliant.torch.state.training_state import from_leaf
from pliant.train.checkpoint.export import origin_of
from pliant.train.checkpoint.manifest import Manifest
from pliant.train.state.flat import restore
from pliant.train.state.transfer import ReceivedState


def export_torch(file: Path, received: ReceivedState, manifest: Manifest) -> None:
    """Write what `torch.load(file, weights_only=True)` opens: whole under its name, or not at all."""
    value = restore(received.tree, received.contents, from_leaf)
    kept = {key: _loadable(each) for key, each in value.items() if key != "moving"}  # which is of use to Pliant alone
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
    """The same, of types that torch reads without being told that they are safe."""
    match value:
        case dict():
            return type(value)({key: _loadable(each) for key, each in value.items()})
        case list() | deque():
            return [_loadable(each) for each in value]
        case tuple():
            return tuple(_loadable(each) for each in value)
        case _:
            return value
