"""Streaming writer of one member's piece of a checkpoint: it hashes on the way and never copies the piece."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pliant.core.model.checkpoint import Piece
from pliant.errors import BadInput
from pliant.train.checkpoint.safetensors_header import encode_header, piece_name
from pliant.train.checkpoint.storage import checked_name
from pliant.train.checkpoint.tree_json import STATE_FILE, tensors_of, tree_to_json
from pliant.train.state.flat import leaf_sizes, stripe_leaves

if TYPE_CHECKING:
    from pliant.train.checkpoint.storage import NewFile, Storage

BLOCK = 4 << 20  # bytes hashed and written at once; both release the interpreter lock
GATHERED = 1 << 20  # smaller writes are collected up to this size


class PieceWriter:
    """Piece `index` of `count`: a run of the state's leaves. Write their bytes in order, then call `finish`.

    Nothing is opened before the first write, so creating one is fast, and faster if the caller passes the sizes of all
    leaves in `nbytes`. Failures raise the storage's OSError; then call `abandon`.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        tree: bytes,
        index: int,
        count: int,
        member: str,
        nbytes: Sequence[int] | None = None,
    ) -> None:
        if not 0 <= index < count:
            raise BadInput(f"There is no piece {index} of {count}: pieces are counted from 0.")
        self.file = checked_name(piece_name(index, count, member))
        nbytes = leaf_sizes(tree) if nbytes is None else nbytes
        self.leaves = stripe_leaves(nbytes, index, count)
        self._storage = storage
        self.name = checked_name(name)
        self._tree = tree
        self._writes_tree = index == 0
        self._due = sum(nbytes[leaf] for leaf in self.leaves)  # bytes of leaves not written yet
        self._about = {"checkpoint": name, "piece": f"{index} of {count}", "format": "pt"}
        self._pending = bytearray()
        self._digest = hashlib.sha256()
        self._nbytes = 0
        self._new: NewFile | None = None

    def write(self, content: memoryview) -> None:
        """Write the next bytes of the leaves, in blocks of any size. They are not needed once this returns."""
        flat = content.cast("B") if content.nbytes else memoryview(b"")
        if flat.nbytes > self._due:
            raise BadInput(f"{self.file} received {flat.nbytes - self._due} bytes more than its leaves have.")
        self._due -= flat.nbytes
        if len(self._pending) + flat.nbytes < GATHERED:
            self._pending += flat
            return
        self._send_pending()
        self._send(flat)

    def finish(self) -> tuple[Piece, ...]:
        """Return the pieces for the manifest once they are on disk. The first piece includes the tree."""
        if self._due:
            raise BadInput(f"{self.file} still lacks {self._due} bytes of its leaves.")
        self._send_pending()
        tree = (self._write_tree(),) if self._writes_tree else ()  # first, because it is small, should the rest fail
        self._open().finish()
        self._new = None
        return (Piece(self.file, self._nbytes, self._digest.hexdigest()), *tree)

    def abandon(self) -> None:
        """Remove an incomplete file. Call it instead of `finish`, or after `finish` failed."""
        new, self._new = self._new, None
        self._pending.clear()
        if new is not None:
            new.abandon()

    def _write_tree(self) -> Piece:
        text = tree_to_json(self._tree).encode()
        self._storage.write_file(self.name, STATE_FILE, text)
        return Piece(STATE_FILE, len(text), hashlib.sha256(text).hexdigest())

    def _send_pending(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._send(memoryview(pending))

    def _send(self, content: memoryview) -> None:
        new = self._open()
        for at in range(0, content.nbytes, BLOCK):
            block = content[at : at + BLOCK]
            self._digest.update(block)
            new.write(block)
            self._nbytes += block.nbytes

    def _open(self) -> NewFile:
        if self._new is None:
            self._new = self._storage.create_file(self.name, self.file)
            tensors = tensors_of(self._tree)
            self._send(memoryview(encode_header([tensors[leaf] for leaf in self.leaves], self._about)))
        return self._new
