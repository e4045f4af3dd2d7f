"""Data workers: they read ahead what is expected, serve nothing stale, and hold nothing of their parent (H20)."""

import contextlib
import os
import random
import select
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.torch.data.workers import DEPTH, DataWorkerLost
from pliant.train.data.loader import MicroBatch, SampleError, SampleIndices, cut_micro_batches
from unit.torch.data.loading import Loader

SAMPLES = 64
GRID = Grid(SAMPLES, 8, 8, 2)
INDICES = SampleIndices(GRID, seed=7)
PARTS = [part for step in range(1, GRID.total_steps + 1) for part in cut_micro_batches(GRID, step, range(8), 4)]


class Watched(Dataset[Any]):
    """A data set that tells through a pipe which sample it begins to read, and may be told to wait there."""

    def __init__(self, form: Callable[[int], Any] = lambda sample: sample, *, gated: bool = False) -> None:
        self.form = form
        self.begun, self._tell = os.pipe()
        os.set_blocking(self.begun, False)
        self.gate = get_context("fork").Semaphore(0) if gated else None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> Any:
        os.write(self._tell, struct.pack("<q", sample))
        if self.gate is not None:
            self.gate.acquire()
        return self.form(sample)

    def reads(self, at_least: int = 0) -> list[int]:
        """The samples begun since the last call; wait until there are so many."""
        found: list[int] = []
        while True:
            with contextlib.suppress(BlockingIOError):
                found += [sample for (sample,) in struct.iter_unpack("<q", os.read(self.begun, 8 * 4096))]
            if len(found) >= at_least:
                return found
            assert select.select([self.begun], [], [], 30)[0], f"only {found} were read"


Start = Callable[..., Loader]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start loaders, and close them however the test ends."""
    with contextlib.ExitStack() as stack:

        def started(dataset: Any, num_workers: int = 1, grid: Grid = GRID, **options: Any) -> Loader:
            made = Loader(
                dataset,
                SampleIndices(grid, seed=7),
                grid,
                seed=7,
                num_workers=num_workers,
                device=torch.device("cpu"),
                **options,
            )
            stack.callback(made.close)
            made.start()
            return made

        yield started


def samples_of(part: MicroBatch) -> list[int]:
    samples: list[int] = INDICES.of_micro_batch(part).tolist()
    return samples


def drawn(sample: int) -> Any:
    return {"x": torch.rand(2, 3) + sample, "y": random.random(), "z": np.random.rand(2), "name": str(sample)}


@pytest.mark.parametrize("num_workers", [1, 3])
def test_data_workers_give_what_the_training_process_would_read(start: Start, num_workers: int) -> None:
    inline = start(Watched(drawn), 0)
    ahead = start(Watched(drawn), num_workers)
    ahead.expect(PARTS)
    for part in PARTS:
        ours, theirs = ahead.load(part), inline.load(part)
        assert (ours.micro_batch, ours.samples, ours.digest) == (theirs.micro_batch, theirs.samples, theirs.digest)
        assert list(ours.data) == list(theirs.data)
        for key in "xyz":
            assert torch.equal(ours.data[key], theirs.data[key])
        assert ours.data["name"] == theirs.data["name"]


def test_every_sample_is_read_exactly_once(start: Start) -> None:
    data = Watched()
    ours = start(data, 2)
    for at, part in enumerate(PARTS):
        ours.expect(PARTS[at : at + 6])
        assert ours.load(part).data.tolist() == samples_of(part)
    assert Counter(data.reads()) == Counter(list(range(SAMPLES)) * GRID.epochs)


def test_tensors_can_be_read_by_data_workers(start: Start) -> None:
    values = torch.randn(SAMPLES, 5)
    ours = start(TensorDataset(values, torch.arange(SAMPLES)), 2)
    x, y = ours.load(PARTS[3]).data
    assert torch.equal(x, values[samples_of(PARTS[3])])
    assert y.tolist() == samples_of(PARTS[3])


def test_a_part_may_be_larger_than_any_socket_holds(start: Start) -> None:
    grid = Grid(300_000, 300_000, 2, 1)
    ours = start(TensorDataset(torch.arange(grid.samples)), grid=grid)
    loaded = ours.load(MicroBatch(1, (0, 1)))
    assert loaded.digest == SampleIndices(grid, seed=7).expected(1)
    assert sorted(loaded.data[0].tolist()) == list(range(grid.samples))


def test_parts_may_be_asked_for_in_any_order_expected_or_not(start: Start) -> None:
    ours = start(Watched(), 2)
    ours.expect(PARTS[4:8])
    for part in [PARTS[7], PARTS[0], PARTS[5], PARTS[20], PARTS[4], PARTS[7]]:
        assert ours.load(part).data.tolist() == samples_of(part)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_reading_ahead_is_bounded(start: Start, num_workers: int) -> None:
    data = Watched()
    ours = start(data, num_workers)
    ours.expect(PARTS)
    ahead = DEPTH * num_workers
    assert ours.reads_ahead == ahead
    read = data.reads(4 * ahead)
    for used in range(1, 5):
        ours.load(PARTS[used - 1])
        read += data.reads(4 * (used + ahead) - len(read))
        ours.expect(PARTS[used:])  # takes in what is ready; it must not make room for more
    assert Counter(read) == Counter(sample for part in PARTS[: 4 + ahead] for sample in samples_of(part))


def test_after_a_resize_what_was_not_begun_is_withdrawn_and_what_was_is_dropped(start: Start) -> None:
    data = Watched(gated=True)
    assert data.gate is not None
    ours = start(data)
    pids = ours.pids
    begun, queued, new, newer = PARTS[0], PARTS[1], MicroBatch(1, (1, 5)), MicroBatch(1, (2, 6))
    ours.expect([begun, queued])
    assert data.reads(1) == samples_of(begun)[:1]
    ours.expect([new, newer])  # another ownership of the same step
    for _ in range(20):
        data.gate.release()
    assert ours.load(new).data.tolist() == samples_of(new)
    assert ours.load(newer).data.tolist() == samples_of(newer)
    assert data.reads() == samples_of(begun)[1:] + samples_of(new) + samples_of(newer)
    assert ours.load(begun).data.tolist() == samples_of(begun)
    assert data.reads() == samples_of(begun)  # read anew: the stale one was not kept
    assert ours.pids == pids


def test_what_lies_ready_is_dropped_too_when_nobody_expects_it(start: Start) -> None:
    data = Watched()
    ours = start(data)
    ours.expect(PARTS[:2])
    assert ours.load(PARTS[1]).data.tolist() == samples_of(PARTS[1])  # the first part lies ready now
    data.reads()
    ours.expect(PARTS[4:6])
    assert ours.load(PARTS[0]).data.tolist() == samples_of(PARTS[0])
    assert data.reads()[-4:] == samples_of(PARTS[0])


def test_what_is_still_expected_is_not_read_again(start: Start) -> None:
    data = Watched(gated=True)
    assert data.gate is not None
    ours = start(data)
    ours.expect(PARTS[:2])
    data.reads(1)
    ours.expect([PARTS[1], PARTS[0], PARTS[2]])
    for _ in range(12):
        data.gate.release()
    for part in PARTS[:3]:
        assert ours.load(part).data.tolist() == samples_of(part)
    assert Counter(data.reads()) == Counter(sum(map(samples_of, PARTS[:3]), [])[1:])  # noqa: RUF017


def test_a_sample_that_raises_is_named_when_its_part_is_asked_for(start: Start) -> None:
    bad = samples_of(PARTS[1])[2]

    def form(sample: int) -> int:
        if sample == bad:
            raise KeyError("no such picture")
        return sample

    ours = start(Watched(form), 2)
    ours.expect(PARTS[:4])
    assert ours.load(PARTS[0]).data.tolist() == samples_of(PARTS[0])
    with pytest.raises(SampleError, match="no such picture") as caught:
        ours.load(PARTS[1])
    assert (caught.value.micro_batch, caught.value.slot, caught.value.sample) == (PARTS[1], PARTS[1].slots[2], bad)
    assert "in form" in caught.value.trace
    assert ours.load(PARTS[2]).data.tolist() == samples_of(PARTS[2])


def test_an_error_in_a_part_nobody_asks_for_any_more_is_no_error(start: Start) -> None:
    data = Watched(lambda sample: [][sample])
    ours = start(data)
    ours.expect(PARTS[:1])
    data.reads(1)
    data.form = int  # this process's copy: the data worker goes on failing
    ours.expect([])
    with pytest.raises(SampleError) as caught:
        ours.load(PARTS[9])
    assert caught.value.micro_batch == PARTS[9]


def test_a_batch_that_cannot_be_sent_is_an_error_of_its_part(start: Start) -> None:
    ours = start(Watched(), collate_fn=lambda rows: (row for row in rows))
    with pytest.raises(SampleError, match="cannot pickle 'generator'"):
        ours.load(PARTS[0])


def test_a_data_worker_knows_that_it_is_one(start: Start) -> None:
    def form(sample: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return info.id, info.num_workers, len(info.dataset), torch.get_num_threads()  # type: ignore[arg-type]

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    ours = start(Watched(form), 2)
    torch.set_num_threads(threads)
    ours.expect(PARTS)
    seen = {tuple(row) for part in PARTS for row in torch.stack(ours.load(part).data).T.tolist()}
    assert seen <= {(0, 2, SAMPLES, 1), (1, 2, SAMPLES, 1)}
    assert get_worker_info() is None


def test_batches_outlive_the_loader(start: Start) -> None:
    ours = start(Watched(lambda sample: torch.full((1000,), sample)))
    kept = [ours.load(part).data for part in PARTS]
    ours.close()
    for part, batch in zip(PARTS, kept, strict=True):
        assert batch[:, 999].tolist() == samples_of(part)


def test_a_killed_data_worker_is_told_in_words(start: Start) -> None:
    data = Watched(gated=True)
    ours = start(data, 2)
    ours.expect(PARTS)
    data.reads(2)
    os.kill(ours.pids[1], signal.SIGKILL)
    with pytest.raises(DataWorkerLost, match=rf"data worker 1 of 2 \(process {ours.pids[1]}\) was killed by signal 9"):
        ours.load(PARTS[1])


def test_a_data_worker_that_exits_is_told_with_its_status(start: Start) -> None:
    ours = start(Watched(lambda sample: sys.exit(3)))
    with pytest.raises(DataWorkerLost, match="exited with status 3"):
        ours.load(PARTS[0])


def test_a_signal_to_everybody_leaves_the_data_workers_reading(start: Start) -> None:
    """A draining member still needs its data, and a service's stop signals every process of it."""
    ours = start(Watched())
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(ours.pids[0], number)
    for part in PARTS[:5]:
        assert ours.load(part).data.tolist() == samples_of(part)


def test_programs_run_by_a_data_set_can_be_stopped(start: Start) -> None:
    def ignored(sample: int) -> list[bool]:
        return [signal.getsignal(number) == signal.SIG_IGN for number in (signal.SIGTERM, signal.SIGINT)]

    assert not any(torch.stack(start(Watched(ignored)).load(PARTS[0]).data).flatten().tolist())


def test_a_socket_of_the_parent_ends_when_the_parent_closes_it(start: Start) -> None:
    ours, peers = socket.socketpair()
    loader = start(Watched(), 2)
    loader.load(PARTS[0])
    ours.close()
    peers.settimeout(30)
    assert peers.recv(1) == b""
    assert len(loader.pids) == 2
    loader.load(PARTS[1])
    peers.close()


def test_a_data_worker_has_one_socket(start: Start) -> None:
    def sockets(pid: int) -> list[str]:
        links = []
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                links.append(entry.readlink().name)
        return [link for link in links if link.startswith("socket:")]

    with socket.socket(), socket.socket():
        ours = start(Watched(), 3)
        ours.expect(PARTS)
        for part in PARTS:  # all three have begun, and so have settled
            ours.load(part)
        own = {int(os.fstat(number).st_ino) for number in (0, 1, 2)}
        for pid in ours.pids:
            assert len([link for link in sockets(pid) if int(link[8:-1]) not in own]) == 1


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_closing_leaves_no_process_and_no_descriptor(start: Start) -> None:
    data = Watched()
    before = len(list(Path("/proc/self/fd").iterdir()))
    ours = start(data, 3)
    ours.expect(PARTS)
    ours.load(PARTS[0])
    pids = ours.pids
    ours.close()
    ours.close()
    assert all(map(gone, pids))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(BadInput, match="not started, or is closed"):
        ours.load(PARTS[0])


def test_a_loader_that_is_dropped_ends_its_data_workers() -> None:
    ours = Loader(Watched(), INDICES, GRID, seed=7, num_workers=2, device=torch.device("cpu"))
    ours.start()
    ours.load(PARTS[0])
    pids = ours.pids
    del ours
    assert all(map(gone, pids))


def test_closing_does_not_wait_for_a_read_that_hangs(start: Start) -> None:
    data = Watched(gated=True)
    ours = start(data)
    ours.expect(PARTS)
    data.reads(1)
    pids = ours.pids
    ours.close()
    assert all(map(gone, pids))


def test_a_loader_is_started_once(start: Start) -> None:
    ours = start(Watched())
    with pytest.raises(BadInput, match="start it once"):
        ours.start()


def test_without_data_workers_there_is_nothing_to_start_or_close(start: Start) -> None:
    ours = start(Watched(), 0)
    assert (ours.pids, ours.reads_ahead) == ((), 0)
    ours.close()
    assert ours.load(PARTS[0]).data.tolist() == samples_of(PARTS[0])
