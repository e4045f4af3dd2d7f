"""Data workers: processes of a member that read parts ahead of the training.

They are forked before the member has a thread or a socket, and they hold nothing of it (H20): a data worker
closes every socket it inherited, and dies with its parent. It knows nothing of worlds, ranks or generations:
it is asked for parts, each under a ticket, and answers every ticket once, in the order it likes.

The training process has no thread for this. Answers wait in the sockets until it asks for a part.
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
from pliant.torch.data.dataset import DatasetReader
from pliant.torch.data.shared_memory import receive, send
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, ReadPlan, SampleError

DEPTH = 2
"""How many parts are read ahead for each data worker: while one is used, the next is being read."""

CLOSE_S = 1.0
"""How long a data worker may go on with what it reads after the loader was closed; then it is killed."""

_SIGNALS = {signal.SIGINT, signal.SIGTERM}


class DataWorkerLost(PliantError):
    """A data worker ended by itself. The loader cannot go on; the member fails with this reason."""


@dataclass
class _DataWorker:
    """A data worker, as its parent sees it: `tickets` are those under way there that are still wanted."""

    number: int
    process: BaseProcess
    socket: socket.socket
    tickets: set[int] = field(default_factory=set)


class DataWorkerPool:
    """The data workers of one loader. All calls come from the thread that called `start`."""

    def __init__(self, reader: DatasetReader, plan: Callable[[MicroBatch], ReadPlan], count: int) -> None:
        self._reader = reader
        self._plan = plan
        self._count = count
        self._hands: list[_DataWorker] = []
        self._waiting: list[MicroBatch] = []
        self._under_way: dict[int, MicroBatch] = {}
        self._ready: dict[MicroBatch, LoadedMicroBatch | SampleError] = {}
        self._ticket = 0
        self._end: Finalize | None = None

    @property
    def depth(self) -> int:
        """How many parts are read ahead at most."""
        return DEPTH * self._count

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes, for status and for tests."""
        return tuple(hand.process.pid or 0 for hand in self._hands)

    def start(self) -> None:
        """Fork the data workers."""
        if self._end is not None:
            raise BadInput("the loader was started before: start it once")
        # At an exit without close, this runs before multiprocessing waits for its children.
        self._end = Finalize(self, _end, args=(self._hands,), exitpriority=100)
        for number in range(self._count):
            self._hands.append(self._fork(number))

    def expect(self, parts: Sequence[MicroBatch]) -> None:
        """Read these ahead, in this order, and nothing else. What was read for others is dropped."""
        wanted = dict.fromkeys(parts)
        self._ready = {part: found for part, found in self._ready.items() if part in wanted}
        for hand in self._hands:
            for ticket in [ticket for ticket in hand.tickets if self._under_way[ticket] not in wanted]:
                # The answer still comes, the part or word that it was not begun. Without its ticket it is dropped.
                hand.tickets.remove(ticket)
                del self._under_way[ticket]
                _send(hand, (ticket, None))
        coming = self._ready.keys() | set(self._under_way.values())
        self._waiting = [part for part in wanted if part not in coming]
        self._collect(0)
        self._hand_out()

    def take(self, part: MicroBatch) -> LoadedMicroBatch:
        """Give a part. If it is not here yet, wait for it; if it was not expected, have it read now."""
        if not self._hands:
            raise BadInput("the loader is not started, or is closed: call start first")
        self._collect(0)
        if part not in self._ready and part not in self._under_way.values():
            self._waiting = [other for other in self._waiting if other != part]
            self._give(part, self._least_busy())
        while part not in self._ready:
            self._collect(None)
        found = self._ready.pop(part)
        self._hand_out()
        if isinstance(found, SampleError):
            raise found
        return found

    def close(self) -> None:
        """End the data workers."""
        self._waiting, self._under_way, self._ready = [], {}, {}
        if self._end is not None:
            self._end()

    def _hand_out(self) -> None:
        """Have more read, as far as the depth allows: what lies here unused counts like what is under way."""
        while self._waiting and len(self._under_way) + len(self._ready) < self.depth:
            self._give(self._waiting.pop(0), self._least_busy())

    def _least_busy(self) -> _DataWorker:
        return min(self._hands, key=lambda hand: len(hand.tickets))

    def _give(self, part: MicroBatch, hand: _DataWorker) -> None:
        plan = self._plan(part)
        self._ticket += 1
        self._under_way[self._ticket] = part
        hand.tickets.add(self._ticket)
        _send(hand, (self._ticket, plan))

    def _collect(self, timeout_s: float | None) -> None:
        """Take in answers; without a timeout, wait for one at least. Raise if a data worker is gone."""
        hands = {hand.socket: hand for hand in self._hands}
        while ready := wait(list(hands), timeout_s):
            timeout_s = 0  # for what came meanwhile
            for one in ready:
                assert isinstance(one, socket.socket)
                hand, answer = hands[one], receive(one)
                if answer is None:
                    raise _lost(hand, self._count)
                ticket, found = answer
                if ticket in hand.tickets:
                    hand.tickets.remove(ticket)
                    self._ready[self._under_way.pop(ticket)] = found

    def _fork(self, number: int) -> _DataWorker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = get_context("fork").Process(
            target=_work,
            args=(theirs, self._reader, number, self._count, os.getpid()),
            name=f"pliant data worker {number}",
            daemon=True,
        )
        # Signals wait until the child has put the parent's handlers away: Ctrl-C right now must not run them there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of any thread, and torch has some; a data worker computes in one of its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        return _DataWorker(number, process, ours)


def _send(hand: _DataWorker, message: object) -> None:
    try:
        send(hand.socket, message)
    except (BrokenPipeError, ConnectionResetError):
        # It is gone: the one who waits for an answer is told, with the reason.
        return


def _lost(hand: _DataWorker, count: int) -> DataWorkerLost:
    hand.process.join(CLOSE_S)
    code = hand.process.exitcode
    if code is None:
        how = "closed its socket"
    elif code < 0:
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
    else:
        how = f"exited with status {code}"
    hint = "; if memory ran out, lower num_workers" if code == -signal.SIGKILL else ""
    return DataWorkerLost(f"data worker {hand.number} of {count} (process {hand.process.pid}) {how}{hint}")


def _end(hands: list[_DataWorker]) -> None:
    """End data workers: ask by closing their sockets, wait a little, then kill. Nothing is left behind."""
    for hand in hands:
        hand.socket.close()
    for hand in hands:
        hand.process.join(CLOSE_S / len(hands))
    for hand in hands:
        if hand.process.is_alive():
            hand.process.kill()
        hand.process.join()
        hand.process.close()
    hands.clear()


def _work(own: socket.socket, reader: DatasetReader, number: int, count: int, parent: int) -> None:
    """Be a data worker, until the parent closes its end."""
    _isolate(own, parent)
    torch.set_num_threads(1)
    torch_data.worker._worker_info = torch_data.worker.WorkerInfo(
        id=number, num_workers=count, seed=reader.seed, dataset=reader.dataset
    )
    # What is on its way when the parent closes its end has no reader: that is no error.
    with suppress(BrokenPipeError, ConnectionResetError):
        _serve(own, reader)


def _serve(own: socket.socket, reader: DatasetReader) -> None:
    """Answer tickets. News are read before every part, so that what is not wanted any more is not begun."""
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
    except Exception:  # why: a batch may hold anything, also what cannot be pickled
        unsent = SampleError(
            plan.micro_batch, plan.micro_batch.slots, tuple(plan.samples.tolist()), traceback.format_exc()
        )
        send(own, (ticket, unsent))


def _isolate(own: socket.socket, parent: int) -> None:
    """Become a process that holds nothing of its parent and does not outlive it."""
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    # Ctrl-C and the stop of a service signal every process, and the parent needs its data for the step it drains
    # with; when it is done, or dead, so are we. No SIG_IGN: programs that a data set runs would inherit it.
    for number in _SIGNALS:
        signal.signal(number, _ignore_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _close_inherited_sockets(keep={0, 1, 2, own.fileno()})


def _ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing about a signal."""


def _close_inherited_sockets(keep: Iterable[int]) -> None:
    """Close every inherited socket but these.

    The numbers stay taken, by /dev/null: objects of the parent still know them, and when one of them is collected
    here it must not close a file that got the number since.
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
