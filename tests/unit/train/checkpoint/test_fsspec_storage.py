"""Checkpoints in an object store: a real server that speaks S3, on this machine, and fsspec's own memory."""

import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pliant.core.model.checkpoint import Checkpoint
from pliant.errors import BadInput
from pliant.file_systems import raising_oserror
from pliant.train.checkpoint import (
    DamagedCheckpoint,
    PieceWriter,
    Storage,
    StorageUnreachable,
    find_problems,
    open_storage,
    read_checkpoint,
    read_manifest,
)
from pliant.train.checkpoint import fsspec_storage as objects_module
from pliant.train.checkpoint.errors import read_error
from unit.train.checkpoint.states import FACTS, LINEAGE, numbers, publish, training, write


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Return where an object store listens that no other member knows."""
    moto = pytest.importorskip("moto.server", reason="the object store is not installed: `make long` has it")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        store.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of one's own, reached as any member reaches one: by what fsspec was told beforehand."""
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "k", "secret": "s", "endpoint_url": server})
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    name = f"b-{uuid.uuid4().hex}"
    fs.mkdir(name)
    yield name
    fs.clear_instance_cache()


def test_a_store_in_trouble_is_out_of_reach_and_nothing_in_it_is_damaged() -> None:
    def trouble() -> None:
        raise OSError(errno.EIO, "the key is disabled")

    with pytest.raises(OSError, match="the key is disabled") as caught:
        raising_oserror(trouble)
    assert isinstance(read_error("s3://b/piece", caught.value), StorageUnreachable)


@pytest.fixture(params=["s3", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/some/folder"
    return f"memory://{uuid.uuid4().hex}/some/folder"


@pytest.fixture
def place(url: str) -> Storage:
    return open_storage(url)


@pytest.mark.parametrize("count", [1, 3])
def test_what_was_written_is_read(place: Storage, url: str, count: int) -> None:
    state = training(2000)
    checkpoint = publish(place, "one", state, count)
    received = read_checkpoint(open_storage(url), checkpoint)
    assert received.tree == state.tree
    assert [bytes(each) for each in received.contents] == [bytes(leaf.content) for leaf in state.leaves]
    assert not any(each.readonly for each in received.contents)
    manifest = read_manifest(open_storage(url), "one")
    assert (manifest.checkpoint, manifest.facts) == (checkpoint, FACTS)


def test_a_large_piece_goes_up_and_comes_down_in_parts(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "BLOCK", 5 << 20)  # the least that S3 takes for a part
    state = training(3 << 20)
    checkpoint = publish(place, "one", state)
    assert checkpoint.pieces[0].nbytes > 4 * objects_module.BLOCK
    assert [each.nbytes for each in read_checkpoint(place, checkpoint).contents] == [
        leaf.nbytes for leaf in state.leaves
    ]
    assert find_problems(place, checkpoint) == ()


def test_names_are_those_with_a_manifest(place: Storage) -> None:
    assert (place.checkpoint_names(), place.unfinished_names(), place.file_sizes("none")) == ([], [], {})
    publish(place, "b", training())
    publish(place, "a", training(), 2)
    pieces = write(place, "c", training())
    place.claim("me")
    assert (place.checkpoint_names(), place.unfinished_names()) == (["a", "b"], ["c"])
    assert place.file_sizes("c") == {piece.file: piece.nbytes for piece in pieces}


def test_what_is_abandoned_leaves_nothing(place: Storage) -> None:
    writer = PieceWriter(place, "one", training(1 << 20).tree, 0, 1, "m")
    writer.write(memoryview(bytes(2 << 20)))
    writer.abandon()
    writer.abandon()
    assert (place.checkpoint_names(), place.unfinished_names(), place.file_sizes("one")) == ([], [], {})


def test_nothing_is_seen_before_it_is_whole(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "BLOCK", 5 << 20)
    place = open_storage(f"s3://{bucket}/x")
    state = training(3 << 20)
    writer = PieceWriter(place, "one", state.tree, 0, 1, "m")
    writer.write(state.leaves[0].content)
    assert place.file_sizes("one") == {}
    writer.abandon()
    assert (place.checkpoint_names(), place.unfinished_names(), place.file_sizes("one")) == ([], [], {})


DYING = """
import os, signal, sys
from pliant.train.checkpoint import PieceWriter, fsspec_storage, open_storage
from unit.train.checkpoint.states import training

fsspec_storage.BLOCK = 5 << 20
state = training(3 << 20)
writer = PieceWriter(open_storage(sys.argv[1]), "one", state.tree, 0, 1, "m")
for leaf in writer.leaves:
    writer.write(state.leaves[leaf].content)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_nothing_that_is_seen(bucket: str, server: str) -> None:
    told = {"FSSPEC_S3_KEY": "k", "FSSPEC_S3_SECRET": "s", "FSSPEC_S3_ENDPOINT_URL": server}
    tests = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", DYING, f"s3://{bucket}/x"]
    done = subprocess.run(command, env={**os.environ, **told, "PYTHONPATH": tests}, check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL
    place = open_storage(f"s3://{bucket}/x")
    assert (place.checkpoint_names(), place.unfinished_names(), place.file_sizes("one")) == ([], [], {})
    assert read_checkpoint(place, publish(place, "one", training())).tree == training().tree


def test_a_name_is_removed_whole_and_may_be_removed_again(place: Storage) -> None:
    publish(place, "one", training(), 2)
    publish(place, "two", training())
    place.remove("one")
    place.remove("one")
    assert (place.checkpoint_names(), place.unfinished_names(), place.file_sizes("one")) == (["two"], [], {})


def heard_by_four(url: str) -> set[str]:
    start = threading.Barrier(4)

    def ask() -> str:
        place = open_storage(url)
        start.wait(10)
        place.claim("me")
        start.wait(10)  # a member claims its place when it starts, and its first checkpoint comes later
        return place.claim("me").storage_id

    with ThreadPoolExecutor(4) as pool:
        return {asked.result() for asked in [pool.submit(ask) for _ in range(4)]}


def test_everybody_who_asks_hears_one_identity(url: str) -> None:
    heard = heard_by_four(url)
    assert len(heard) == 1
    assert open_storage(f"{url}-other").claim("me").storage_id not in heard


class Refusing(MemoryFileSystem):  # type: ignore[misc]  # of fsspec nothing is known
    """A store that knows no conditional writes, and says so in its own way."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create":
            raise OSError(errno.EINVAL, "a header you provided implies functionality that is not implemented")
        super().pipe_file(path, value, mode, **kwargs)


class Heedless(MemoryFileSystem):  # type: ignore[misc]
    """A store that ignores the condition."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value, "overwrite", **kwargs)


@pytest.mark.parametrize("kind", [Refusing, Heedless])
def test_a_store_without_conditional_writes_has_one_identity_all_the_same(kind: type[MemoryFileSystem]) -> None:
    fsspec.register_implementation(kind.__name__.lower(), kind, clobber=True)
    url = f"{kind.__name__.lower()}://{uuid.uuid4().hex}/folder"
    assert len(heard_by_four(url)) == 1


def test_a_damaged_object_is_named(place: Storage) -> None:
    checkpoint = publish(place, "one", training())
    piece = checkpoint.pieces[0]
    with place.open_file("one", piece.file) as file:
        whole = file.read()
        file.seek(8)
        assert file.read(4) == whole[8:12]
    place.write_file("one", piece.file, whole[:-1])
    with pytest.raises(DamagedCheckpoint, match=f"it ends after {piece.nbytes - 1} of {piece.nbytes} bytes"):
        read_checkpoint(place, checkpoint)
    place.write_file("one", piece.file, whole[:-1] + b"!")
    assert [problem.file for problem in find_problems(place, checkpoint)] == [piece.file]
    with pytest.raises(DamagedCheckpoint, match=r"one/2-of-3-m\.safetensors is damaged"):
        read_checkpoint(place, missing_the_last(checkpoint))
    with pytest.raises(DamagedCheckpoint, match=r"two/manifest\.json is damaged: the file is missing"):
        read_manifest(place, "two")


def missing_the_last(checkpoint: Checkpoint) -> Checkpoint:
    piece, tree = checkpoint.pieces
    names = [f"{index}-of-3-m.safetensors" for index in (2, 1, 0)]
    return replace(checkpoint, pieces=(tree, *(replace(piece, file=name) for name in names)))


def test_a_store_that_does_not_answer_is_out_of_reach(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    away = {
        "key": "k",
        "secret": "s",
        "endpoint_url": "http://127.0.0.1:9",
        "config_kwargs": {"retries": {"total_max_attempts": 1}},
    }
    monkeypatch.setitem(fsspec.config.conf, "s3", away)
    checkpoint = Checkpoint(LINEAGE, "one", 1, ())
    place = open_storage(f"s3://{bucket}/x")
    with pytest.raises(StorageUnreachable, match=r"one/manifest\.json cannot be read"):
        read_manifest(place, checkpoint.name)
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9"):
        write(place, "one", training())
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9"):
        place.checkpoint_names()


def test_a_bucket_that_is_not_there_says_so(bucket: str) -> None:
    place = open_storage(f"s3://{bucket}-other/x")
    with pytest.raises(OSError, match=r"(?i)bucket"):
        publish(place, "one", training())
    gc.collect()  # what was begun is dropped, and asks nothing of the server any more


def test_a_url_that_fsspec_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput, match="nonsense://x cannot be used: Protocol not known"):
        open_storage("nonsense://x")


def test_without_fsspec_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from pliant.errors import BadInput\n"
        "from pliant.train.checkpoint import open_storage\n"
        "try: open_storage('s3://x')\n"
        "except BadInput as error: print(error.why)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pliant[fsspec]'" in done.stdout


def test_memory_of_reading_is_what_is_handed_out(place: Storage) -> None:
    """A file of fsspec's gives bytes of its own; they are passed on a block at a time."""
    import tracemalloc

    state = training(1 << 20)
    checkpoint = publish(place, "one", state)
    del state
    tracemalloc.start()
    try:
        received = read_checkpoint(place, checkpoint)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(each.nbytes for each in received.contents) == 8 * (1 << 20) + 16
    assert peak < 8 * (1 << 20) + 3 * objects_module.BLOCK
    assert received.contents[1] == numbers(3, 1).content
