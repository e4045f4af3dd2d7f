"""A checkpoint read back: straight into the memory that is handed out, and hashed on the way.

What the manifest says is believed, and nothing else: sizes and hashes come from it, and a file is used only once all of
it was the right bytes.
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
PARALLEL_MAX = 4  # pieces that are read side by side

OnBytesRead = Callable[[int], None]
"""Is told how many bytes more were read, from any thread."""


@dataclass(frozen=True, slots=True)
class CheckpointProblem:
    """One file that is not as its manifest says."""

    file: str
    wrong: str


def read_checkpoint(place: Storage, checkpoint: Checkpoint, seen: OnBytesRead = lambda _: None) -> ReceivedState:
    """The state that was written. Damaged, naming the file, if a byte is another one; OutOfReach if nobody can say."""
    for problem in _piece_list_problems(checkpoint):
        raise DamagedCheckpoint(f"{checkpoint.name}/{problem.file}", problem.wrong)
    reading = {piece.file: _PieceReader(place, checkpoint.name, piece, seen) for piece in checkpoint.pieces}
    tree = _read_tree(reading.pop(STATE_FILE))
    tensors = tensors_of(tree)
    wanted = {tensor.name: (at, tensor) for at, tensor in enumerate(tensors)}
    contents: dict[int, memoryview] = {}
    with ThreadPoolExecutor(min(PARALLEL_MAX, len(reading)), "pliant-read") as pool:
        for made in pool.map(lambda each: _read_piece(each, wanted), reading.values()):
            contents.update(made)
    for at, tensor in enumerate(tensors):
        if at not in contents:
            raise DamagedCheckpoint(f"{checkpoint.name}/{STATE_FILE}", f"no piece has its tensor {tensor.name}")
    return ReceivedState(tree, tuple(contents[at] for at in range(len(tensors))))


def find_problems(
    place: Storage, checkpoint: Checkpoint, seen: OnBytesRead = lambda _: None
) -> tuple[CheckpointProblem, ...]:
    """Read every byte and keep none: what is wrong, file by file. OutOfReach if it cannot be read here."""
    found = list(_piece_list_problems(checkpoint))
    for piece in checkpoint.pieces:
        if not _is_valid_name(piece.file):
            continue  # that was said
        reading = _PieceReader(place, checkpoint.name, piece, seen)
        try:
            if piece.file == STATE_FILE:
                _read_tree(reading)
            else:
                reading.verify()
        except DamagedCheckpoint as damage:
            found.append(CheckpointProblem(piece.file, damage.wrong))
    return tuple(found)


def _piece_list_problems(checkpoint: Checkpoint) -> Iterator[CheckpointProblem]:
    """What is wrong with the list of pieces itself."""
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
            yield CheckpointProblem(file, "it is no file of a checkpoint")
            return
        if number is not None:
            numbers.append(number[0])
            counts.add(number[1])
    if len(counts) != 1 or sorted(numbers) != list(range(*counts)):
        yield CheckpointProblem(
            STATE_FILE, f"of its pieces there are {', '.join(sorted(files))}: some are missing, or foreign"
        )


def _is_valid_name(file: str) -> bool:
    try:
        checked_name(file)
    except BadInput:
        return False
    return True


# ------------------------------------------------------------------------------------------------ one file


Wanted = Mapping[str, tuple[int, TensorInfo]]
"""By the name of a tensor its number in the state, and its kind."""


class _PieceReader:
    """One file that is read once, from its beginning to its end."""

    def __init__(self, place: Storage, name: str, piece: Piece, seen: OnBytesRead) -> None:
        self.where = f"{name}/{piece.file}"
        self.nbytes = piece.nbytes
        self._storage, self._name, self._piece, self._on_bytes = place, name, piece, seen
        self._digest = hashlib.sha256()
        self._left = piece.nbytes

    def stream(self, use: Callable[[], None]) -> None:
        """Open the file, have it used, and check that all of it was read and that it was the right bytes."""
        try:
            with self._storage.open_file(self._name, self._piece.file) as self._file:
                use()
                self._check()
        except OSError as error:
            raise read_error(self.where, error) from error

    def fill(self, buffer: memoryview) -> None:
        """The next bytes. Damaged if there are not so many."""
        for at in range(0, buffer.nbytes, BLOCK):
            block = buffer[at : at + BLOCK]
            _fill(self._file, block, self._torn)
            self._digest.update(block)
            self._left -= block.nbytes
            self._on_bytes(block.nbytes)

    def take(self, nbytes: int) -> bytes:
        """The next bytes, by themselves."""
        if nbytes > self._left:
            raise DamagedCheckpoint(self.where, "it is not what was written")
        buffer = bytearray(nbytes)
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def verify(self) -> None:
        """Read and check it, and keep nothing."""
        buffer = memoryview(bytearray(min(BLOCK, self._piece.nbytes)))

        def use() -> None:
            while self._left:
                self.fill(buffer[: min(BLOCK, self._left)])

        self.stream(use)

    def _check(self) -> None:
        if self._left:
            raise DamagedCheckpoint(self.where, "it is not what was written")
        if self._file.read(1):
            raise DamagedCheckpoint(self.where, f"it has more than the {self._piece.nbytes} bytes that were written")
        if self._digest.hexdigest() != self._piece.sha256:
            raise DamagedCheckpoint(self.where, "it is not what was written: its sha256 is another one")

    def _torn(self) -> DamagedCheckpoint:
        at = self._file.tell()
        return DamagedCheckpoint(self.where, f"it ends after {at} of {self._piece.nbytes} bytes")


def _fill(file: BinaryIO, buffer: memoryview, torn: Callable[[], DamagedCheckpoint]) -> None:
    while buffer.nbytes:
        count = file.readinto(buffer)  # type: ignore[attr-defined]  # every binary file has it, and the protocol not
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
    """The tensors of a piece, once all of it was the right bytes."""
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
    """Memory for the tensors of a file, in its order. ValueError if the state has not such a one."""
    for each in placed:
        at, tensor = wanted.get(each.name, (-1, None))
        if tensor is None:
            raise ValueError(f"the state has no tensor {each.name}")
        if each.end - each.begin != tensor.nbytes:
            raise ValueError(f"{each.name} has {each.end - each.begin} bytes in it, and {tensor.nbytes} in the state")
        yield at, memoryview(bytearray(tensor.nbytes))
