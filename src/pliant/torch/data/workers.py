"""Data workers: processes of a member that read parts ahead of training.

They are forked before the member has a thread or a socket. A data worker closes every socket it inherited and dies with
its parent. It has no notion of worlds, ranks or generations: it gets parts, each with a ticket, and answers every
ticket once, in any order.

The training process has no thread for this. Answers wait in the sockets until it needs a part.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from select import POLLIN, poll

import torch
from torch.multiprocessing import get_context
from torch.utils.data import _utils as torch_data

from pliant.errors import BadInput, PliantError
from pliant.parent_death import die_with_parent
from pliant.torch.data.shared_memory import receive, send
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, ReadPlan, SampleError
from pliant.train.live.data.reader import DatasetReader

DEPTH = 2
"""Parts that are read ahead for each data worker: while one is used, the next is read."""

CLOSE_S = 1.0
"""Time for a data worker to finish after the loader was closed; then it is killed."""

_SIGNALS = {signal.SIGINT, signal.SIGTERM}


class DataWorkerLost(PliantError):
    """A data worker ended unexpectedly. The loader cannot continue, and the member fails with this reason."""


@dataclass
class _DataWorker:
    """A data worker, with the tickets it works on whose parts are still needed."""

    number: int
    process: BaseProcess
    socket: socket.socket
    tickets: set[int] = field(default_factory=set)


class DataWorkerPool:
    """The data workers of one loader. All calls come from the thread that called `start`."""

    def __init__(
        self, reader: DatasetReader, plan: Callable[[MicroBatch], ReadPlan], count: int, *, in_sequence: bool = False
    ) -> None:
        self._reader = reader
        self._plan = plan
        self._count = count
        self._workers: list[_DataWorker] = []
        self._waiting: list[MicroBatch] = []
        self._under_way: dict[int, MicroBatch] = {}
        self._ready: dict[MicroBatch, LoadedMicroBatch | SampleError] = {}
        self._ticket = 0
        self._end: Finalize | None = None
        # The data worker of each first slot, for data that is fast to read only where a step continues the last one.
        self._readers: dict[int, int] | None = {} if in_sequence else None

    @property
    def depth(self) -> int:
        """The largest number of parts to read ahead."""
        return DEPTH * self._count

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the data workers."""
        return tuple(worker.process.pid or 0 for worker in self._workers)

    def start(self) -> None:
        """Fork the data workers."""
        if self._end is not None:
            raise BadInput("the loader was started twice: start it once")
        # At an exit without close, this runs before multiprocessing waits for its children.
        self._end = Finalize(self, _end, args=(self._workers,), exitpriority=100)
        for number in range(self._count):
            self._workers.append(self._fork(number))

    def expect(self, parts: Sequence[MicroBatch]) -> None:
        """Read these parts ahead, in this order. Other parts that were read or requested are dropped."""
        wanted = dict.fromkeys(parts)
        self._ready = {part: found for part, found in self._ready.items() if part in wanted}
        for worker in self._workers:
            for ticket in [ticket for ticket in worker.tickets if self._under_way[ticket] not in wanted]:
                # The answer still arrives, with the part or with None. Without a ticket it is dropped.
                worker.tickets.remove(ticket)
                del self._under_way[ticket]
                _send(worker, (ticket, None))
        coming = self._ready.keys() | set(self._under_way.values())
        self._waiting = [part for part in wanted if part not in coming]
        self._collect(0)
        self._dispatch()

    def take(self, part: MicroBatch) -> LoadedMicroBatch:
        """Return a part: wait for it if it is being read, have it read now if it was not expected."""
        if not self._workers:
            raise BadInput("the loader is not started, or is closed: call start first")
        self._collect(0)
        if part not in self._ready and part not in self._under_way.values():
            self._waiting = [other for other in self._waiting if other != part]
            self._assign(part, self._choose(part))
        while part not in self._ready:
            self._collect(None)
        found = self._ready.pop(part)
        self._dispatch()
        if isinstance(found, SampleError):
            raise found
        return found

    def close(self) -> None:
        """End the data workers."""
        self._waiting, self._under_way, self._ready = [], {}, {}
        if self._end is not None:
            self._end()

    def _dispatch(self) -> None:
        """Request more parts, up to the depth. Parts that are read but unused count like requested ones."""
        while self._waiting and len(self._under_way) + len(self._ready) < self.depth:
            part = self._waiting.pop(0)
            self._assign(part, self._choose(part))

    def _choose(self, part: MicroBatch) -> _DataWorker:
        """Return the data worker that reads the part: always the same for a slot, if the data is read in sequence."""
        if self._readers is None:
            return min(self._workers, key=lambda worker: len(worker.tickets))
        taken = list(self._readers.values())
        fewest = min(range(self._count), key=taken.count)
        return self._workers[self._readers.setdefault(part.slots[0], fewest)]

    def _assign(self, part: MicroBatch, worker: _DataWorker) -> None:
        plan = self._plan(part)
        self._ticket += 1
        self._under_way[self._ticket] = part
        worker.tickets.add(self._ticket)
        _send(worker, (self._ticket, plan))

    def _collect(self, timeout_s: float | None) -> None:
        """Receive answers; without a timeout, wait for at least one. Raises if a data worker is gone."""
        workers = {worker.socket: worker for worker in self._workers}
        while ready := wait(list(workers), timeout_s):
            timeout_s = 0  # for answers that arrived meanwhile
            for one in ready:
                assert isinstance(one, socket.socket)
                worker, answer = workers[one], receive(one)
                if answer is None:
                    raise _lost(worker, self._count)
                ticket, found = answer
                if ticket in worker.tickets:
                    worker.tickets.remove(ticket)
                    self._ready[self._under_way.pop(ticket)] = found

    def _fork(self, number: int) -> _DataWorker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = get_context("fork").Process(
            target=_work,
            args=(theirs, self._reader, number, self._count, os.getpid()),
            name=f"pliant data worker {number}",
            daemon=True,
        )
        # Block signals until the child has replaced the parent's handlers, which Ctrl-C must not run there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns about any thread, and torch has some. A data worker uses a single thread.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        return _DataWorker(number, process, ours)


def _send(worker: _DataWorker, message: object) -> None:
    try:
        send(worker.socket, message)
    except (BrokenPipeError, ConnectionResetError):
        # The worker is gone: `_collect` raises with the reason.
        return


def _lost(worker: _DataWorker, count: int) -> DataWorkerLost:
    worker.process.join(CLOSE_S)
    code = worker.process.exitcode
    if code is None:
        how = "closed its socket"
    elif code < 0:
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
    else:
        how = f"exited with status {code}"
    hint = "; if memory ran out, lower num_workers" if code == -signal.SIGKILL else ""
    return DataWorkerLost(f"data worker {worker.number} of {count} (process {worker.process.pid}) {how}{hint}")


def _end(workers: list[_DataWorker]) -> None:
    """End data workers: close their sockets, wait briefly, then kill them. No process remains."""
    for worker in workers:
        worker.socket.close()
    for worker in workers:
        worker.process.join(CLOSE_S / len(workers))
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        worker.process.close()
    workers.clear()


def _work(own: socket.socket, reader: DatasetReader, number: int, count: int, parent: int) -> None:
    """Run a data worker until the parent closes its end."""
    _isolate(own, parent)
    torch.set_num_threads(1)
    torch_data.worker._worker_info = torch_data.worker.WorkerInfo(
        id=number, num_workers=count, seed=reader.seed, dataset=reader.dataset
    )
    # An answer in flight when the parent closes its end is not an error.
    with suppress(BrokenPipeError, ConnectionResetError):
        _serve(own, reader)


def _serve(own: socket.socket, reader: DatasetReader) -> None:
    """Answer tickets. Reads new messages before every part, so that a cancelled part is not started."""
    news = poll()
    news.register(own, POLLIN)
    queue: dict[int, ReadPlan] = {}
    while True:
        while not queue or news.poll(0):
            message = receive(own)
            if message is None:
                return
            ticket, plan = message
            if plan is not None:
                queue[ticket] = plan
            elif queue.pop(ticket, None) is not None:
                send(own, (ticket, None))
        ticket = next(iter(queue))
        _answer(own, ticket, queue.pop(ticket), reader)


def _answer(own: socket.socket, ticket: int, plan: ReadPlan, reader: DatasetReader) -> None:
    try:
        send(own, (ticket, reader.read(plan)))
    except SampleError as error:
        send(own, (ticket, error))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception:  # why: a batch may hold objects that cannot be pickled
        unsent = SampleError(
            plan.micro_batch, plan.micro_batch.slots, tuple(plan.samples.tolist()), traceback.format_exc()
        )
        send(own, (ticket, unsent))


def _isolate(own: socket.socket, parent: int) -> None:
    """Drop everything inherited from the parent, and die with it."""
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    # Ctrl-C and the stop of a service signal every process, but the parent needs data for its last step. The worker
    # ends with the parent. Not SIG_IGN: programs started by a data set would inherit it.
    for number in _SIGNALS:
        signal.signal(number, _ignore_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _close_inherited_sockets(keep={0, 1, 2, own.fileno()})


def _ignore_signal(_number: int, _frame: object) -> None:
    """Ignore a signal."""


def _close_inherited_sockets(keep: Iterable[int]) -> None:
    """Close every inherited socket but these.

    Their numbers stay in use, by /dev/null: objects of the parent still refer to them, and their garbage collection
    must not close an unrelated file.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for entry in list(Path("/proc/self/fd").iterdir()):
        number = int(entry.name)
        try:
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:
            continue  # the listing's own descriptor
        if is_socket and number not in keep:
            os.dup2(null, number, inheritable=False)
    os.close(null)
