"""The harness's side of every connection: the simulator's own fabric, fed by real processes in real time.

`pliant_sim.collectives.Fabric` asks its universe for time, chance, who is there and who is cut off from whom. A
`Switch` is such a universe, of one thread: sockets, timers, and what other threads post.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from time import monotonic
from typing import Protocol, cast

from pliant.core.member import signals as s
from pliant.core.member.control_words import Purpose, Words
from pliant.core.model.names import MemberId
from pliant_sim.collectives import Fabric
from pliant_sim.live.member_checks import MemberChecks
from pliant_sim.live.toy_model import Content
from schedules import messages as w

DATA_PLANE = (
    s.Wire
    | s.Break
    | w.Enter
    | w.TellLetIn
    | w.TellReleased
    | w.AskStripe
    | w.GiveStripe
    | w.AskGradient
    | w.GiveGradient
)

LOOK_S = 0.1  # what is waited for may come without a message: the end of a process, say


class Observer(Protocol):
    """The receiver of everything else that the processes report."""

    def arrived(self, hello: w.Hello) -> None: ...

    def traced(self, member: MemberId | None, message: w.Up) -> None: ...

    def closed(self, member: MemberId) -> None: ...


@dataclass(slots=True)
class Peer:
    """One connection."""

    socket: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    member: MemberId | None = None  # None: it has not said yet, or is an agent


class Switch:
    """All connections of one schedule, its timers, and the fabric between its members."""

    checks: MemberChecks
    verifies = False  # flipped bits are the simulator's

    def __init__(self, path: Path, chance: Random) -> None:
        self.chance = chance
        self.fabric = Fabric(self)
        self.observer: Observer
        self.cut_members: set[tuple[MemberId, MemberId]] = set()
        self.breaking: set[MemberId] = set()  # whose next transfer is broken
        self.broke: Callable[[], None] = lambda: None
        self.pace = 1.0
        self._began = monotonic()
        self._timers: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0
        self._members: dict[MemberId, Peer] = {}
        self._owed: dict[MemberId, list[tuple[MemberId, int]]] = {}  # by donor: who waits for which transfer
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(64)
        for each in (self._server, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)

    # ------------------------------------------------------------------------------------------------ time

    @property
    def now(self) -> float:
        return monotonic() - self._began

    def after(self, delay_s: float, act: Callable[..., None], *args: object) -> None:
        self._sequence += 1
        heappush(self._timers, (self.now + delay_s, self._sequence, act, args))

    def post(self, act: Callable[[], None]) -> None:
        """Call from any thread."""
        self._posted.put(act)
        with suppress(OSError):  # the loop is over
            self._wake.send(b"!")

    def run(self, until_s: float, done: Callable[[], bool]) -> bool:
        """Serve until it is done, or until then; whether it was done."""
        while not done():
            left_s = min(until_s - self.now, LOOK_S)
            if until_s <= self.now:
                return False
            if self._timers:
                left_s = min(left_s, self._timers[0][0] - self.now)
            for key, _ in self._selector.select(max(left_s, 0.0)):
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                else:
                    self._read(key.data)
            with suppress(Empty):
                while True:
                    self._posted.get_nowait()()
            while self._timers and self._timers[0][0] <= self.now:
                _, _, act, args = heappop(self._timers)
                act(*args)
        return True

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            cast(socket.socket, key.fileobj).close()
        self._selector.close()
        self._wake.close()

    # --------------------------------------------------------------------------------------------- sockets

    def _accept(self) -> None:
        accepted, _ = self._server.accept()
        accepted.setblocking(False)
        self._selector.register(accepted, selectors.EVENT_READ, Peer(accepted))

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.buffer += data
        for frame in w.unframed(peer.buffer):
            self._hear(peer, w.UP.decode(frame))
        if not data:
            self._selector.unregister(peer.socket)
            peer.socket.close()
            if peer.member is not None and self._members.get(peer.member) is peer:
                self._dies(peer.member)

    def _hear(self, peer: Peer, message: w.Up) -> None:
        if isinstance(message, w.Hello):
            self.observer.arrived(message)
            if message.member:
                peer.member = message.member
                self._members[message.member] = peer
                self.send(message.member, w.Pace(self.pace))
        elif not isinstance(message, DATA_PLANE):
            self.observer.traced(peer.member, message)
        elif peer.member is not None:
            self._carry(peer.member, message)

    def send(self, member: MemberId, message: w.Down) -> None:
        peer = self._members.get(member)
        if peer is None:
            return
        first = not peer.unsent
        peer.unsent += w.framed(w.DOWN.encode(message))
        if first:
            self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        """A stopped process does not read; what does not fit into its socket waits here."""
        if peer.unsent and peer in self._members.values():
            with suppress(OSError):
                del peer.unsent[: peer.socket.send(peer.unsent)]
            if peer.unsent:
                self.after(0.05, self._flush, peer)

    def _dies(self, member: MemberId) -> None:
        del self._members[member]
        self.fabric.dies(member)
        for asker, transfer in self._owed.pop(member, []):
            self.send(asker, w.Broken(transfer))
        self.observer.closed(member)

    # ------------------------------------------------------------------------------ what the fabric asks for

    @property
    def any_cut(self) -> bool:
        return bool(self.cut_members)

    def is_cut(self, a: MemberId, b: MemberId) -> bool:
        return (a, b) in self.cut_members

    def exists(self, member: MemberId) -> bool:
        return member in self._members

    def errs(self, member: MemberId) -> bool:
        """Return False: wrong gradients are the simulator's."""
        return False

    def feed(self, member: MemberId, signal: s.Wired | s.WireFailed | s.Returned | s.Failed) -> None:
        self.send(member, signal)

    def reduced(self, member: MemberId, words: Words, content: Content) -> None:
        if words[0].purpose is Purpose.STEP:
            self.send(member, w.Reduced(content))

    # ------------------------------------------------------------------------------------------ data plane

    def _carry(self, member: MemberId, message: DATA_PLANE) -> None:
        match message:
            case s.Wire(world):
                self.fabric.wire(member, world)
            case s.Break(generation):
                self.fabric.break_group(member, generation)
            case w.Enter(collect, part):
                self.fabric.enter(member, collect, part)
            case w.TellLetIn(target, signal) | w.TellReleased(target, signal):
                if not self.is_cut(member, target):
                    self.after(self.chance.uniform(0.001, 0.02), self.send, target, signal)
            case w.AskStripe(donor, transfer, index, count):
                wanted = w.StripeWanted(member, transfer, index, count)
                self.after(self.chance.uniform(0.01, 0.1), self._ask, donor, member, transfer, wanted)
            case w.AskGradient(donor, lineage):
                self.after(
                    self.chance.uniform(0.005, 0.03), self._ask, donor, member, 0, w.GradientWanted(member, lineage)
                )
            case w.GiveStripe(asker, transfer, index, count, model, lines):
                self._give(member, asker, transfer, w.StripeGiven(transfer, index, count, model, lines))
            case w.GiveGradient(asker, lineage, line, content):
                self._give(member, asker, 0, w.GradientGiven(lineage, line, content))

    def _ask(self, donor: MemberId, asker: MemberId, transfer: int, wanted: w.StripeWanted | w.GradientWanted) -> None:
        if transfer and asker in self.breaking:
            self.breaking.discard(asker)
            self.broke()
            self.send(asker, w.Broken(transfer))
        elif not self.exists(donor) or self.is_cut(donor, asker):
            self.send(asker, w.Broken(transfer))
        else:
            self._owed.setdefault(donor, []).append((asker, transfer))
            self.send(donor, wanted)

    def _give(self, donor: MemberId, asker: MemberId, transfer: int, given: w.StripeGiven | w.GradientGiven) -> None:
        owed = self._owed.get(donor, [])
        if (asker, transfer) in owed:
            owed.remove((asker, transfer))
        self.send(asker, w.Broken(transfer) if self.is_cut(donor, asker) else given)
