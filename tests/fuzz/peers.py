"""Parsers of what members send to each other."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import zlib
from collections.abc import Callable

import msgspec
import numpy as np

from fuzz.parser import Parser
from pliant.core.data.ledger import GENESIS
from pliant.core.member.control_words import Purpose, Word
from pliant.core.model.names import MemberId
from pliant.errors import BadInput
from pliant.train.peer import framing, kv, rpc
from pliant.train.reduce.control_row import ROW_FLOATS, ControlRow, pack, unpack, weighted_means
from pliant.train.state import transfer
from pliant.train.state.flat import flatten, leaf_sizes, restore
from unit.core.build import lines
from unit.train.checkpoint.states import as_leaf, from_leaf, strange, training

ME, PEER = MemberId("b"), MemberId("a")
KEY = bytes(32)
REFUSED = (framing.PeerLost, framing.GenerationUnknown, OSError)
REPLY_ERRORS = (*REFUSED, rpc.RequestRefused, BadInput)
RANKS = 2


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack("!II", len(each), zlib.crc32(each)) + each for each in messages)


def over_a_socket(use: Callable[[framing.PeerConnection], object]) -> Callable[[bytes], None]:
    """Let `use` read the bytes from a connection that then ends. Half of the inputs get correct frames."""

    def parse(data: bytes) -> None:
        sent = framed(data) if len(data) % 2 and len(data) < framing.HEAD_MAX else data
        here, there = socket.create_server(("127.0.0.1", 0)), socket.socket()
        with here:
            there.connect(here.getsockname())
            served, _ = here.accept()
        sender = threading.Thread(target=_send, args=(there, sent))
        sender.start()
        connection = framing.PeerConnection(served, framing.deadline_check(5.0))
        try:
            use(connection)
        finally:
            connection.close()
            sender.join()
            there.close()

    return parse


def _send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it was refused before all of it was read


def _hellos() -> list[bytes]:
    hello = framing.Hello("pliant-peers-1", 3, PEER, ME, bytes(32))
    raw = msgspec.msgpack.encode(hello)
    return [raw, raw[:-1], framed(raw), framed(raw, bytes(32))]


def _challenges() -> list[bytes]:
    raw = [
        msgspec.msgpack.encode(each)
        for each in (framing.Challenge(False), framing.Challenge(True, bytes(32), bytes(32)))
    ]
    return [*raw, *map(framed, raw)]


def _requests() -> list[bytes]:
    sent = [
        rpc.RpcNotification(1, "store", b"head"),
        rpc.RpcNotification(2, "x", b""),
        rpc.RpcRequest("state", b"head"),
    ]
    raw = [msgspec.msgpack.encode(each) for each in sent]
    return [*raw, framed(*raw), framed(raw[0], raw[0])]


def _replies() -> list[bytes]:
    header = msgspec.msgpack.encode(rpc.RpcReplyHeader(b"head", 10))
    return [framed(header, b"0123456789"), framed(msgspec.msgpack.encode(rpc.RpcRefusal("no"))), header]


def _serve(connection: framing.PeerConnection) -> None:
    def refuse(*_: object) -> tuple[bytes, list[memoryview]]:
        raise rpc.RequestRefused("no")

    rpc.RpcReceiver(1, PEER, lambda *_: None, refuse).serve(connection)


def _ask(connection: framing.PeerConnection) -> None:
    reply = rpc.send_request(connection, "state", b"", lambda: None, "it failed")
    reply.readinto(memoryview(bytearray(min(reply.length, 1 << 16))))


def connections() -> list[Parser]:
    def keys(_: int, __: MemberId) -> bytes:
        return KEY

    return [
        Parser(
            "hello", over_a_socket(lambda c: framing.authenticate_peer(c, ME, keys)), _hellos, REFUSED, always_ends=True
        ),
        Parser(
            "challenge of a peer",
            over_a_socket(lambda c: framing.authenticate_to_peer(c, 3, ME, PEER, KEY)),
            _challenges,
            REFUSED,
            always_ends=True,
        ),
        Parser("request of a peer", over_a_socket(_serve), _requests, REFUSED, always_ends=True),
        Parser(
            "reply of a peer", over_a_socket(_ask), _replies, (*REFUSED, rpc.RequestRefused, BadInput), always_ends=True
        ),
    ]


def values() -> list[Parser]:
    published = kv.PeerValues()

    def receive(data: bytes) -> None:
        published.receive(1, data)
        published.forget_below(0)

    def held() -> object:
        return len(published._values.get(1, {}))

    return [
        Parser(
            "value of a peer",
            receive,
            lambda: [kv.encode_value(f"k{at}", bytes(at)) for at in range(4)],
            (ValueError,),
            held,
        ),
        Parser("control rows", _rows, _row_bytes, (BadInput,)),
    ]


def _row_bytes() -> list[bytes]:
    word = Word(purpose=Purpose.STEP, generation=1, step=2, lineage=GENESIS, holds=True)
    return [pack(ControlRow(word, 1.5, 77, 2.0, (0.1, 0.2))).tobytes() * RANKS]


def _rows(data: bytes) -> None:
    """A bucket always has its size; only its content can be anything."""
    size = ROW_FLOATS * 4 * RANKS
    whole = (data + bytes(size))[:size]
    weighted_means(unpack(np.frombuffer(whole, dtype=np.float32), RANKS))


def states() -> list[Parser]:
    trees = [training(4).tree, flatten(strange(), as_leaf).tree]
    preface = msgspec.msgpack.encode(transfer.StripePreface(lines(GENESIS, 1, 2), trees[0]))
    heads = [
        msgspec.msgpack.encode(transfer.StripeHeader(GENESIS, 5, 100)),
        msgspec.msgpack.encode(transfer.GradientHeader(lines(GENESIS, 1, 1)[0], 10)),
        msgspec.msgpack.encode(transfer.StripeRequest(0, 2)),
        preface,
    ]

    def decode_heads(data: bytes) -> None:
        for kind in (transfer.StripeHeader, transfer.GradientHeader, transfer.StripeRequest, transfer.StripePreface):
            with contextlib.suppress(*transfer.TRANSFER_ERRORS):
                transfer.decode_head(data, kind)

    def restore_tree(data: bytes) -> None:
        sizes = leaf_sizes(data)
        contents = [memoryview(bytes(min(each, 1 << 16))) for each in sizes[:1000]]
        restore(data, contents, from_leaf)

    return [
        Parser("head of a transfer", decode_heads, lambda: heads),
        Parser("tree of a state", restore_tree, lambda: trees, (BadInput,)),
    ]


PARSERS = [*connections(), *values(), *states()]
