"""Connections between the members of a live job, besides the tensors' own transport.

Each member listens on one port for all generations. A connection belongs to one generation and is opened with that
generation's key, which only its members receive from the coordinator (`pliant.train.peer.framing` has the handshake).
With a `PeerTls` everything is encrypted, and only members that encrypt as well can connect.
Over it a member sends *notifications* (one way, in order, once) or one *request* with a reply that may be large.

    peers = PeerServer(host, me, on_notification, on_request)
    peers.add_generation(7, key, {...})      # from the coordinator's view; members of 7 can connect now
    peers.notify(7, member, "store", head)   # never waits
    with peers.request(7, member, "state", head, stop) as reply:
        reply.readinto(view)
    peers.forget_below(7)                    # ends everything below 7

This module never declares a member lost: `PeerLost` means that this exchange is over.
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
from typing import TYPE_CHECKING, Protocol

from pliant.core.model.names import MemberId
from pliant.errors import BadInput
from pliant.train.peer.framing import (
    HANDSHAKE_S,
    POLL_S,
    DamagedFrame,
    GenerationUnknown,
    OtherEncryption,
    PeerConnection,
    PeerLost,
    WaitCheck,
    authenticate_peer,
    authenticate_to_peer,
    deadline_check,
)
from pliant.train.peer.rpc import (
    NotificationHandler,
    NotificationSender,
    RequestHandler,
    RequestRefused,
    RpcReceiver,
    RpcReply,
    request_stream,
    require_small,
    retry_pauses,
    send_request,
)

if TYPE_CHECKING:  # it needs a package that members without a CA need not have
    from pliant.train.peer.tls import PeerTls

__all__ = ["DamagedFrame", "PeerLost", "PeerServer", "RequestRefused", "RpcReply", "StopEvent"]

UNAUTHENTICATED_MAX = 64  # connections at a time; one more ends the oldest
KEY_MIN = 16  # bytes
CONNECT_S = 10.0  # limit of one attempt, including the handshake

_log = logging.getLogger(__name__)


class StopEvent(Protocol):
    """Cancels a request: a `threading.Event`, or an object like it."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float) -> bool: ...


@dataclass(eq=False)
class _Generation:
    """The addresses of one generation, and every connection in it."""

    number: int
    key: bytes = field(repr=False)
    addresses: dict[MemberId, str]
    over: threading.Event = field(default_factory=threading.Event)
    connections: set[PeerConnection] = field(default_factory=set)
    senders: dict[MemberId, NotificationSender] = field(default_factory=dict)
    receivers: dict[MemberId, RpcReceiver] = field(default_factory=dict)
    streams: dict[MemberId, PeerConnection] = field(default_factory=dict)  # accepted, not taken yet


class PeerServer:
    """One member's connections to the others. Create it before joining, because the join sends its address.

    `on_notification(generation, sender, kind, head)` receives notifications, in order for each sender, and should
    return soon. `on_request(generation, sender, kind, head)` returns a head and the memory to send, and may take any
    time. It raises `RequestRefused` to refuse. Both run on their own threads, several at a time.
    """

    def __init__(
        self,
        host: str,
        me: MemberId,
        on_notification: NotificationHandler,
        on_request: RequestHandler,
        tls: PeerTls | None = None,
    ) -> None:
        self._me = me
        self._tls = tls
        self._warned = False
        self._on_notification = on_notification
        self._on_request = on_request
        self._lock = threading.Lock()
        self._streamed = threading.Condition(self._lock)  # notified when a stream was accepted, or a generation ended
        self._generations: dict[int, _Generation] = {}
        self._floor = 0  # generations below are over
        self._unauthenticated: dict[PeerConnection, None] = {}  # oldest first
        self._closed = threading.Event()
        if host in ("", "0.0.0.0", "::"):
            raise BadInput(
                f"Peers need one address to reach this member; {host!r} is none. Pass the address of an interface."
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=512)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._listening = threading.Thread(target=self._listen, name="pliant-listen", daemon=True)
        self._listening.start()

    def add_generation(self, generation: int, key: str, addresses: Mapping[MemberId, str]) -> None:
        """Allow connections with the members of a generation, from the coordinator's view."""
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
        """End the generations below: close their connections and drop their queued notifications."""
        with self._lock:
            self._floor = max(self._floor, below)
            numbers = [number for number in self._generations if number < self._floor]
            forgotten = [self._generations.pop(number) for number in numbers]
        for generation in forgotten:
            self._close_generation(generation)

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        """Queue a notification for `member`, after all earlier ones.

        It is repeated until it is acknowledged or too old.
        """
        require_small(kind, head)
        with self._lock:
            if self._is_over(generation):
                return
            known = self._require_generation(generation, member)
            if member not in known.senders:
                known.senders[member] = NotificationSender(
                    lambda: self._open(known, member, lambda: None),
                    lambda connection: self._remove_connection(known, connection),
                    known.over,
                )
            sender = known.senders[member]
        sender.put(kind, head)

    def request(self, generation: int, member: MemberId, kind: str, head: bytes, stop: StopEvent) -> RpcReply:
        """Wait for `member`'s reply. Raises `RequestRefused`, or `PeerLost` if the member is gone or `stop` is set."""
        require_small(kind, head)
        failure = f"the request for {kind} to {member} in generation {generation} failed"
        with self._lock:
            if self._is_over(generation):
                raise PeerLost(f"{failure}: the generation is over")
            known = self._require_generation(generation, member)

        def check() -> None:
            if stop.is_set() or known.over.is_set():
                raise PeerLost(f"{failure}: it was cancelled")

        try:
            connection = self._open_with_retries(known, member, check, stop)
            try:
                connection.set_check(check)
                return send_request(connection, kind, head, lambda: self._remove_connection(known, connection), failure)
            except BaseException:  # why: the connection must not stay open, whatever the error
                self._remove_connection(known, connection)
                raise
        except OSError as error:
            raise PeerLost(f"{failure}: {error}") from error

    def open_stream(self, generation: int, member: MemberId, check: WaitCheck) -> socket.socket:
        """Return an authenticated connection to `member`, for bytes without frames. The caller closes it.

        Retries while the member does not have the generation yet. Raises `PeerLost`, `OSError` or what `check` raises.
        """
        with self._lock:
            if self._is_over(generation):
                raise PeerLost(f"generation {generation} is over")
            known = self._require_generation(generation, member)
        connection = self._open_with_retries(known, member, check, known.over)
        try:
            request_stream(connection)
        except BaseException:  # why: the connection must not stay open, whatever the error
            self._remove_connection(known, connection)
            raise
        with self._lock:
            known.connections.discard(connection)
        return connection.detach()

    def accept_stream(self, generation: int, member: MemberId, check: WaitCheck) -> socket.socket:
        """Wait for the stream that `member` opens, and return it. The caller closes it.

        Raises `PeerLost` if the generation is over, or what `check` raises.
        """
        with self._streamed:
            while True:
                known = self._generations.get(generation)
                if known is None:
                    raise PeerLost(f"generation {generation} is over")
                if (connection := known.streams.pop(member, None)) is not None:
                    return connection.detach()
                check()
                self._streamed.wait(POLL_S)

    def wake(self) -> None:
        """Make every `accept_stream` call its check now."""
        with self._streamed:
            self._streamed.notify_all()

    def close(self) -> None:
        """Close all connections at the end of this member's life."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            generations = list(self._generations.values())
            self._generations.clear()
            unauthenticated = list(self._unauthenticated)
        for connection in unauthenticated:
            connection.shut_down()
        for generation in generations:
            self._close_generation(generation)
        self._listening.join()
        for sender in [sender for generation in generations for sender in generation.senders.values()]:
            sender.thread.join()

    # ------------------------------------------------------------------------------------ generations

    def _is_over(self, generation: int) -> bool:
        return generation < self._floor or self._closed.is_set()

    def _require_generation(self, generation: int, member: MemberId) -> _Generation:
        known = self._generations.get(generation)
        if known is None or member not in known.addresses:
            raise BadInput(f"No address of {member} in generation {generation} is known; call `add_generation` first.")
        return known

    def _close_generation(self, generation: _Generation) -> None:
        generation.over.set()
        with self._streamed:
            connections, senders = list(generation.connections), list(generation.senders.values())
            streams = list(generation.streams.values())
            generation.streams.clear()
            self._streamed.notify_all()
        for stream in streams:
            stream.close()
        for connection in connections:
            connection.shut_down()
        for sender in senders:
            sender.wake()

    def _add_connection(self, generation: _Generation, connection: PeerConnection) -> None:
        with self._lock:
            generation.connections.add(connection)
        if generation.over.is_set():  # `_close_generation` may have run while this connection was opened
            connection.shut_down()

    def _remove_connection(self, generation: _Generation, connection: PeerConnection) -> None:
        with self._lock:
            generation.connections.discard(connection)
        connection.close()

    # ------------------------------------------------------------------------------------ outgoing connections

    def _open_with_retries(
        self, generation: _Generation, member: MemberId, check: WaitCheck, stop: StopEvent
    ) -> PeerConnection:
        """Open a connection; the other side may receive the generation a moment later than this one."""
        pauses = retry_pauses()
        while True:
            try:
                return self._open(generation, member, check)
            except GenerationUnknown:
                stop.wait(next(pauses))
                check()

    def _open(self, generation: _Generation, member: MemberId, wanted: WaitCheck) -> PeerConnection:
        in_time = deadline_check(CONNECT_S)

        def check() -> None:
            wanted()
            in_time()
            if generation.over.is_set():
                raise ConnectionResetError("the generation is over")

        connection = PeerConnection(connect(generation.addresses[member], check), check)
        self._add_connection(generation, connection)
        try:
            if self._tls is not None:
                self._tls.connect(connection)
            authenticate_to_peer(connection, generation.number, self._me, member, generation.key)
        except BaseException:  # why: a failed handshake must not leave a connection open, whatever the error
            self._remove_connection(generation, connection)
            raise
        connection.set_check(None)
        return connection

    # ------------------------------------------------------------------------------------ incoming connections

    def _listen(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    sock, _ = self._listener.accept()
                except OSError as error:
                    if not self._closed.wait(POLL_S):  # most likely out of descriptors; some may soon be free
                        _log.warning("A connection could not be accepted: %s.", error)
                    continue
                self._start_serving(sock)

    def _start_serving(self, sock: socket.socket) -> None:
        """Serve a connection in a thread of its own; close it if the system has none. The peer tries again."""
        try:
            connection = PeerConnection(sock, deadline_check(HANDSHAKE_S))
        except OSError as error:  # the peer has closed it already, for example
            sock.close()
            _log.warning("A connection could not be served: %s.", error)
            return
        with self._lock:
            if len(self._unauthenticated) >= UNAUTHENTICATED_MAX:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                oldest.shut_down()
            self._unauthenticated[connection] = None
        try:
            threading.Thread(target=self._serve, args=(connection,), name="pliant-peer", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._unauthenticated.pop(connection, None)
            connection.close()
            _log.warning("A connection could not be served: %s.", error)

    def _serve(self, connection: PeerConnection) -> None:
        is_stream = False
        try:
            number, sender = self._authenticate(connection)
            with self._lock:
                generation = self._generations.get(number)
                if generation is None:
                    return
                receiver = generation.receivers.setdefault(
                    sender, RpcReceiver(number, sender, self._on_notification, self._on_request)
                )
            self._add_connection(generation, connection)
            try:
                connection.set_check(None)
                receiver.serve(connection)
                is_stream = self._keep_stream(generation, sender, connection)
            finally:
                if not is_stream:
                    self._remove_connection(generation, connection)
        except OtherEncryption as error:
            self._warn_of_encryption(error)
        except (PeerLost, GenerationUnknown) as error:
            _log.debug("A connection was ended: %s.", error)
        except OSError:
            pass  # either side closed it
        finally:
            if not is_stream:
                connection.close()

    def _keep_stream(self, generation: _Generation, sender: MemberId, connection: PeerConnection) -> bool:
        """Keep a stream until it is taken. A later one of the same member replaces it: the member tried again."""
        with self._streamed:
            generation.connections.discard(connection)
            if generation.over.is_set():
                return False
            replaced = generation.streams.get(sender)
            generation.streams[sender] = connection
            self._streamed.notify_all()
        if replaced is not None:
            replaced.close()
        return True

    def _warn_of_encryption(self, error: OtherEncryption) -> None:
        """Log once that a connection failed, since any process can cause it."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "A connection was refused: %s. If it was a member: set PLIANT_CA_FILE for all members or for none.",
                error,
            )

    def _authenticate(self, connection: PeerConnection) -> tuple[int, MemberId]:
        try:
            if self._tls is not None:
                self._tls.accept(connection)
            return authenticate_peer(connection, self._me, self._key_of)
        finally:
            with self._lock:
                self._unauthenticated.pop(connection, None)

    def _key_of(self, generation: int, member: MemberId) -> bytes | None:
        with self._lock:
            known = self._generations.get(generation)
            return known.key if known is not None and member in known.addresses else None


def connect(address: str, check: WaitCheck) -> socket.socket:
    """Return a connected socket; `check` is called while it connects."""
    host, _, port = address.rpartition(":")
    family, kind, number, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, number)
    try:
        sock.setblocking(False)
        pending = sock.connect_ex(where)
        connected = select.poll()  # unlike select.select it takes descriptors of 1024 and more
        connected.register(sock, select.POLLOUT)
        while pending == errno.EINPROGRESS and not connected.poll(POLL_S * 1000):
            check()
        if pending in (0, errno.EINPROGRESS):
            pending = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if pending:
            raise ConnectionError(pending, f"{address}: {os.strerror(pending)}")
    except BaseException:  # why: the socket must not stay open, whatever the error
        sock.close()
        raise
    return sock
