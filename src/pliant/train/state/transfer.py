"""Transfer of state and gradients from donors (rules 13, 15).

Donors send live memory while reads are allowed, so nothing is copied and only the apply waits. Each stripe carries its
label and the whole tree. Only stripes of one lineage, from donors whose trees are equal to the byte, are put together,
and every byte is checked on the way. The receiver keeps the state apart until it is complete.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member import signals as s
from pliant.core.model.names import MemberId
from pliant.errors import PliantError
from pliant.train.peer.rpc import RpcBody
from pliant.train.peer.server import DamagedFrame, PeerLost, PeerServer, RequestRefused, RpcReply
from pliant.train.state.flat import Leaf, State, leaf_sizes, stripe_leaves
from pliant.train.state.state_lock import StateLock

log = logging.getLogger(__name__)

T = TypeVar("T")

STATE, GRADIENT = "state", "gradient"
STRIPES_MAX = 3
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
    """A received state or gradient, complete and checked, not installed yet."""

    tree: bytes
    contents: tuple[memoryview, ...]


def copy_state(state: State) -> ReceivedState:
    """Return a copy of a state, without live memory."""
    return ReceivedState(state.tree, tuple(memoryview(bytearray(leaf.content)) for leaf in state.leaves))


class StateSource:
    """The donor's side of a transfer. The adapter provides the two captures, which return live memory."""

    def __init__(
        self,
        gate: StateLock,
        capture: Callable[[], State],
        gradient: Callable[[Lineage], State | None],
        lines: Callable[[], tuple[LedgerLine, ...]],
    ) -> None:
        self._lock = gate
        self._capture = capture
        self._gradient = gradient
        self._lines = lines

    def answer(self, kind: str, head: bytes) -> tuple[bytes, RpcBody]:
        """Answer a peer's request.

        Blocks until the state may be read, and keeps it so until the body is sent or closed.
        """
        if kind == STATE:
            sending = self._send_stripe(decode_head(head, StripeRequest))
        elif kind == GRADIENT:
            sending = self._send_gradient(decode_head(head, Lineage))
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
            whole = self._capture()
            preface = msgspec.msgpack.encode(StripePreface(self._lines(), whole.tree))
            yield memoryview(msgspec.msgpack.encode(StripeHeader(lineage, state, len(preface))))
            mine = stripe_leaves([leaf.nbytes for leaf in whole.leaves], wanted.index, wanted.count)
            leaves = [whole.leaves[at] for at in mine if whole.leaves[at].nbytes]
            yield _length(len(preface), leaves)
            yield memoryview(preface)
            for leaf in leaves:
                yield leaf.content

    def _send_gradient(self, lineage: Lineage) -> Generator[memoryview]:
        line = next((each for each in self._lines() if each.lineage == lineage), None)
        gradient = self._gradient(lineage) if line is not None else None
        if gradient is None:
            yield memoryview(msgspec.msgpack.encode(GradientHeader(None)))
            yield _length(0, [])
            return
        yield memoryview(msgspec.msgpack.encode(GradientHeader(line, len(gradient.tree))))
        leaves = [leaf for leaf in gradient.leaves if leaf.nbytes]
        yield _length(len(gradient.tree), leaves)
        yield memoryview(gradient.tree)
        for leaf in leaves:
            yield leaf.content


def _length(preface: int, leaves: list[Leaf]) -> memoryview:
    return memoryview((preface + sum(leaf.nbytes for leaf in leaves)).to_bytes(8, "little"))


class StateDownload:
    """One attempt to receive a state, on its own threads. It ends by feeding the machine, or when it is stopped."""

    def __init__(
        self,
        peers: PeerServer,
        generation: int,
        donors: tuple[MemberId, ...],
        feed: Callable[[StateDownload, s.Signal], None],
    ) -> None:
        self.generation = generation
        self.donors = donors[:STRIPES_MAX]
        self.received: ReceivedState | None = None
        self._peers = peers
        self._feed = feed
        self._stop = threading.Event()
        self._labels: dict[int, tuple[Lineage, int, bytes]] = {}  # lineage, hash and tree, by stripe
        self._contents: dict[int, memoryview] = {}
        self._lock = threading.Lock()
        self._received_bytes = 0  # to see progress
        self._last_seen_bytes = 0

    def start(self) -> None:
        if not self.donors:
            self._fail("there is no donor")
        for index, donor in enumerate(self.donors):
            threading.Thread(target=self._receive_stripe, args=(index, donor), name="pliant-fetch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def is_progressing(self) -> bool:
        """Return whether bytes arrived since the last call, and nothing failed."""
        moved, self._last_seen_bytes = self._last_seen_bytes, self._received_bytes
        return not self._stop.is_set() and self.received is None and self._received_bytes > moved

    def _receive_stripe(self, index: int, donor: MemberId) -> None:
        try:
            wanted = msgspec.msgpack.encode(StripeRequest(index, len(self.donors)))
            with self._peers.request(self.generation, donor, STATE, wanted, self._stop) as answer:
                head = decode_head(answer.head, StripeHeader)
                preface = decode_head(_read(answer, head.preface), StripePreface)
                nbytes = leaf_sizes(preface.tree)
                mine = stripe_leaves(nbytes, index, len(self.donors))
                if answer.length != head.preface + sum(nbytes[at] for at in mine):
                    raise PeerLost(f"{donor} sends {answer.length} bytes, which do not match its tree")
                for at in mine:
                    self._contents[at] = _read(answer, nbytes[at], self._count_bytes)
        except TRANSFER_ERRORS as error:
            self._fail(str(error))
            return
        self._stripe_received(index, (head.lineage, head.state, preface.tree), preface.lines)

    def _count_bytes(self, nbytes: int) -> None:
        self._received_bytes += nbytes

    def _stripe_received(self, index: int, label: tuple[Lineage, int, bytes], lines: tuple[LedgerLine, ...]) -> None:
        with self._lock:
            self._labels[index] = label
            if len(self._labels) < len(self.donors):
                return
        lineage, state, tree = label
        if any(each != label for each in self._labels.values()):
            # Small values may differ for a moment: user code changes them at the top of its loop. Hashes may not.
            spoilt = {each[0] for each in self._labels.values()} == {lineage} and any(
                each[1] != state for each in self._labels.values()
            )
            self._fail("the donors' states have different lineages or contents", spoilt=spoilt)
            return
        self.received = ReceivedState(tree, tuple(self._contents[at] for at in sorted(self._contents)))
        for at in range(len(self.donors)):
            self._feed(self, s.Stripe(at, len(self.donors), lineage, state, lines))

    def _fail(self, why: str, *, spoilt: bool = False) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        # Donors that are between two steps are the rule after a kill; users need not hear of that.
        level = logging.INFO if spoilt or len(self._labels) < len(self.donors) else logging.DEBUG
        log.log(level, "the state could not be received (%s); retrying", why)
        again = threading.Timer(RETRY_S, self._feed, (self, s.TransferBroken(spoilt)))
        again.daemon = True
        again.start()


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


def _read(answer: RpcReply, nbytes: int, moved: Callable[[int], None] | None = None) -> memoryview:
    """Read bytes of a reply. Their number comes from the peer, so it is checked before memory is allocated."""
    if not 0 <= nbytes <= answer.length:
        raise DamagedFrame(f"a peer announced {nbytes} bytes in a reply of {answer.length}")
    room = memoryview(bytearray(nbytes))
    for start in range(0, nbytes, PIECE):
        piece = room[start : start + PIECE]
        answer.readinto(piece)
        if moved is not None:
            moved(len(piece))
    return room
