"""Parsers of files: checkpoints, tokens, the files of a job's folder, logs, and what clouds and programs write."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from fuzz.parser import Parser
from pliant.agent.job_dir import JobDir
from pliant.agent.last_command import CommandLine, describe_changes, read_last_command, write_last_command
from pliant.agent.logs import failure
from pliant.agent.logs.tail import Tail
from pliant.agent.notices import clouds
from pliant.agent.notices.base import Trouble, written_notice
from pliant.agent.process import usage
from pliant.chaos.sockets import parse_tcp_table
from pliant.credentials import make_token, read_token
from pliant.errors import BadInput
from pliant.stores.sqlite.mark import StoreMark
from pliant.train.checkpoint.manifest import Manifest, decode_manifest, encode_manifest
from pliant.train.checkpoint.safetensors_header import LENGTH, decode_header, encode_header, parse_piece_name
from pliant.train.checkpoint.storage import StorageOwner
from pliant.train.checkpoint.tree_json import json_to_tree, tensors_of, tree_to_json
from pliant.train.live.step_log import StepLog
from pliant.train.state.flat import flatten
from unit.core.build import checkpoint
from unit.train.checkpoint.states import FACTS, LINEAGE, as_leaf, strange, training

FOLDER = Path(tempfile.mkdtemp(prefix="pliant-fuzz-"))
DEMO = JobDir(FOLDER / "home" / "jobs" / "demo")
DEMO.make()


def in_file(path: Path, read: Callable[[Path], object], mode: int = 0o600) -> Callable[[bytes], None]:
    """Write the bytes to a file, then read it. A reader must leave the file as it is."""

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(mode)
        try:
            read(path)
        finally:
            assert path.read_bytes() == data, "a reader changed the file"

    return parse


def checkpoints() -> list[Parser]:
    trees = [training(4).tree, flatten(strange(), as_leaf).tree]
    texts = [tree_to_json(tree).encode() for tree in trees]
    header = encode_header(tensors_of(trees[0]), {"format": "x"})[LENGTH.size :]
    manifest = encode_manifest(Manifest(checkpoint(LINEAGE, "step-1"), FACTS))
    return [
        Parser("tree as JSON", lambda data: tensors_of(json_to_tree(data.decode())), lambda: texts, (ValueError,)),
        Parser("header of safetensors", decode_header, lambda: [header], (ValueError,)),
        Parser("manifest", decode_manifest, lambda: [manifest], (ValueError,)),
        Parser(
            "manifest with a correct hash",
            lambda data: decode_manifest(_hashed(data)),
            lambda: [manifest],
            (ValueError,),
        ),
        Parser(
            "name of a piece",
            lambda data: parse_piece_name(data[:255].decode("utf-8", "replace")),
            lambda: [b"0-of-2-m.safetensors"],
        ),
        Parser("owner of a storage", StorageOwner.parse, lambda: [StorageOwner("id", "job").content]),
    ]


def _hashed(data: bytes) -> bytes:
    """Give a manifest the hash that its content needs, so that what lies behind the check is reached."""
    body = data.rpartition(b',\n  "check"')[0] or data
    return body + f',\n  "check": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def of_a_job() -> list[Parser]:
    endpoint = json.dumps({"url": "http://127.0.0.1:7711", "token_file": "token", "pid": 77}).encode()
    line = CommandLine("train.py", ("--lr", "0.1"), {"workers": "2"})
    write_last_command(DEMO.command, line)
    command, token = DEMO.command.read_bytes(), make_token().text.encode() + b"\n"

    def changes(path: Path) -> None:
        if (found := read_last_command(path)) is not None:
            describe_changes(found, line)

    return [
        Parser("token file", in_file(FOLDER / "token", read_token), lambda: [token], (BadInput,)),
        Parser(
            "endpoint.json", in_file(DEMO.endpoint, lambda _: DEMO.read_endpoint()), lambda: [endpoint], (BadInput,)
        ),
        Parser(
            "process in endpoint.json", in_file(DEMO.endpoint, lambda _: DEMO.coordinator_pid()), lambda: [endpoint]
        ),
        Parser(
            "lock",
            in_file(DEMO.path / "lock", lambda _: (DEMO.is_run(), DEMO.runner_pid())),
            lambda: [b"run 77 host\n"],
        ),
        Parser("command.json", in_file(DEMO.command, changes), lambda: [command]),
        Parser("mark of a store", in_file(FOLDER / "store.db.mark", _read_mark), _marks),
    ]


def _read_mark(path: Path) -> None:
    mark = StoreMark(path)
    with contextlib.closing(mark):
        mark.read()


def _marks() -> list[bytes]:
    path = FOLDER / "made.mark"
    with contextlib.closing(StoreMark(path)) as mark:
        mark.write("identity", 7, 99)
    return [path.read_bytes()]


def logs() -> list[Parser]:
    path = FOLDER / "m1.log"

    def tail(_: Path) -> None:
        log = Tail(path)
        list(log.begin(3))
        list(log.more())
        list(log.end())

    log = b"".join(b"line %d\n" % at for at in range(50)) + b"half"
    trace = b'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: no\n'
    flat = json.dumps({"message": "no", "py_callstack": "x", "timestamp": "1"}).encode()
    deep = json.dumps({"message": {"message": "no", "extraInfo": {"py_callstack": "x", "timestamp": "1"}}}).encode()
    csv = b"step,epoch,seconds,loss\n1,0,1.0,0.5\n2,0,1.5,0.25\n"
    return [
        Parser("log", in_file(path, tail), lambda: [log, trace]),
        Parser("error file", in_file(FOLDER / "error.json", failure._read_error_file), lambda: [flat, deep]),
        Parser(
            "traceback in a log",
            lambda data: failure._traceback(data.decode("utf-8", "replace").splitlines()),
            lambda: [log, trace * 2],
        ),
        Parser("metrics.csv", _read_csv, lambda: [csv], (BadInput,)),
    ]


def _read_csv(data: bytes) -> None:
    folder = FOLDER / "csv"
    folder.mkdir(exist_ok=True)
    (folder / "metrics.csv").write_bytes(data)
    StepLog(folder)._read()


def notices() -> list[Parser]:
    spot = b'{"action": "terminate", "time": "2026-11-17T08:22:00Z"}'
    when = [b"2026-11-17T08:22:00Z", b"Mon, 19 Sep 2026 18:29:47 GMT"]
    azure = json.dumps(
        {
            "DocumentIncarnation": 1,
            "Events": [
                {"EventType": "Preempt", "Resources": ["vm"], "NotBefore": when[1].decode(), "Description": "x"}
            ],
        }
    ).encode()
    return [
        Parser(
            "notice in a file",
            lambda data: written_notice(data.decode("utf-8", "replace"), "it"),
            lambda: [b"30\nspot\n"],
        ),
        Parser("notice of AWS", _cloud(lambda: clouds.AwsWatcher(now=lambda: 0.0)), lambda: [spot], (Trouble,)),
        Parser(
            "notice of Google Cloud",
            _cloud(lambda: clouds.GcpWatcher("preempted")),
            lambda: [b"TRUE", b"FALSE"],
            (Trouble,),
        ),
        Parser("notice of Azure", _cloud(_azure), lambda: [azure], (Trouble,)),
        Parser("time of a notice", lambda data: clouds._until(data.decode("utf-8", "replace"), 0.0), lambda: when),
    ]


def _azure() -> clouds.AzureWatcher:
    watcher = clouds.AzureWatcher(now=lambda: 0.0)
    watcher._machine = "vm"
    return watcher


Watcher = clouds.AwsWatcher | clouds.GcpWatcher | clouds.AzureWatcher


def _cloud(make: Callable[[], Watcher]) -> Callable[[bytes], None]:
    """Let a watcher find the bytes as the body of each answer."""

    def parse(data: bytes) -> None:
        def answered(*_: object) -> clouds.MetadataAnswer:
            return clouds.MetadataAnswer(200, {"metadata-flavor": "Google", "etag": "1"}, data)

        with mock.patch.object(clouds, "ask", answered):
            make().look(lambda _: None)

    return parse


def proc() -> list[Parser]:
    stat = Path("/proc/self/stat").read_bytes()
    table = Path("/proc/self/net/tcp").read_bytes()[:600]
    return [
        Parser("/proc/PID/stat", usage._parsed, lambda: [stat], (ValueError, IndexError, OverflowError)),
        Parser(
            "/proc/net/tcp",
            lambda data: list(parse_tcp_table(data.decode("latin-1"), range(1 << 62))),
            lambda: [table],
            (ValueError, IndexError),
        ),
    ]


PARSERS = [*checkpoints(), *of_a_job(), *logs(), *notices(), *proc()]
