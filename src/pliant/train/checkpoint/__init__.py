"""Checkpoints as files that can be opened without Pliant: safetensors for tensors, JSON for everything else.

The layout of a checkpoint, its writer and reader, and the storage for it. The command line of a base install reads
checkpoints, so nothing here imports numpy or a framework.

    STORAGE/NAME/state.json                   the tree: every value, and each tensor by its name
    STORAGE/NAME/0-of-2-MEMBER.safetensors    a run of the tensors, written by one member
    STORAGE/NAME/manifest.json                lineage, and each file's size and hash; written last
    STORAGE/storage-owner                     the id of this storage, and the job that owns it
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
