"""Members that talk to one another within one process, and what they heard."""

import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pliant.core.model.names import MemberId
from pliant.train.peer.rpc import RequestHandler
from pliant.train.peer.server import PeerServer
from pliant.train.peer.tls import PeerTls

PATIENCE_S = 60.0
KEY = secrets.token_hex(32)

Heard = tuple[int, MemberId, str, bytes]


def gives_nothing(generation: int, asker: MemberId, kind: str, head: bytes) -> tuple[bytes, Iterable[memoryview]]:
    return b"", []


@dataclass
class Talker:
    """One member: `peers`, and what it `heard`."""

    name: MemberId
    peers: PeerServer
    heard: "queue.Queue[Heard]" = field(default_factory=queue.Queue)

    def next(self) -> Heard:
        return self.heard.get(timeout=PATIENCE_S)


def talker(name: str, give: RequestHandler = gives_nothing, *, tls: bool = False) -> Talker:
    heard: queue.Queue[Heard] = queue.Queue()
    me = MemberId(name)
    peers = PeerServer("127.0.0.1", me, lambda *what: heard.put(what), give, PeerTls() if tls else None)
    return Talker(me, peers, heard)


def introduce(generation: int, *talkers: Talker, key: str = KEY) -> None:
    addresses = {each.name: each.peers.address for each in talkers}
    for each in talkers:
        each.peers.add_generation(generation, key, addresses)


Make = Callable[..., Talker]


@contextmanager
def talkers(*, tls: bool = False) -> Iterator[Make]:
    """Makes talkers, and closes them all at the end."""
    made: list[Talker] = []

    def one(name: str, give: RequestHandler = gives_nothing, *, tls: bool = tls) -> Talker:
        made.append(talker(name, give, tls=tls))
        return made[-1]

    yield one
    for each in made:
        each.peers.close()


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run `act` beside the test; what it raised is in the list once the thread has ended."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # why: the test looks at whatever it was
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def ended(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def none_left(name: str) -> bool:
    return all(ended(thread) for thread in threading.enumerate() if thread.name == name)


def count_calls(owner: PeerServer, name: str) -> threading.Semaphore:
    calls = threading.Semaphore(0)
    original = getattr(owner, name)

    def counted(*arguments: object) -> object:
        calls.release()
        return original(*arguments)

    setattr(owner, name, counted)
    return calls
