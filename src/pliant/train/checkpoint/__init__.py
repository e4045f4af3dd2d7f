"""Checkpoints as files that people can open without Pliant: safetensors for tensors, JSON for everything else.

What may live here: the layout of a checkpoint, writing and reading it, and the places it may lie in. The command line
of a base install reads checkpoints, so nothing here imports numpy or a framework.

    PLACE/NAME/state.json                   the tree: every value, and each tensor by its name
    PLACE/NAME/0-of-2-MEMBER.safetensors    a run of the tensors, written by one member
    PLACE/NAME/manifest.json                what it is a checkpoint of, and each file's size and hash; written last
    PLACE/place-id                          what tells this place from others, and whose it is
"""

from __future__ import annotations

from pliant.train.checkpoint.errors import DamagedCheckpoint, StorageUnreachable
from pliant.train.checkpoint.manifest import CheckpointFacts, Manifest, read_manifest, write_manifest
from pliant.train.checkpoint.reader import CheckpointProblem, find_problems, read_checkpoint
from pliant.train.checkpoint.storage import Storage, describe_other_owner, open_storage, owner_name
from pliant.train.checkpoint.writer import PieceWriter

__all__ = [
    "CheckpointFacts",
    "CheckpointProblem",
    "DamagedCheckpoint",
    "Manifest",
    "PieceWriter",
    "Storage",
    "StorageUnreachable",
    "describe_other_owner",
    "find_problems",
    "open_storage",
    "owner_name",
    "read_checkpoint",
    "read_manifest",
    "write_manifest",
]
