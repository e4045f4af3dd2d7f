"""Parsers of parameter servers: their messages, the answers that workers and servers read, and their checkpoints."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np

from fuzz.parser import Parser
from fuzz.peers import REFUSED, framed, over_a_socket
from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, NONE, BucketLayout, ServerAddress
from pliant.errors import BadInput
from pliant.ps import wire as w
from pliant.ps.saving import TableSet, parse_part_name
from pliant.ps.server import ParameterServer
from pliant.ps.tables.hashing import buckets_of
from pliant.ps.tables.optimizers import SGD, Adam, Ftrl
from pliant.ps.tables.spec import PushPolicy, Table
from pliant.ps.tables.table_copy import Part, StaleUpdate, TableCopy, Update
from pliant.train.peer import framing

ME = MemberId("ps-a")
NUMBER = 3  # of the layout
TABLES = [Table("t", 2, SGD(1.0)), Table("u", 3, Adam(0.1)), Table("v", 1, Ftrl(0.1, l1=0.5))]
POLICY = PushPolicy(staleness_max=1000)
IDS = np.arange(0, 60, 3, dtype=np.int64)
ROWS_MAX = 50_000  # in one server, so that a long run does not fill the memory


def update(sequence: int, *, creates: bool = False) -> Update:
    parts = tuple(Part(each.name, IDS, np.ones((len(IDS), each.dim), np.float32)) for each in TABLES[:2])
    buckets = np.unique(np.concatenate([buckets_of(each, IDS) for each in TABLES[:2]]))
    return Update(f"w{sequence}", sequence, buckets, np.full(len(buckets), -1), parts, creates)


def filled() -> TableCopy:
    """Return copies of all buckets, with rows of three tables and the numbers of three workers."""
    made = TableCopy()
    made.define(TABLES, POLICY)
    made.hold(np.arange(BUCKETS))
    for sequence in (1, 2, 3):
        made.apply(update(sequence, creates=sequence == 1))
    return made


def packed(head: w.Request | w.Reply, arrays: list[w.Array]) -> bytes:
    """Return a message as one value, which is easier to damage than its frames are."""
    return msgspec.msgpack.encode([head, [array.tobytes() for array in arrays]])


@cache
def requests() -> list[bytes]:
    copy = w.encode_copy(filled().extract(np.arange(0, BUCKETS, 100)))
    leaves = [np.frombuffer(leaf.content, np.uint8) for leaf in copy.leaves]
    heads: list[tuple[w.Request | w.Reply, list[w.Array]]] = [
        (w.OpenTables(TABLES, POLICY), []),
        (w.CopyTables(TABLES, POLICY), []),
        (w.PullRows("t"), [IDS]),
        w.encode_update(update(4)),
        w.encode_update(update(5), to_backup=True),
        w.encode_update(update(6, creates=True)),
        (w.CompareBuckets(), [np.arange(BUCKETS)]),
        (w.InstallBuckets(copy.tree), leaves),
        (w.SaveTables(7), []),
        (w.Answered(), []),
    ]
    return [packed(*each) for each in heads]


def streams() -> list[bytes]:
    """Return messages as they are on a connection, and heads without a frame."""
    found = []
    for each in requests():
        head, bodies = msgspec.msgpack.decode(each)
        raw = msgspec.msgpack.encode([head, [len(body) for body in bodies]])
        found += [framed(raw, *(body for body in bodies if body)), raw]
    return found


class _Served:
    """A server that holds all buckets, asked without a connection. It begins again when it has many rows."""

    def __init__(self) -> None:
        self._server: ParameterServer | None = None

    def start(self) -> ParameterServer:
        every, none = (0,) * BUCKETS, (NONE,) * BUCKETS
        layout = BucketLayout(NUMBER, (ServerAddress(ME, "127.0.0.1:1"),), every, none, none)
        server = ParameterServer("127.0.0.1", ME, lambda _: None)
        server.follow(layout, bytes(32), 1)
        while server._number != NUMBER:
            server._thread.join(0.001)
        server._copies.define(TABLES, POLICY)
        assert server._roles is not None
        server._roles.kept_for_others[:] = True  # so that it carries out what primaries send
        return server

    @property
    def server(self) -> ParameterServer:
        if self._server is None:
            self._server = self.start()
        return self._server

    def answer(self, data: bytes) -> None:
        head, bodies = parts(data)
        if sum(rows.count for rows in self.copies._tables.values()) > ROWS_MAX:
            self.server.close()
            self._server = None
        self.server._answer(NUMBER, head, bodies)

    @property
    def copies(self) -> TableCopy:
        return self.server._copies

    def state(self) -> object:
        copies = self.copies
        counts = [rows.count for rows in copies._tables.values()]
        return copies.version.sum(), copies.held.sum(), len(copies.tables), counts


def parts(data: bytes) -> tuple[w.Request | w.Reply, list[bytearray]]:
    """Return the head and the arrays of a packed message, as `receive_message` returns them."""
    head, bodies = _list_of(data, 2)
    if not isinstance(bodies, list) or not all(isinstance(each, bytes) for each in bodies):
        raise BadInput("Its bodies are not bytes.")
    message = framing.decode(w._decoder, msgspec.msgpack.encode([head, [len(each) for each in bodies]]))
    return message.head, [bytearray(each) for each in bodies]


def _list_of(data: bytes, count: int) -> list[Any]:
    try:
        found = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadInput("It is not packed.") from error
    if not isinstance(found, list) or len(found) != count:
        raise BadInput("It does not have its parts.")
    return found


def _copies() -> list[bytes]:
    found = []
    for buckets in (np.arange(BUCKETS), np.arange(3), np.zeros(0, np.int64)):
        state = w.encode_copy(filled().extract(buckets))
        tree = msgspec.msgpack.decode(state.tree)
        found.append(msgspec.msgpack.encode([tree, [bytes(leaf.content) for leaf in state.leaves]]))
    return found


def _restore(data: bytes) -> None:
    """Install a copy as a server does that continues from a checkpoint."""
    tree, contents = _list_of(data, 2)
    if not isinstance(contents, list) or not all(isinstance(each, bytes) for each in contents):
        raise BadInput("Its contents are not bytes.")
    copy = w.decode_copy(msgspec.msgpack.encode(tree), [bytearray(each) for each in contents])
    made = filled()
    made.install(copy, np.arange(BUCKETS) % 2 == 0)
    made.digests(np.arange(BUCKETS))
    made.apply(update(9))


def _answers() -> list[bytes]:
    rows = [np.ones((len(IDS), 2), np.float32).tobytes(), np.arange(7).tobytes()]
    return [msgspec.msgpack.encode(rows), msgspec.msgpack.encode([np.arange(7, dtype=np.uint64).tobytes()])]


def _read_answer(data: bytes) -> None:
    try:
        found = msgspec.msgpack.decode(data, type=list[bytes])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadInput("It is not packed.") from error
    bodies = [bytearray(each) for each in found]
    if len(bodies) == 1:
        w.decode_digests(bodies, 7)
    else:
        w.decode_rows(bodies, len(IDS), 2, 7)


_served = _Served()

PARSERS = [
    Parser("message of a parameter server", over_a_socket(w.receive_message), streams, REFUSED),
    Parser(
        "request to a parameter server",
        _served.answer,
        requests,
        (*REFUSED, BadInput, StaleUpdate),
        _served.state,
    ),
    Parser("answer of a parameter server", _read_answer, _answers, (*REFUSED, BadInput)),
    Parser("checkpoint of tables", _restore, _copies, (BadInput,)),
    Parser(
        "name of a part of tables",
        lambda data: parse_part_name(data[:255].decode("utf-8", "replace")),
        lambda: [TableSet(1, 2, 3).part(0, 2).encode()],
    ),
]
