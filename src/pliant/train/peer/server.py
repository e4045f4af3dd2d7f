"""How the members of a live job talk to one another, besides the tensors' own transport.

Each member listens on one port, whatever the generation. A connection belongs to one generation and is opened with that
generation's key, which the coordinator gives to its members alone (`pliant.train.peer.framing` has the
handshake). Over it a member *tells* (one way, in order, once) or *asks* (one question, one answer, which may be large).

    peers = Peers(host, me, hear, give)
    peers.know(7, key, {...})               # from the coordinator's view; now members of 7 can talk to us
    peers.tell(7, member, "store", head)    # never waits
    with peers.ask(7, member, "state", head, stop) as answer:
        answer.readinto(view)
    peers.forget(7)                         # everything below 7 ends

Nobody here decides that a member is lost: `PeerLost` says that this conversation is over.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from pliant.core.model.names import MemberId
from pliant.errors import BadInput
from pliant.train.peer.framing import (
    HANDSHAKE_S,
    POLL_S,
    DamagedFrame,
    GenerationUnknown,
    PeerConnection,
    PeerLost,
    WaitCheck,
    authenticate_peer,
    authenticate_to_peer,
    deadline_check,
)
from pliant.train.peer.rpc import (
    RETRY_FIRST_S,
    RETRY_MAX_S,
    NotificationHandler,
    NotificationSender,
    RequestHandler,
    RequestRefused,
    RpcReceiver,
    RpcReply,
    require_small,
    send_request,
)

__all__ = ["DamagedFrame", "PeerLost", "PeerServer", "RequestRefused", "RpcReply", "StopEvent"]

UNAUTHENTICATED_MAX = 64  # connections at a time that have not shown who they are; for one more the oldest ends
KEY_MIN = 16  # bytes
CONNECT_S = 10.0  # for one attempt, with the handshake

_log = logging.getLogger(__name__)


class StopEvent(Protocol):
    """What calls off a question: a `threading.Event`, or something like it."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float) -> bool: ...


@dataclass(eq=False)
class _Generation:
    """Who may talk in one generation, and every connection in it."""

    number: int
    key: bytes = field(repr=False)
    addresses: dict[MemberId, str]
    over: threading.Event = field(default_factory=threading.Event)
    connections: set[PeerConnection] = field(default_factory=set)
    senders: dict[MemberId, NotificationSender] = field(default_factory=dict)
    receivers: dict[MemberId, RpcReceiver] = field(default_factory=dict)


class PeerServer:
    """One member's conversations with the others. Make it before joining, so that its address can be told.

    `hear(generation, sender, kind, head)` is called for what others tell, in order for each sender; it should return
    soon. `give(generation, asker, kind, head)` answers a question with a head and the memory to send, and may take as
    long as it needs; it raises `RequestRefused` to say no. Both are called on threads of their own, several at a time.
    """

    def __init__(self, host: str, me: MemberId, hear: NotificationHandler, give: RequestHandler) -> None:
        self._me = me
        self._on_notification = hear
        self._on_request = give
        self._lock = threading.Lock()
        self._generations: dict[int, _Generation] = {}
        self._floor = 0  # generations below are forgotten
        self._unauthenticated: dict[PeerConnection, None] = {}  # oldest first
        self._closed = threading.Event()
        if host in ("", "0.0.0.0", "::"):
            raise BadInput(
                f"Peers must be told one address to reach this member at; {host!r} is none. Name an interface's."
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=512)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._listening = threading.Thread(target=self._listen, name="pliant-listen", daemon=True)
        self._listening.start()

    def add_generation(self, generation: int, key: str, addresses: Mapping[MemberId, str]) -> None:
        """When the coordinator's view shows a generation: from here on its members can talk to us, and we to them."""
        try:
            secret = bytes.fromhex(key)
        except ValueError:
            secret = b""
        if len(secret) < KEY_MIN:
            raise BadInput(f"The key of generation {generation} must be at least {2 * KEY_MIN} hexadecimal digits.")
        with self._lock:
            if self._is_over(generation):
                return
            known = self._generations.setdefault(generation, _Generation(generation, secret, {}))
            known.key = secret
            known.addresses = dict(addresses)

    def forget_below(self, below: int) -> None:
        """When generations below are over: their connections end, and what was still to be told is given up."""
        with self._lock:
            self._floor = max(self._floor, below)
            numbers = [number for number in self._generations if number < self._floor]
            forgotten = [self._generations.pop(number) for number in numbers]
        for generation in forgotten:
            self._close_generation(generation)

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        """Have `member` hear this, after all it was told before. Sent again until it was heard or is forgotten."""
        require_small(kind, head)
        with self._lock:
            if self._is_over(generation):
                return
            known = self._require_generation(generation, member)
            if member not in known.senders:
                known.senders[member] = NotificationSender(
                    lambda: self._open(known, member, lambda: None),
                    lambda line: self._remove_connection(known, line),
                    known.over,
                )
            teller = known.senders[member]
        teller.put(kind, head)

    def request(self, generation: int, member: MemberId, kind: str, head: bytes, stop: StopEvent) -> RpcReply:
        """Wait for `member`'s reply. Raises `RequestRefused` from it, `PeerLost` if it is gone or `stop` is set."""
        require_small(kind, head)
        lost = f"{member} cannot be asked for {kind} in generation {generation}"
        with self._lock:
            if self._is_over(generation):
                raise PeerLost(f"{lost}: it is over")
            known = self._require_generation(generation, member)

        def check() -> None:
            if stop.is_set() or known.over.is_set():
                raise PeerLost(f"{lost}: nobody wants the answer any more")

        try:
            line = self._open_with_retries(known, member, check, stop)
            try:
                line.set_check(check)
                return send_request(line, kind, head, lambda: self._remove_connection(known, line), lost)
            except BaseException:  # why: whatever ended the question, its connection must not stay open
                self._remove_connection(known, line)
                raise
        except OSError as error:
            raise PeerLost(f"{lost}: {error}") from error

    def close(self) -> None:
        """At the end of this member's life: whoever waits here, or for us, hears so."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            generations = list(self._generations.values())
            self._generations.clear()
            strangers = list(self._unauthenticated)
        for line in strangers:
            line.shut_down()
        for generation in generations:
            self._close_generation(generation)
        self._listening.join()
        for teller in [teller for generation in generations for teller in generation.senders.values()]:
            teller.thread.join()

    # ------------------------------------------------------------------------------------ whom we know

    def _is_over(self, generation: int) -> bool:
        return generation < self._floor or self._closed.is_set()

    def _require_generation(self, generation: int, member: MemberId) -> _Generation:
        known = self._generations.get(generation)
        if known is None or member not in known.addresses:
            raise BadInput(f"No address of {member} in generation {generation} is known here; `know` comes first.")
        return known

    def _close_generation(self, generation: _Generation) -> None:
        generation.over.set()
        with self._lock:
            lines, tellers = list(generation.connections), list(generation.senders.values())
        for line in lines:
            line.shut_down()
        for teller in tellers:
            teller.wake()

    def _add_connection(self, generation: _Generation, line: PeerConnection) -> None:
        with self._lock:
            generation.connections.add(line)
        if generation.over.is_set():  # forgotten while we connected: too late for `_end` to have seen this one
            line.shut_down()

    def _remove_connection(self, generation: _Generation, line: PeerConnection) -> None:
        with self._lock:
            generation.connections.discard(line)
        line.close()

    # ------------------------------------------------------------------------------------ connections we make

    def _open_with_retries(
        self, generation: _Generation, member: MemberId, check: WaitCheck, stop: StopEvent
    ) -> PeerConnection:
        """The other side may be told of the generation a moment later than we are."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return self._open(generation, member, check)
            except GenerationUnknown:
                stop.wait(pause_s)
                check()
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _open(self, generation: _Generation, member: MemberId, wanted: WaitCheck) -> PeerConnection:
        in_time = deadline_check(CONNECT_S)

        def check() -> None:
            wanted()
            in_time()
            if generation.over.is_set():
                raise ConnectionResetError("it is over")

        line = PeerConnection(_connect(generation.addresses[member], check), check)
        self._add_connection(generation, line)
        try:
            authenticate_to_peer(line, generation.number, self._me, member, generation.key)
        except BaseException:  # why: whoever did not become a peer must not keep a connection
            self._remove_connection(generation, line)
            raise
        line.set_check(None)
        return line

    # ------------------------------------------------------------------------------------ connections made to us

    def _listen(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    sock, _ = self._listener.accept()
                except OSError as error:
                    if not self._closed.wait(POLL_S):  # out of descriptors, most likely: some may be free again soon
                        _log.warning("A connection could not be accepted: %s.", error)
                    continue
                line = PeerConnection(sock, deadline_check(HANDSHAKE_S))
                with self._lock:
                    if len(self._unauthenticated) >= UNAUTHENTICATED_MAX:
                        oldest = next(iter(self._unauthenticated))
                        del self._unauthenticated[oldest]
                        oldest.shut_down()
                    self._unauthenticated[line] = None
                threading.Thread(target=self._serve, args=(line,), name="pliant-peer", daemon=True).start()

    def _serve(self, line: PeerConnection) -> None:
        try:
            number, sender = self._authenticate(line)
            with self._lock:
                generation = self._generations.get(number)
                if generation is None:
                    return
                ear = generation.receivers.setdefault(
                    sender, RpcReceiver(number, sender, self._on_notification, self._on_request)
                )
            self._add_connection(generation, line)
            try:
                line.set_check(None)
                ear.serve(line)
            finally:
                self._remove_connection(generation, line)
        except (PeerLost, GenerationUnknown) as error:
            _log.debug("A connection was ended: %s.", error)
        except OSError:
            pass  # the other side went away, or we ended it
        finally:
            line.close()

    def _authenticate(self, line: PeerConnection) -> tuple[int, MemberId]:
        try:
            return authenticate_peer(line, self._me, self._key_of)
        finally:
            with self._lock:
                self._unauthenticated.pop(line, None)

    def _key_of(self, generation: int, member: MemberId) -> bytes | None:
        with self._lock:
            known = self._generations.get(generation)
            return known.key if known is not None and member in known.addresses else None


def _connect(address: str, check: WaitCheck) -> socket.socket:
    """A connection to there; `check` is asked while it takes its time."""
    host, _, port = address.rpartition(":")
    family, kind, number, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, number)
    try:
        sock.setblocking(False)
        pending = sock.connect_ex(where)
        while pending == errno.EINPROGRESS and not select.select([], [sock], [], POLL_S)[1]:
            check()
        if pending in (0, errno.EINPROGRESS):
            pending = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if pending:
            raise ConnectionError(pending, f"{address}: {os.strerror(pending)}")
    except BaseException:  # why: whatever ended the attempt, the socket must not stay
        sock.close()
        raise
    return sock
