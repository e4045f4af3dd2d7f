"""Transfer of state and gradients from donors (rules 13, 15).

Donors send live memory while reads are allowed, so nothing is copied and only the apply waits. Each stripe carries its
label and the whole tree. Only stripes of one lineage, from donors whose trees are equal to the byte, are put together,
and every byte is checked on the way. The receiver keeps the state apart until it is complete, in memory prepared before
the others wait for it. Between processes that share memory of a GPU, a copy there replaces the stripes (`shared_copy`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member import signals as s
from pliant.core.model.names import MemberId
from pliant.errors import PliantError
from pliant.train.peer.rpc import RpcBody
from pliant.train.peer.server import DamagedFrame, PeerLost, PeerServer, RequestRefused, RpcReply
from pliant.train.state.flat import State, leaf_sizes, stripe_leaves
from pliant.train.state.memory import Memory, PreparedMemory, allocate
from pliant.train.state.shared_copy import HeldCopies, SharedMemory, SharedPreface, SharedRequest, this_machine
from pliant.train.state.state_lock import StateLock

log = logging.getLogger(__name__)

T = TypeVar("T")

STATE, GRADIENT, SHARED, RELEASE, TREE = "state", "gradient", "shared state", "release", "tree"
DONORS_MAX = 3
STRIPES_MAX = 6
LARGE_BYTES = 256 << 20  # a state from which on several connections, each with its own threads, are faster than one
LARGE_STRIPES = 4
PIECE = 1 << 20
TRANSFER_ERRORS = (PliantError, PeerLost, RequestRefused)
RETRY_S = 0.2  # between two attempts, so that a donor that refuses is not flooded


@dataclass(frozen=True, slots=True)
class StripeRequest:
    """A request for stripe `index` of `count`."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class StripeHeader:
    """The label of a stripe. Its body begins with a preface of that many bytes, followed by the leaves."""

    lineage: Lineage
    state: int
    preface: int


@dataclass(frozen=True, slots=True)
class StripePreface:
    """The long part of a label: the donor's ledger lines that are not durable yet, and the whole tree."""

    lines: tuple[LedgerLine, ...]
    tree: bytes


@dataclass(frozen=True, slots=True)
class GradientHeader:
    """The line of the step whose reduced gradient follows; None if there is none."""

    line: LedgerLine | None
    preface: int = 0


@dataclass(frozen=True, slots=True)
class ReceivedState:
    """A received state or gradient, complete and checked, not installed yet.

    A content is a view of memory, or what the adapter's `SharedMemory` returned.
    """

    tree: bytes
    contents: tuple[Any, ...]


def copy_state(state: State) -> ReceivedState:
    """Return a copy of a state, without live memory."""
    return ReceivedState(state.tree, tuple(memoryview(bytearray(leaf.content)) for leaf in state.leaves))


class StateSource:
    """The donor's side of a transfer.

    The adapter provides the state's tree with its live arrays, and the content of each: live memory, or a copy of one
    array at a time where the array is not in host memory.
    """

    def __init__(
        self,
        gate: StateLock,
        layout: Callable[[], tuple[bytes, Sequence[Any]]],
        content: Callable[[Any], memoryview],
        gradient: Callable[[Lineage], State | None],
        lines: Callable[[], tuple[LedgerLine, ...]],
        shared_memory: SharedMemory | None = None,
    ) -> None:
        self._lock = gate
        self._layout = layout
        self._content = content
        self._gradient = gradient
        self._lines = lines
        self._shared_memory = shared_memory
        self._held = HeldCopies()
        gate.when_blocked = self._held.drop

    def answer(self, kind: str, head: bytes) -> tuple[bytes, RpcBody]:
        """Answer a peer's request.

        Blocks until the state may be read, and keeps it so until the body is sent or closed.
        """
        if kind == STATE:
            sending = self._send_stripe(decode_head(head, StripeRequest))
        elif kind == GRADIENT:
            sending = self._send_gradient(decode_head(head, Lineage))
        elif kind == SHARED:
            sending = self._send_shared(decode_head(head, SharedRequest))
        elif kind == TREE:
            sending = self._send_tree()
        elif kind == RELEASE:
            return msgspec.msgpack.encode(self._held.release(decode_head(head, str))), RpcBody(0, iter(()), _nothing)
        else:
            raise RequestRefused(f"members do not exchange {kind}")
        first = next(sending)  # once started, closing it releases the lock
        length = int.from_bytes(next(sending), "little")
        return bytes(first), RpcBody(length, sending, sending.close)

    def _send_stripe(self, wanted: StripeRequest) -> Generator[memoryview]:
        """Yield the head, the body's length, then the body."""
        if not 0 <= wanted.index < wanted.count <= STRIPES_MAX:
            raise RequestRefused(f"there is no stripe {wanted.index} of {wanted.count}")
        with self._lock.reading() as label:
            if label is None:
                raise RequestRefused("this member is leaving")
            lineage, state = label
            tree, arrays = self._layout()
            preface = msgspec.msgpack.encode(StripePreface(self._lines(), tree))
            yield memoryview(msgspec.msgpack.encode(StripeHeader(lineage, state, len(preface))))
            nbytes = leaf_sizes(tree)
            mine = [at for at in stripe_leaves(nbytes, wanted.index, wanted.count) if nbytes[at]]
            yield _length(len(preface) + sum(nbytes[at] for at in mine))
            yield memoryview(preface)
            for at in mine:
                yield self._content(arrays[at])

    def _send_shared(self, wanted: SharedRequest) -> Generator[memoryview]:
        """Copy the state where the joiner can read it. Reads are allowed only while it is copied."""
        if self._shared_memory is None or not wanted.machine or wanted.machine != this_machine():
            raise RequestRefused("this member shares no memory with that one")
        with self._lock.reading() as label:
            if label is None:
                raise RequestRefused("this member is leaving")
            lineage, state = label
            tree, arrays = self._layout()
            lines = self._lines()
            copy = self._shared_memory.copy(arrays)
        if copy is None:
            raise RequestRefused("this member has no room for a copy of its state")
        preface = msgspec.msgpack.encode(SharedPreface(lines, tree, copy.handle, self._held.hold(copy)))
        yield memoryview(msgspec.msgpack.encode(StripeHeader(lineage, state, len(preface))))
        yield _length(len(preface))
        yield memoryview(preface)

    def _send_tree(self) -> Generator[memoryview]:
        """Yield the tree alone, from which a joiner knows what memory it needs."""
        with self._lock.reading() as label:
            if label is None:
                raise RequestRefused("this member is leaving")
            tree, _ = self._layout()
        yield memoryview(b"")
        yield _length(len(tree))
        yield memoryview(tree)

    def _send_gradient(self, lineage: Lineage) -> Generator[memoryview]:
        line = next((each for each in self._lines() if each.lineage == lineage), None)
        gradient = self._gradient(lineage) if line is not None else None
        if gradient is None:
            yield memoryview(msgspec.msgpack.encode(GradientHeader(None)))
            yield _length(0)
            return
        yield memoryview(msgspec.msgpack.encode(GradientHeader(line, len(gradient.tree))))
        leaves = [leaf for leaf in gradient.leaves if leaf.nbytes]
        yield _length(len(gradient.tree) + sum(leaf.nbytes for leaf in leaves))
        yield memoryview(gradient.tree)
        for leaf in leaves:
            yield leaf.content


def _length(nbytes: int) -> memoryview:
    return memoryview(nbytes.to_bytes(8, "little"))


def _nothing() -> None:
    """Close a body that holds nothing."""


class StateDownload:
    """One attempt to receive a state, on its own threads. It ends by feeding the machine, or when it is stopped."""

    def __init__(
        self,
        peers: PeerServer,
        generation: int,
        donors: tuple[MemberId, ...],
        feed: Callable[[StateDownload, s.Signal], None],
        shared_memory: SharedMemory | None = None,
        expected_bytes: int = 0,
        memory: PreparedMemory | None = None,
    ) -> None:
        self.generation = generation
        self.donors = donors[:DONORS_MAX]
        self.received: ReceivedState | None = None
        self._stripes = len(self.donors)
        if self.donors and expected_bytes >= LARGE_BYTES:
            self._stripes = max(self._stripes, LARGE_STRIPES)
        self._shared_memory = shared_memory
        self._memory = memory or PreparedMemory()
        self._peers = peers
        self._feed = feed
        self._stop = threading.Event()
        self._labels: dict[int, tuple[Lineage, int, bytes]] = {}  # lineage, hash and tree, by stripe
        self._contents: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._received_bytes = 0  # to see progress
        self._last_seen_bytes = 0

    def start(self) -> None:
        if not self.donors:
            self._fail("there is no donor")
        elif self._shared_memory is not None:
            self._start_thread(self._receive_shared, self._shared_memory, self.donors[0])
        else:
            self._start_stripes()

    def _start_stripes(self) -> None:
        for index in range(self._stripes):
            self._start_thread(self._receive_stripe, index, self.donors[index % len(self.donors)])

    def _start_thread(self, target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=target, args=args, name="pliant-fetch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def is_progressing(self) -> bool:
        """Return whether bytes arrived since the last call, and nothing failed."""
        moved, self._last_seen_bytes = self._last_seen_bytes, self._received_bytes
        return not self._stop.is_set() and self.received is None and self._received_bytes > moved

    def _receive_shared(self, memory: SharedMemory, donor: MemberId) -> None:
        """Read a copy that the donor shares. Receive stripes if it shares none, or its copy cannot be read here."""
        try:
            wanted = msgspec.msgpack.encode(SharedRequest(this_machine()))
            with self._peers.request(self.generation, donor, SHARED, wanted, self._stop) as answer:
                head = decode_head(answer.head, StripeHeader)
                preface = decode_head(_read(answer, head.preface), SharedPreface)
            try:
                contents = memory.read(preface.handle, leaf_sizes(preface.tree))
            finally:
                is_held = self._release(donor, preface.copy_id)
            if not is_held:
                raise PeerLost(f"{donor} dropped its copy before it was read")
        except (RequestRefused, OSError) as error:
            log.debug("no shared copy of the state from %s (%s); receiving stripes", donor, error)
            self._start_stripes()
            return
        except TRANSFER_ERRORS as error:
            self._fail(str(error))
            return
        self._stripes = 1
        self._contents = dict(enumerate(contents))
        self._stripe_received(0, (head.lineage, head.state, preface.tree), preface.lines)

    def _release(self, donor: MemberId, copy_id: str) -> bool:
        sent = msgspec.msgpack.encode(copy_id)
        with self._peers.request(self.generation, donor, RELEASE, sent, self._stop) as answer:
            return decode_head(answer.head, bool)

    def _receive_stripe(self, index: int, donor: MemberId) -> None:
        try:
            wanted = msgspec.msgpack.encode(StripeRequest(index, self._stripes))
            with self._peers.request(self.generation, donor, STATE, wanted, self._stop) as answer:
                head = decode_head(answer.head, StripeHeader)
                preface = decode_head(_read(answer, head.preface), StripePreface)
                nbytes = leaf_sizes(preface.tree)
                mine = stripe_leaves(nbytes, index, self._stripes)
                if answer.length != head.preface + sum(nbytes[at] for at in mine):
                    raise PeerLost(f"{donor} sends {answer.length} bytes, which do not match its tree")
                for at in mine:
                    self._contents[at] = _read(answer, nbytes[at], self._count_bytes, self._memory.take)
        except TRANSFER_ERRORS as error:
            self._fail(str(error))
            return
        self._stripe_received(index, (head.lineage, head.state, preface.tree), preface.lines)

    def _count_bytes(self, nbytes: int) -> None:
        self._received_bytes += nbytes

    def _stripe_received(self, index: int, label: tuple[Lineage, int, bytes], lines: tuple[LedgerLine, ...]) -> None:
        with self._lock:
            self._labels[index] = label
            if len(self._labels) < self._stripes:
                return
        lineage, state, tree = label
        if any(each != label for each in self._labels.values()):
            same_step = {each[0] for each in self._labels.values()} == {lineage}
            spoilt = same_step and any(each[1] != state for each in self._labels.values())
            # Small values are user code's, and may differ: hashes may not.
            broken = s.TransferBroken(wrong_state=spoilt, values_differ=same_step and not spoilt)
            self._fail("the donors' states have different lineages or contents", broken)
            return
        self.received = ReceivedState(tree, tuple(self._contents[at] for at in sorted(self._contents)))
        self._memory.drop()
        for at in range(self._stripes):
            self._feed(self, s.Stripe(at, self._stripes, lineage, state, lines))

    def _fail(self, why: str, broken: s.TransferBroken = s.TransferBroken()) -> None:  # noqa: B008  # it is frozen
        if self._stop.is_set():
            return
        self._stop.set()
        # Donors that are between two steps are the rule after a kill; users need not hear of that.
        level = logging.INFO if broken.wrong_state or len(self._labels) < self._stripes else logging.DEBUG
        log.log(level, "the state could not be received (%s); retrying", why)
        again = threading.Timer(RETRY_S, self._feed, (self, broken))
        again.daemon = True
        again.start()


def prepare_memory(
    memory: PreparedMemory,
    peers: PeerServer,
    bytes_max: int,
    generation: int,
    donors: tuple[MemberId, ...],
    stop: threading.Event,
) -> None:
    """Prepare memory for the state of the donors, whose sizes one of them knows."""
    for donor in donors[:DONORS_MAX]:
        try:
            with peers.request(generation, donor, TREE, b"", stop) as answer:
                sizes = leaf_sizes(bytes(_read(answer, answer.length)))
        except TRANSFER_ERRORS as error:
            log.debug("%s did not send the sizes of its state: %s", donor, error)
            continue
        if all(nbytes >= 0 for nbytes in sizes) and sum(sizes) <= bytes_max:
            memory.prepare(sizes, stop)
        return


def fetch_gradient(
    peers: PeerServer, generation: int, donors: tuple[MemberId, ...], lineage: Lineage, stop: threading.Event
) -> tuple[LedgerLine, ReceivedState] | None:
    """Return the reduced gradient of that step from a donor that has it; None if none has.

    Raises PeerLost if none answers.
    """
    lost: PeerLost | None = None
    for donor in donors:
        try:
            with peers.request(generation, donor, GRADIENT, msgspec.msgpack.encode(lineage), stop) as answer:
                head = decode_head(answer.head, GradientHeader)
                if head.line is None or head.line.lineage != lineage:
                    continue
                tree = bytes(_read(answer, head.preface))
                return head.line, ReceivedState(tree, tuple(_read(answer, nbytes) for nbytes in leaf_sizes(tree)))
        except TRANSFER_ERRORS as error:
            lost = PeerLost(str(error))
    if lost is not None:
        raise lost
    return None


def decode_head(data: bytes | memoryview, kind: type[T]) -> T:
    """Decode the head or the preface of a transfer. Raises DamagedFrame if a peer sent anything else."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedFrame(f"this is not a {kind.__name__}: {error}") from error


def _read(
    answer: RpcReply,
    nbytes: int,
    moved: Callable[[int], None] | None = None,
    allocate: Callable[[int], Memory] = allocate,
) -> memoryview:
    """Read bytes of a reply. Their number comes from the peer, so it is checked before memory is allocated."""
    if not 0 <= nbytes <= answer.length:
        raise DamagedFrame(f"a peer announced {nbytes} bytes in a reply of {answer.length}")
    room = memoryview(allocate(nbytes))
    for start in range(0, nbytes, PIECE):
        piece = room[start : start + PIECE]
        answer.readinto(piece)
        if moved is not None:
            moved(len(piece))
    return room
