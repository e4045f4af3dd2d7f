"""A process group over plain TCP for arrays in host memory, which any thread can break off within a millisecond.

Every pair of ranks has one connection, opened with the generation's key (`pliant.train.group.wiring`).

Ranks add in the order of ranks, so all of them have the same bits, whatever the algorithm and the size of the array:

    small arrays   every rank sends all of it to every other one, and adds everything itself: one trip
    large arrays   every rank adds one stretch, segment by segment, and sends each sum on as soon as it has it: two
                   trips, and as few bytes as any all-reduce needs

Operations are queued. A thread of the group carries them out while the training thread computes. A thread that waits
for an operation carries it out itself, if no other one does: that saves the change of threads in small steps.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.train.group.contract import GroupBroken
from pliant.train.group.links import Link, LinkLost, exchange

GATHER_MAX = 1 << 24  # bytes from each rank
SMALL = 1 << 19  # bytes that a rank receives in one trip at most, from all others together
SEGMENT = 1 << 18  # bytes of a stretch that are added at once; small enough to stay in the processor's cache
ROOM = 1 << 24  # bytes of segments that may wait to be added, so that a slow peer does not hold up the others

Array: TypeAlias = npt.NDArray[Any]

_LENGTH = struct.Struct("!Q")
_spare: dict[np.dtype[Any], Array] = {}
"""Memory of a closed group, for the next one: fresh memory takes longer than an exchange."""


class TcpPending:
    """An operation in flight."""

    def __init__(self, group: TcpGroup, carry_out: Callable[[], None]) -> None:
        self._group = group
        self.carry_out = carry_out
        self.is_done = False
        self.failure: GroupBroken | None = None

    def wait(self) -> None:
        """Wait until the operation is done. Raise `GroupBroken` if it failed, once nothing touches its arrays."""
        self._group.finish(self)
        if self.failure is not None:
            raise GroupBroken(self.failure.why, self.failure.peer)


class TcpGroup:
    """The ranks of one generation."""

    def __init__(self, world: World, rank: int, links: Sequence[Link]) -> None:
        self.generation = world.number
        self.rank = rank
        self.size = len(world.members)
        self._members = world.members
        self._links = sorted(links, key=lambda link: link.rank)
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[TcpPending] = deque()  # operations that no thread has begun
        self._runner = 0  # the thread that carries out an operation; 0: none
        self._thread: threading.Thread | None = None
        self._cause: GroupBroken | None = None
        self._is_disposed = False
        self._is_closed = False
        self._scratch: dict[np.dtype[Any], Array] = {}

    # ------------------------------------------------------------------------------------------- operations

    def all_reduce(self, array: Array) -> None:
        self._enqueue(self._all_reduce_of(array)).wait()

    def start_all_reduce(self, array: Array) -> TcpPending:
        return self._start(self._all_reduce_of(array))

    def start_all_to_all(self, output: Array, data: Array, arriving: list[int], sending: list[int]) -> TcpPending:
        places, parts = _stretches(output, arriving), _stretches(data, sending)

        def carry_out() -> None:
            if parts[self.rank]:
                places[self.rank][:] = parts[self.rank]
            self._swap([(link, parts[link.rank], places[link.rank]) for link in self._links])

        return self._start(carry_out)

    def start_all_gather(self, output: Array, data: Array) -> TcpPending:
        room, given, width = _octets(output), _octets(data), data.nbytes

        def carry_out() -> None:
            mine = room[self.rank * width : (self.rank + 1) * width]
            if output.ctypes.data + self.rank * width != data.ctypes.data:
                mine[:] = given
            places = [(link, given, room[link.rank * width : (link.rank + 1) * width]) for link in self._links]
            self._swap(places)

        return self._start(carry_out)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in order of rank. They may differ in length. Waits for all of them."""
        if len(data) > GATHER_MAX:
            raise BadInput(f"At most {GATHER_MAX} bytes of each rank can be gathered, got {len(data)}.")
        rows: dict[int, bytes | bytearray] = {self.rank: data}
        self._enqueue(lambda: self._gather(data, rows)).wait()
        return [bytes(rows[rank]) for rank in range(self.size)]

    def barrier(self) -> None:
        self.gather(b"")

    # --------------------------------------------------------------------------------------------- the queue

    def _enqueue(self, carry_out: Callable[[], None]) -> TcpPending:
        pending = TcpPending(self, carry_out)
        with self._changed:
            self._require_whole()
            self._queue.append(pending)
        return pending

    def _start(self, carry_out: Callable[[], None]) -> TcpPending:
        """Queue an operation for the group's thread."""
        pending = self._enqueue(carry_out)
        if self.size == 1:
            return pending  # nothing to overlap: the thread that waits carries it out
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="pliant-group", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return pending

    def _serve(self) -> None:
        """Carry out operations as they are queued, until the group is broken."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._cause is not None or (self._queue and not self._runner))
                if not self._queue or self._runner:
                    return  # broken; the threads that wait for operations end what is queued
            self._carry_out_next()

    def finish(self, pending: TcpPending) -> None:
        """Return once `pending` is done. Carries out what is queued before it, if no other thread does."""
        me = threading.get_ident()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: pending.is_done or self._runner in (0, me))
                if pending.is_done:
                    return
                if self._runner == me:  # a signal handler raised in the middle of an operation
                    self._runner = 0
                    self._cause = self._cause or GroupBroken(f"generation {self.generation}'s group was interrupted")
                    if pending not in self._queue:
                        pending.failure, pending.is_done = self._cause, True
                        return
            self._carry_out_next()

    def _carry_out_next(self) -> None:
        """Carry out the first operation of the queue, unless another thread was faster."""
        with self._changed:
            if not self._queue or self._runner:
                return
            self._runner = threading.get_ident()
            pending = self._queue.popleft()
        try:
            if self._cause is None:
                pending.carry_out()
        except LinkLost as lost:
            self._break(f"an operation of generation {self.generation} failed: {lost}", lost.rank)
        except BaseException:  # why: half of an operation is left on the connections, whatever ended it, Ctrl-C too
            self._break(f"an operation of generation {self.generation} was interrupted", None)
            raise
        finally:
            with self._changed:
                pending.failure = self._cause
                pending.is_done = True
                pending.carry_out = _nothing  # it holds the arrays
                self._runner = 0
                self._close_if_unused()
                self._changed.notify_all()

    # ----------------------------------------------------------------------------------------------- the end

    def break_off(self) -> None:
        """End every operation with an error, here and on every peer. Any thread may call it, repeatedly."""
        self._break(f"generation {self.generation}'s group was broken off", None)

    def dispose(self) -> None:
        """Close the connections, at once or as soon as the operation under way has noticed."""
        self.break_off()
        with self._changed:
            self._is_disposed = True
            self._close_if_unused()

    def _break(self, why: str, rank: int | None) -> None:
        with self._changed:
            if self._cause is None:
                self._cause = GroupBroken(why, None if rank is None else self._members[rank])
            if not self._is_closed:
                for link in self._links:
                    link.shut_down()
            self._changed.notify_all()

    def _close_if_unused(self) -> None:
        """Close the sockets, once no thread uses them: another file could get their numbers."""
        if self._is_disposed and not self._runner and not self._is_closed:
            self._is_closed = True
            for link in self._links:
                with suppress(OSError):
                    link.sock.close()
            _spare.update(self._scratch)
            self._scratch = {}

    def _require_whole(self) -> None:
        if self._cause is not None:
            raise GroupBroken(self._cause.why, self._cause.peer)

    # ----------------------------------------------------------------------------------------- the exchanges

    def _swap(self, places: Sequence[tuple[Link, memoryview, memoryview]]) -> None:
        """Send and receive one view with each peer."""
        for link, sent, room in places:
            if sent:
                link.outgoing.append(sent)
            if room:
                link.incoming.append(room)
        exchange(self._links, _ignore)

    def _gather(self, data: bytes, rows: dict[int, bytes | bytearray]) -> None:
        heads = {link.rank: bytearray(_LENGTH.size) for link in self._links}

        def arrived(link: Link) -> None:
            if link.rank in rows:
                return
            (length,) = _LENGTH.unpack(heads[link.rank])
            if length > GATHER_MAX:
                raise LinkLost(link.rank, f"it announced {length} bytes to gather")
            rows[link.rank] = body = bytearray(length)
            if body:
                link.incoming.append(memoryview(body))

        message = memoryview(_LENGTH.pack(len(data)) + data)
        for link in self._links:
            link.outgoing.append(message)
            link.incoming.append(memoryview(heads[link.rank]))
        exchange(self._links, arrived)

    def _all_reduce_of(self, array: Array) -> Callable[[], None]:
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise BadInput("An array to be reduced must be contiguous and writable.")
        flat = array.reshape(-1)
        if not self._links or not flat.size:
            return _nothing
        if flat.nbytes * len(self._links) <= SMALL:
            return lambda: self._add_all(flat)
        return lambda: self._add_stretches(flat)

    def _add_all(self, mine: Array) -> None:
        """Receive the whole array of every peer and add all of them."""
        count = mine.size
        rooms = self._rooms(mine.dtype, count * len(self._links))
        sent, received = _octets(mine), _octets(rooms)
        nbytes = mine.nbytes
        places = [(link, sent, received[at * nbytes : (at + 1) * nbytes]) for at, link in enumerate(self._links)]
        self._swap(places)
        self._add(mine, [rooms[at * count : (at + 1) * count] for at in range(len(self._links))])

    def _add_stretches(self, flat: Array) -> None:
        """Add one stretch of the array, and receive the sums of the others."""
        width, size = flat.itemsize, self.size
        edges = [flat.size * rank // size for rank in range(size + 1)]
        octets = _octets(flat)
        first, last = edges[self.rank], edges[self.rank + 1]
        step = SEGMENT // width
        cuts = [(at, min(at + step, last)) for at in range(first, last, step)]
        depth = min(max(2, ROOM // (SEGMENT * len(self._links))), len(cuts))
        rooms = self._rooms(flat.dtype, len(self._links) * depth * step).reshape(len(self._links), depth, step)
        ready = dict.fromkeys((link.rank for link in self._links), 0)  # segments that have arrived, by rank
        added = 0

        def await_segment(at: int, link: Link, number: int) -> None:
            if number < len(cuts):
                start, stop = cuts[number]
                link.incoming.append(_octets(rooms[at, number % depth, : stop - start]))

        def arrived(link: Link) -> None:
            nonlocal added
            ready[link.rank] += 1
            if ready[link.rank] == len(cuts):
                self._await_sum(link, octets[edges[link.rank] * width : edges[link.rank + 1] * width])
            while added < len(cuts) and min(ready.values()) > added:
                start, stop = cuts[added]
                self._add(flat[start:stop], [room[added % depth, : stop - start] for room in rooms])
                for at, each in enumerate(self._links):
                    await_segment(at, each, added + depth)
                    each.outgoing.append(octets[start * width : stop * width])
                added += 1

        for at, link in enumerate(self._links):
            if edges[link.rank + 1] > edges[link.rank]:
                link.outgoing.append(octets[edges[link.rank] * width : edges[link.rank + 1] * width])
            for number in range(depth):
                await_segment(at, link, number)
            if not cuts:
                self._await_sum(link, octets[edges[link.rank] * width : edges[link.rank + 1] * width])
        exchange(self._links, arrived)

    @staticmethod
    def _await_sum(link: Link, place: memoryview) -> None:
        if place:
            link.incoming.append(place)

    def _add(self, mine: Array, others: Sequence[Array]) -> None:
        """Add in the order of ranks, into `mine`. `others` may be overwritten."""
        total = others[0] if self.rank else mine
        for part in [*others[1 : self.rank], mine, *others[self.rank :]] if self.rank else others:
            out = mine if part is mine or total is mine else total
            np.add(total, part, out=out)
            total = out

    def _rooms(self, dtype: np.dtype[Any], count: int) -> Array:
        """Return reused memory for what arrives. It is bounded by `SMALL` and the number of ranks."""
        found = self._scratch.get(dtype)
        if found is None or found.size < count:
            found = _spare.pop(dtype, None)
            if found is None or found.size < count:
                found = np.empty(count, dtype)
            self._scratch[dtype] = found
        return found[:count]


def _octets(array: Array) -> memoryview:
    """Return the bytes of an array; Python cannot cast an empty view."""
    return array.reshape(-1).data.cast("B") if array.size else memoryview(b"")


def _stretches(array: Array, lengths: list[int]) -> list[memoryview]:
    """Return the bytes of one stretch after the other."""
    octets, ends = _octets(array), [end * array.itemsize for end in accumulate(lengths, initial=0)]
    return [octets[start:stop] for start, stop in pairwise(ends)]


def _ignore(_link: Link) -> None:
    pass


def _nothing() -> None:
    pass
