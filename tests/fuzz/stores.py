"""Stores: a file with damaged pages, values and answers of etcd, and segments of an archive.

A damaged file is refused, or returns nothing but what was written.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

from fuzz.parser import Parser
from pliant.errors import PliantError
from pliant.stores.archive import segments
from pliant.stores.base import Write
from pliant.stores.etcd import EtcdAccess, holds, values
from pliant.stores.etcd.client import EtcdClient
from pliant.stores.etcd.reading import decode_segment
from pliant.stores.etcd.transactions import EtcdEntry, TxnAnswer
from pliant.stores.sqlite import SqliteStore

FOLDER = Path(tempfile.mkdtemp(prefix="pliant-fuzz-store-"))
EVENTS = {b'{"type":"X","n":%d}' % number for number in range(1, 41)}
RECORDS = {b"record %d" % number for number in range(4)}


def whole() -> bytes:
    """Return the file of a store with some jobs."""
    path = FOLDER / "whole.db"
    with SqliteStore(path) as store:
        for number in range(4):
            some = tuple(sorted(EVENTS)[10 * number : 10 * number + 10])
            store.write([Write(f"job-{number}", 0, some[:5], b"record %d" % number)])
            store.write([Write(f"job-{number}", 5, some[5:])])
        store.hold("leader", "me", 3.0, 1.0)
    return path.read_bytes()


def read_everything(data: bytes) -> None:
    place = FOLDER / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "store.db").write_bytes(data)
    try:
        _read(place / "store.db")
    finally:
        shutil.rmtree(place)


def _read(path: Path) -> None:
    with SqliteStore(path, wait_s=0.2) as store:
        for name in store.jobs():
            stored = store.read(name)
            if stored is not None:
                assert stored.record in RECORDS, "a damaged record was returned"
                assert EVENTS.issuperset(stored.tail), "a damaged event was returned"
            found = store.events(name, 0, 100)
            assert EVENTS.issuperset(entry.data for entry in found), "a damaged event was returned"


def of_etcd() -> list[Parser]:
    joined = values.join_events(sorted(EVENTS)[:3])
    packed = [values.pack(7, joined).value, values.pack(7, b"x").value, values.pack(7, bytes(range(256))).value]
    chunked = values.pack(7, random.Random(1).randbytes(values.CHUNK_BYTES + 1)).value
    entry = {"key": "a2V5", "value": "dmFsdWU=", "create_revision": "3", "mod_revision": "4"}
    answer = {"header": {"revision": "9"}, "succeeded": True, "responses": [{"response_range": {"kvs": [entry]}}]}
    holder = {"owner": "me", "ttl_s": 3.0, "url": "http://h:1"}
    refusal = {"error": "etcdserver: no leader", "code": 14, "message": "etcdserver: mvcc: database space exceeded"}
    client = EtcdClient(EtcdAccess(("127.0.0.1:1",), "x"))
    return [
        Parser("value in etcd", lambda data: values.unpack("x", data, 7), lambda: packed, (PliantError,)),
        Parser(
            "value in etcd with a correct checksum",
            lambda data: values.split_events("x", values.unpack("x", _summed(data), 7)),
            lambda: packed[:1],
            (PliantError,),
        ),
        Parser("events in etcd", lambda data: values.split_events("x", data), lambda: [joined], (PliantError,)),
        Parser("chunks in etcd", lambda data: values.chunks_of("x", _summed(data)), lambda: [chunked], (PliantError,)),
        Parser("segment in etcd", lambda data: decode_segment(b"9", data), lambda: [b"3 name"], (PliantError,)),
        Parser(
            "hold in etcd",
            lambda data: holds._holder(EtcdEntry(b"key", data)),
            lambda: [json.dumps(holder).encode()],
            (PliantError,),
        ),
        Parser(
            "answer of etcd",
            lambda data: client._decoded(data, TxnAnswer),
            lambda: [json.dumps(answer).encode()],
            (PliantError,),
        ),
        Parser("error of etcd", lambda data: explained(client, data), lambda: [json.dumps(refusal).encode()]),
    ]


def explained(client: EtcdClient, data: bytes) -> None:
    for status in (400, 404, 503):
        assert len(str(client._explained(status, data, changes=True))) < 2000, "the message grew with the answer"


def _summed(data: bytes) -> bytes:
    """Give a value the checksum that it needs, so that what lies behind the check is reached."""
    kind, body = data[:1], data[13:]
    return kind + struct.pack("<QI", 7, zlib.crc32(body, 7)) + body


PARSERS = [
    Parser("store file", read_everything, lambda: [whole()], (PliantError,)),
    Parser("segment file", segments.unpack, lambda: [segments.pack(sorted(EVENTS))]),
    *of_etcd(),
]
