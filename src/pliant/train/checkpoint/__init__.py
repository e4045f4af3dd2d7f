"""Checkpoints as files that people can open without Pliant: safetensors for tensors, JSON for everything else.

What may live here: the layout of a checkpoint, writing and reading it, and the places it may lie in. The command line
of a base install reads checkpoints, so nothing here imports numpy or a framework.

    PLACE/NAME/state.json                   the tree: every value, and each tensor by its name
    PLACE/NAME/0-of-2-MEMBER.safetensors    a run of the tensors, written by one member
    PLACE/NAME/manifest.json                what it is a checkpoint of, and each file's size and hash; written last
    PLACE/place-id                          what tells this place from others, and whose it is
"""

from __future__ import annotations

from pliant.train.checkpoint.errors import Damaged, OutOfReach
from pliant.train.checkpoint.manifest import Facts, Manifest, read_manifest, write_manifest
from pliant.train.checkpoint.reader import Problem, problems, read
from pliant.train.checkpoint.storage import Place, owner, place_at, taken
from pliant.train.checkpoint.writer import PieceWriter

__all__ = [
    "Damaged",
    "Facts",
    "Manifest",
    "OutOfReach",
    "PieceWriter",
    "Place",
    "Problem",
    "owner",
    "place_at",
    "problems",
    "read",
    "read_manifest",
    "taken",
    "write_manifest",
]
