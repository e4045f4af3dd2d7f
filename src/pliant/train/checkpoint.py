"""States on disk, as the protocol itself needs them: when everybody goes, and when too few are left (rules 16, 17).

A file is written whole under another name and then linked to its own, which nobody else can have: what is under a name
never changes. It holds a short header, the tree and the tensors' bytes, and ends with a checksum over all of it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from pliant.core.model import Checkpoint
from pliant.errors import BadInput
from pliant.train.state import sizes
from pliant.train.transfer import Received

_MAGIC = b"pliant state 1\n\0"
_HEAD = struct.Struct("<16sQ")


class Directory:
    """Where a job's checkpoints are. Everybody who may have to read one must reach it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, name: str, content: Received) -> None:
        """Returns once it is on the disk, whole, under its name."""
        self._path.mkdir(parents=True, exist_ok=True)
        new = self._path / f".{name}.{os.getpid()}"
        digest = hashlib.blake2b()
        with new.open("wb") as file:
            head = _HEAD.pack(_MAGIC, len(content.tree)) + content.tree
            for piece in (memoryview(head), *content.contents):
                digest.update(piece)
                file.write(piece)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        try:
            (self._path / name).hardlink_to(new)
        except FileExistsError:
            pass  # the name says what is in it, to the member that wrote it
        finally:
            new.unlink()
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        """Call for a checkpoint of one's own that nobody can need any more."""
        (self._path / name).unlink(missing_ok=True)

    def read(self, checkpoint: Checkpoint) -> Received:
        """What was written; BadInput if it is not whole."""
        path = self._path / checkpoint.name
        try:
            data = memoryview(bytearray(path.read_bytes()))
        except OSError as error:
            raise BadInput(f"The checkpoint {path} cannot be read: {error.strerror}.") from error
        content, digest = data[:-64], data[-64:]
        if len(data) < _HEAD.size + 64 or hashlib.blake2b(content).digest() != digest:
            raise BadInput(f"The checkpoint {path} is damaged.")
        magic, tree_bytes = _HEAD.unpack(content[: _HEAD.size])
        if magic != _MAGIC:
            raise BadInput(f"{path} is no checkpoint of this version.")
        at = _HEAD.size + tree_bytes
        tree = bytes(content[_HEAD.size : at])
        contents = []
        for nbytes in sizes(tree):
            contents.append(content[at : at + nbytes])
            at += nbytes
        return Received(tree, tuple(contents))
