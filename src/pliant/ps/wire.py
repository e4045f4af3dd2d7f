"""Messages between workers and servers, and between servers, over an authenticated connection.

A message is a small head, then arrays as raw bytes in pieces with a checksum each. Sizes are bounded before memory is
taken. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.errors import BadInput
from pliant.ps.tables.copy_form import require_copy
from pliant.ps.tables.spec import PushPolicy, Table
from pliant.ps.tables.table_copy import Part, Update
from pliant.train.peer.framing import HEAD_MAX, PIECE_MAX, DamagedFrame, PeerConnection, decode
from pliant.train.state.flat import Leaf, State, flatten, restore

BODY_MAX = 1 << 30  # bytes of all arrays of a message
ARRAYS_MAX = 8192
WORKER_NAME_MAX = 255
SEQUENCE_MAX = (1 << 63) - 1

Array = npt.NDArray[Any]


class OpenTables(msgspec.Struct, frozen=True, tag=True):
    """The first message of a worker: the tables of its job."""

    tables: list[Table]
    policy: PushPolicy


class PullRows(msgspec.Struct, frozen=True, tag=True):
    """Arrays: ids, ascending. `step` is that of a live job: the sums of earlier steps are applied first."""

    table: str
    step: int = 0


class PushRows(msgspec.Struct, frozen=True, tag=True):
    """An update. Arrays: buckets, base versions, then ids and values of each table."""

    worker: str
    sequence: int
    creates: bool
    tables: list[str]
    to_backup: bool = False  # from the primary of the buckets


class CopyTables(msgspec.Struct, frozen=True, tag=True):
    """To a backup: the tables of the updates that follow."""

    tables: list[Table]
    policy: PushPolicy


class CompareBuckets(msgspec.Struct, frozen=True, tag=True):
    """To a backup. Arrays: buckets. The answer has their digests and their trails."""


class InstallBuckets(msgspec.Struct, frozen=True, tag=True):
    """To a backup, or to a server that receives copies. Arrays: those of the tree."""

    tree: bytes


class SaveTables(msgspec.Struct, frozen=True, tag=True):
    """Write this server's buckets as part of a checkpoint."""

    number: int


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The request was carried out."""


class NotAnswered(msgspec.Struct, frozen=True, tag=True):
    """The request was not carried out. `again`: the same request may succeed later, under another layout perhaps.

    `stale`: the push was too old, and its worker must compute again.
    """

    why: str
    again: bool = False
    stale: bool = False


Request = OpenTables | PullRows | PushRows | CopyTables | CompareBuckets | InstallBuckets | SaveTables
Reply = Answered | NotAnswered


class _Message(msgspec.Struct, frozen=True, array_like=True):
    head: Request | Reply
    sizes: list[int]


_decoder = msgspec.msgpack.Decoder(_Message)


def send_message(connection: PeerConnection, head: Request | Reply, arrays: Sequence[Array] = ()) -> None:
    """Send a message. Raises OSError or PeerLost if the connection breaks, BadInput if it is too large."""
    views = [_bytes_of(array) for array in arrays]
    if (total := sum(view.nbytes for view in views)) > BODY_MAX:
        raise BadInput(f"A message would have {total} bytes; at most {BODY_MAX} are possible. Use smaller batches.")
    connection.send(msgspec.msgpack.encode(_Message(head, [view.nbytes for view in views])))
    for view in views:
        for at in range(0, view.nbytes, PIECE_MAX):
            connection.send(view[at : at + PIECE_MAX])


def receive_message(connection: PeerConnection) -> tuple[Request | Reply, list[bytearray]]:
    """Receive a message and the bytes of its arrays. Raises OSError or PeerLost."""
    message = decode(_decoder, connection.receive(HEAD_MAX))
    if len(message.sizes) > ARRAYS_MAX or min(message.sizes, default=0) < 0 or sum(message.sizes) > BODY_MAX:
        raise DamagedFrame(f"a message announced {len(message.sizes)} arrays of {sum(message.sizes)} bytes")
    found = []
    for size in message.sizes:
        body = bytearray(size)
        view, at = memoryview(body), 0
        while at < size:
            length, checksum = connection.piece_header()
            if not 0 < length <= size - at:
                raise DamagedFrame(f"a piece of {length} bytes was announced; {size - at} are left")
            connection.receive_piece(view[at : at + length], checksum)
            at += length
        found.append(body)
    return message.head, found


def as_array(body: bytearray, dtype: npt.DTypeLike) -> Array:
    """Return the bytes as an array. Raises DamagedFrame if they cannot be one."""
    if len(body) % np.dtype(dtype).itemsize:
        raise DamagedFrame(f"an array of {len(body)} bytes cannot have the type {np.dtype(dtype)}")
    return np.frombuffer(body, dtype)


def encode_update(update: Update, *, to_backup: bool = False) -> tuple[PushRows, list[Array]]:
    """Return an update as a message."""
    names = [part.table for part in update.parts]
    head = PushRows(update.worker, update.sequence, update.creates, names, to_backup)
    arrays: list[Array] = [update.buckets, update.base]
    for part in update.parts:
        arrays += [part.ids, part.values]
    return head, arrays


def decode_update(head: PushRows, bodies: Sequence[bytearray], dims: dict[str, int]) -> Update:
    """Return the update of a message. `dims` has the row lengths of the known tables."""
    if len(bodies) != 2 + 2 * len(head.tables):
        raise DamagedFrame(f"an update of {len(head.tables)} tables has {len(bodies)} arrays")
    if not (0 < len(head.worker) <= WORKER_NAME_MAX and 0 < head.sequence <= SEQUENCE_MAX):
        raise DamagedFrame(f"an update has the number {head.sequence} of worker {head.worker[:40]!r}")
    buckets, base = decode_buckets(bodies[0]), as_array(bodies[1], np.int64)
    if len(buckets) != len(base):
        raise DamagedFrame(f"an update names {len(buckets)} buckets with {len(base)} versions")
    parts = []
    for at, name in enumerate(head.tables):
        ids, values = as_array(bodies[2 + 2 * at], np.int64), as_array(bodies[3 + 2 * at], np.float32)
        if name not in dims or len(values) != len(ids) * dims[name]:
            raise DamagedFrame(f"an update has {len(ids)} ids and {len(values)} values of table {name!r}")
        require_ascending(ids)
        parts.append(Part(name, ids, values.reshape(len(ids), dims[name])))
    return Update(head.worker, head.sequence, buckets, base, tuple(parts), head.creates)


def decode_buckets(body: bytearray) -> Array:
    """Return the buckets of a message. Raises DamagedFrame if one does not exist."""
    buckets = as_array(body, np.int64)
    if len(buckets) and not (buckets.min() >= 0 and buckets.max() < BUCKETS):
        raise DamagedFrame(f"a message names buckets from {buckets.min()} to {buckets.max()}; there are {BUCKETS}")
    return buckets


def decode_rows(bodies: Sequence[bytearray], ids: int, dim: int, buckets: int) -> tuple[Array, Array]:
    """Return the values of rows, and the versions of their buckets, from an answer of a server."""
    values, versions = (
        as_array(body, kind) for body, kind in zip(exactly(bodies, 2), (np.float32, np.int64), strict=True)
    )
    if len(values) != ids * dim or len(versions) != buckets:
        raise DamagedFrame(f"an answer has {len(values)} values and {len(versions)} versions for {ids} rows of {dim}")
    return values.reshape(ids, dim), versions


def decode_digests(bodies: Sequence[bytearray], buckets: int) -> tuple[Array, Array]:
    """Return the digests and the trails of buckets from an answer of a backup."""
    digests, trails = (as_array(body, np.uint64) for body in exactly(bodies, 2))
    if (len(digests), len(trails)) != (buckets, buckets):
        raise DamagedFrame(f"an answer has {len(digests)} digests and {len(trails)} trails for {buckets} buckets")
    return digests, trails


def exactly(bodies: Sequence[bytearray], count: int) -> Sequence[bytearray]:
    """Return the arrays of a message. Raises DamagedFrame if there are not `count` of them."""
    if len(bodies) != count:
        raise DamagedFrame(f"a message has {len(bodies)} arrays, not {count}")
    return bodies


def require_ascending(ids: Array) -> None:
    """Raise DamagedFrame unless the ids ascend, so that none occurs twice."""
    if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
        raise DamagedFrame("the ids of a request do not ascend")


def encode_copy(copy: dict[str, Any]) -> State:
    """Return a copy of buckets as a tree and leaves, as in a checkpoint."""
    return flatten(copy, _as_leaf, "copy")


def decode_copy(tree: bytes, contents: Sequence[bytearray | memoryview]) -> dict[str, Any]:
    """Return the copy of a tree and its leaves. Raises BadInput if they are damaged."""
    return require_copy(restore(tree, [memoryview(each) for each in contents], _from_leaf))


def _as_leaf(value: object) -> Leaf | None:
    if not isinstance(value, np.ndarray):
        return None
    return Leaf(str(value.dtype), value.shape, _bytes_of(value))


def _bytes_of(array: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _from_leaf(dtype: str, shape: tuple[int, ...], content: memoryview) -> Array:
    if dtype not in ("int64", "float32"):
        raise BadInput(f"The copy of buckets is damaged: it has an array of type {dtype!r}.")
    return np.frombuffer(content, dtype).reshape(shape)
