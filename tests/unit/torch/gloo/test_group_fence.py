"""The fence finds one generation's sockets among all others, and what stands beside it."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from pliant.core.model.names import MemberId
from pliant.torch.gloo.hung import IdleCheck, gloo_threads
from pliant.torch.gloo.sockets import GroupSockets, parse_published
from pliant.torch.group.peer_store import PeerStore, StoreClosed
from pliant.train.peer.kv import PeerValue, PeerValues
from unit.torch.blob import blob

ME, OTHER = MemberId("me"), MemberId("other")
PATIENCE_S = 30.0


# ------------------------------------------------------------------------------------------------ what is published


def test_addresses_are_read_from_what_gloo_publishes() -> None:
    assert parse_published(blob(("10.1.2.3", 4567), [0, 1, 2])) == (("10.1.2.3", 4567), (0, 1, 2))
    assert parse_published(blob(("fd00::7", 80), [], socket.AF_INET6)) == (("fd00::7", 80), ())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        blob(("10.1.2.3", 4567), [0])[:60],
        blob(("10.1.2.3", 4567), [0], length=200),
        blob(("10.1.2.3", 4567), [0]) + b"x",
        blob(("10.1.2.3", 4567), [0]).replace(struct.pack("=H", socket.AF_INET), struct.pack("=H", 77), 1),
        struct.pack("=Q", 1 << 60) + bytes(200),
    ],
    ids=["empty", "short", "cut", "longer address", "odd end", "family", "long name"],
)
def test_what_another_gloo_publishes_is_refused_and_not_guessed_at(data: bytes) -> None:
    with pytest.raises(ValueError, match="in another form"):
        parse_published(data)


# --------------------------------------------------------------------------------------------------- which sockets


class Scene:
    """A listener and connections like gloo's, and some that merely look like them."""

    def __init__(self) -> None:
        self.mine = socket.create_server(("127.0.0.1", 0))
        self.theirs = socket.create_server(("127.0.0.1", 0))
        self.stranger = socket.create_server(("127.0.0.1", 0))
        self.sockets = [self.mine, self.theirs, self.stranger]
        self.fence = GroupSockets()
        self.fence.set_own_address(blob(self.mine.getsockname(), [0, 1]))
        self.fence.set_address(1, blob(self.theirs.getsockname(), [0, 1]))

    def connect(self, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        self.sockets += [near, far]
        return near, far


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    for sock in scene.sockets:
        sock.close()


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_only_this_generations_connections_are_shut(scene: Scene) -> None:
    accepted = scene.connect(scene.mine)
    made = scene.connect(scene.theirs)
    other = scene.connect(scene.stranger)
    pipe = os.pipe()
    scene.fence.shut_down()
    assert not any(is_open(sock) for sock in (*accepted, *made))
    assert all(is_open(sock) for sock in other)
    os.write(pipe[1], b"x")
    assert os.read(pipe[0], 1) == b"x"
    for number in pipe:
        os.close(number)
    scene.connect(scene.mine)  # listeners still listen: gloo ends the process when its own does not
    scene.connect(scene.theirs)


def test_after_wiring_a_port_that_is_used_again_is_not_taken_for_ours(scene: Scene) -> None:
    ours = scene.connect(scene.theirs)
    [connection] = [each for each in scene.fence.freeze() if each.there == scene.theirs.getsockname()]
    assert connection.here == ours[0].getsockname()
    later = scene.connect(scene.theirs)
    scene.fence.shut_down()
    assert not is_open(ours[0])
    assert all(is_open(sock) for sock in later)


def test_scans_beside_one_another_do_not_take_each_others_duplicates_for_sockets(scene: Scene) -> None:
    near, _ = scene.connect(scene.theirs)
    done = threading.Event()

    def scan() -> None:
        while not done.is_set():
            other = GroupSockets()
            other.set_own_address(blob(("127.0.0.1", 1), []))
            other.shut_down()

    threads = [threading.Thread(target=scan) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            fence = GroupSockets()
            fence.set_own_address(blob(scene.mine.getsockname(), [0, 1]))
            fence.set_address(1, blob(scene.theirs.getsockname(), [0, 1]))
            assert [each.number for each in fence.freeze()] == [near.fileno()]
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_flags_of_other_peoples_sockets_are_left_alone(scene: Scene) -> None:
    near, _ = scene.connect(scene.stranger)
    socket.setdefaulttimeout(5.0)  # with this Python makes every socket object it wraps non-blocking
    try:
        scene.fence.shut_down()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(near.fileno())


def test_strangers_that_come_after_the_wiring_use_no_descriptor(scene: Scene) -> None:
    scene.fence.freeze()
    scene.mine.setblocking(False)
    with closing(socket.socket()) as stranger:
        stranger.settimeout(0.3)
        with pytest.raises(TimeoutError):
            stranger.connect(scene.mine.getsockname())
    with pytest.raises(BlockingIOError):
        scene.mine.accept()


def test_sockets_are_not_inherited_once_they_are_fixed(scene: Scene) -> None:
    ours, _ = scene.connect(scene.theirs)
    for sock in (ours, scene.mine, scene.stranger):
        os.set_inheritable(sock.fileno(), True)
    scene.fence.freeze()
    assert [os.get_inheritable(sock.fileno()) for sock in (ours, scene.mine, scene.stranger)] == [False, False, True]


def test_an_end_that_gloo_has_seen_is_told_by_its_rank(scene: Scene) -> None:
    ours, _ = scene.connect(scene.theirs)
    assert scene.fence.closed_rank() is None
    scene.fence.freeze()
    # In this process both ends are found; the far one belongs to no member here.
    assert scene.fence.open_count() >= 1
    ours.close()
    assert scene.fence.closed_rank() == 1


def test_a_fence_that_knows_nothing_yet_does_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        fence = GroupSockets()
        fence.shut_down()
        fence.replace_missing_peers()
        assert is_open(sock)
        assert fence.freeze() == []
        assert fence.closed_rank() is None


def test_a_culprit_is_known_by_the_port_that_gloo_prints(scene: Scene) -> None:
    host, port = scene.theirs.getsockname()
    printed = socket.htons(port)
    assert scene.fence.rank_in_error(f"Read error [{host}]:{printed}: Connection reset by peer") == 1
    assert scene.fence.rank_in_error(f"timed out connecting: remote=[{host}]:{printed}$0") == 1
    assert scene.fence.rank_in_error("[/gloo/transport/tcp/pair.cc:152] timed out") is None
    assert scene.fence.rank_in_error(f"Read error [{host}]:99999999") is None


# ------------------------------------------------------------------------------------------------ stores and threads


def test_a_closed_store_ends_whoever_waits_and_whoever_comes() -> None:
    store = PeerStore(PeerValues(), 1, lambda _: None, lambda *_: None)
    raised: list[Exception] = []

    def wait() -> None:
        try:
            store.wait(["never"])
        except StoreClosed as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    store.close()
    thread.join(PATIENCE_S)
    assert len(raised) == 1
    with pytest.raises(StoreClosed):
        store.get("never")


def test_a_store_shows_what_passes_and_takes_text_and_bytes() -> None:
    seen: list[tuple[str, bytes]] = []
    told: list[bytes] = []
    store = PeerStore(PeerValues(), 1, told.append, lambda key, value: seen.append((key, value)))
    store.set("a", "text")
    store.set("b", b"bytes")
    assert (store.get("a"), store.get("b")) == (b"text", b"bytes")
    assert store.check(["a", "b"])
    assert not store.check(["a", "c"])
    assert seen == [("a", b"text"), ("b", b"bytes")] * 2
    assert [msgspec.msgpack.decode(head, type=PeerValue).key for head in told] == ["a", "b"]


def test_a_thread_is_still_only_when_it_has_not_run_at_all() -> None:
    wake, woke, end = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def live() -> None:
        while not end.is_set():
            wake.acquire()
            woke.release()

    thread = threading.Thread(target=live)
    thread.start()
    assert thread.native_id is not None
    stillness = IdleCheck(frozenset({thread.native_id}))
    for _ in range(10):  # it sleeps at every look, but it ran in between
        assert not stillness.is_idle()
        wake.release()
        woke.acquire()
    looks = 0
    while not stillness.is_idle():
        looks += 1
    assert looks >= 4
    end.set()
    wake.release()
    thread.join()
    while not stillness.is_idle():  # a thread that has ended does nothing either
        pass


def test_no_thread_of_ours_is_taken_for_gloos() -> None:
    assert threading.get_native_id() not in gloo_threads()
