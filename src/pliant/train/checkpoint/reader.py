"""Reader of checkpoints: it reads straight into the returned memory, and hashes on the way.

Only the manifest is trusted: sizes and hashes come from it, and a file is used only once all its bytes are verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.errors import BadInput
from pliant.train.checkpoint.errors import DamagedCheckpoint, read_error
from pliant.train.checkpoint.safetensors_header import LENGTH, TensorRange, decode_header, parse_piece_name
from pliant.train.checkpoint.storage import checked_name
from pliant.train.checkpoint.tree_json import STATE_FILE, TensorInfo, json_to_tree, tensors_of
from pliant.train.state.transfer import ReceivedState

if TYPE_CHECKING:
    from pliant.train.checkpoint.storage import Storage

BLOCK = 4 << 20
PARALLEL_MAX = 4  # pieces read at the same time

OnBytesRead = Callable[[int], None]
"""Receives the number of bytes just read, on any thread."""


@dataclass(frozen=True, slots=True)
class CheckpointProblem:
    """A file that does not match its manifest."""

    file: str
    wrong: str


def read_checkpoint(storage: Storage, checkpoint: Checkpoint, seen: OnBytesRead = lambda _: None) -> ReceivedState:
    """Return the saved state. Raises DamagedCheckpoint, naming the file, or StorageUnreachable."""
    for problem in _piece_list_problems(checkpoint):
        raise DamagedCheckpoint(f"{checkpoint.name}/{problem.file}", problem.wrong)
    reading = {piece.file: _PieceReader(storage, checkpoint.name, piece, seen) for piece in checkpoint.pieces}
    tree = _read_tree(reading.pop(STATE_FILE))
    tensors = tensors_of(tree)
    wanted = {tensor.name: (at, tensor) for at, tensor in enumerate(tensors)}
    contents: dict[int, memoryview] = {}
    with ThreadPoolExecutor(min(PARALLEL_MAX, len(reading)), "pliant-read") as pool:
        for made in pool.map(lambda each: _read_piece(each, wanted), reading.values()):
            contents.update(made)
    for at, tensor in enumerate(tensors):
        if at not in contents:
            raise DamagedCheckpoint(f"{checkpoint.name}/{STATE_FILE}", f"no piece holds its tensor {tensor.name}")
    return ReceivedState(tree, tuple(contents[at] for at in range(len(tensors))))


def find_problems(
    storage: Storage, checkpoint: Checkpoint, seen: OnBytesRead = lambda _: None
) -> tuple[CheckpointProblem, ...]:
    """Read every byte and return the damaged files. Raises StorageUnreachable if the storage cannot be read."""
    found = list(_piece_list_problems(checkpoint))
    for piece in checkpoint.pieces:
        if not _is_valid_name(piece.file):
            continue  # reported above
        reading = _PieceReader(storage, checkpoint.name, piece, seen)
        try:
            if piece.file == STATE_FILE:
                _read_tree(reading)
            else:
                reading.verify()
        except DamagedCheckpoint as damage:
            found.append(CheckpointProblem(piece.file, damage.wrong))
    return tuple(found)


def _piece_list_problems(checkpoint: Checkpoint) -> Iterator[CheckpointProblem]:
    """Yield the problems of the list of pieces itself."""
    numbers: list[int] = []
    counts: set[int] = set()
    files = [piece.file for piece in checkpoint.pieces]
    if files.count(STATE_FILE) != 1:
        yield CheckpointProblem(
            STATE_FILE, "the manifest does not name it" if STATE_FILE not in files else "it is named twice"
        )
        return
    for file in files:
        number = parse_piece_name(file)
        if file != STATE_FILE and (number is None or not _is_valid_name(file)):
            yield CheckpointProblem(file, "its name is not that of a checkpoint file")
            return
        if number is not None:
            numbers.append(number[0])
            counts.add(number[1])
    if len(counts) != 1 or sorted(numbers) != list(range(*counts)):
        yield CheckpointProblem(
            STATE_FILE, f"its pieces are {', '.join(sorted(files))}: some are missing or do not belong to it"
        )


def _is_valid_name(file: str) -> bool:
    try:
        checked_name(file)
    except BadInput:
        return False
    return True


# ------------------------------------------------------------------------------------------------ one file


Wanted = Mapping[str, tuple[int, TensorInfo]]
"""The number and kind of each tensor of the state, by its name."""


class _PieceReader:
    """One file, read once from beginning to end."""

    def __init__(self, storage: Storage, name: str, piece: Piece, seen: OnBytesRead) -> None:
        self.where = f"{name}/{piece.file}"
        self.nbytes = piece.nbytes
        self._storage, self._name, self._piece, self._on_bytes = storage, name, piece, seen
        self._digest = hashlib.sha256()
        self._left = piece.nbytes

    def stream(self, use: Callable[[], None]) -> None:
        """Open the file, call `use`, and check that every byte was read and is correct."""
        try:
            with self._storage.open_file(self._name, self._piece.file) as self._file:
                use()
                self._check()
        except OSError as error:
            raise read_error(self.where, error) from error

    def fill(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes. Raises DamagedCheckpoint if the file is too short."""
        for at in range(0, buffer.nbytes, BLOCK):
            block = buffer[at : at + BLOCK]
            _fill(self._file, block, self._torn)
            self._digest.update(block)
            self._left -= block.nbytes
            self._on_bytes(block.nbytes)

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        if nbytes > self._left:
            raise DamagedCheckpoint(self.where, "its content differs from what was written")
        buffer = bytearray(nbytes)
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def verify(self) -> None:
        """Read and check the file, and keep nothing."""
        buffer = memoryview(bytearray(min(BLOCK, self._piece.nbytes)))

        def use() -> None:
            while self._left:
                self.fill(buffer[: min(BLOCK, self._left)])

        self.stream(use)

    def _check(self) -> None:
        if self._left:
            raise DamagedCheckpoint(self.where, "its content differs from what was written")
        if self._file.read(1):
            raise DamagedCheckpoint(self.where, f"it has more than the {self._piece.nbytes} bytes that were written")
        if self._digest.hexdigest() != self._piece.sha256:
            raise DamagedCheckpoint(self.where, "its SHA-256 differs from the manifest's")

    def _torn(self) -> DamagedCheckpoint:
        at = self._file.tell()
        return DamagedCheckpoint(self.where, f"it ends after {at} of {self._piece.nbytes} bytes")


def _fill(file: BinaryIO, buffer: memoryview, torn: Callable[[], DamagedCheckpoint]) -> None:
    while buffer.nbytes:
        count = file.readinto(buffer)  # type: ignore[attr-defined]  # missing in the protocol, present in every binary file
        if not count:
            raise torn()
        buffer = buffer[count:]


def _read_tree(reading: _PieceReader) -> bytes:
    found: list[bytes] = []
    reading.stream(lambda: found.append(reading.take(reading.nbytes)))
    try:
        return json_to_tree(found[0].decode())
    except ValueError as error:
        raise DamagedCheckpoint(reading.where, str(error)) from error


def _read_piece(reading: _PieceReader, wanted: Wanted) -> list[tuple[int, memoryview]]:
    """Return the tensors of a piece, once all its bytes are verified."""
    made: list[tuple[int, memoryview]] = []

    def use() -> None:
        (length,) = LENGTH.unpack(reading.take(LENGTH.size))
        try:
            made.extend(_buffers(decode_header(reading.take(length)), wanted))
        except ValueError as error:
            raise DamagedCheckpoint(reading.where, str(error)) from error
        for _, buffer in made:
            reading.fill(buffer)

    reading.stream(use)
    return made


def _buffers(placed: Sequence[TensorRange], wanted: Wanted) -> Iterator[tuple[int, memoryview]]:
    """Yield memory for the tensors of a file, in file order. Raises ValueError if the state has no such tensor."""
    for each in placed:
        at, tensor = wanted.get(each.name, (-1, None))
        if tensor is None:
            raise ValueError(f"the state has no tensor {each.name}")
        if each.end - each.begin != tensor.nbytes:
            raise ValueError(
                f"{each.name} has {each.end - each.begin} bytes in this file, and {tensor.nbytes} in the state"
            )
        yield at, memoryview(bytearray(tensor.nbytes))
