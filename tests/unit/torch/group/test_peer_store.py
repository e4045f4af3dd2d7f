"""The store in which NCCL looks up addresses: values arrive from peers, and a closed store ends every wait."""

import threading

import msgspec
import pytest

from pliant.torch.group.peer_store import PeerStore, StoreClosed
from pliant.train.peer.kv import PeerValue, PeerValues

PATIENCE_S = 60.0


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
