"""Values that peers sent for a wiring: there when the wiring begins, and gone when it is over."""

import threading

import pytest

from pliant.train.peer import kv as module
from pliant.train.peer.kv import PeerValues, encode_value


def never() -> bool:
    return False


def test_what_came_before_the_wiring_is_there_for_it() -> None:
    box = PeerValues()
    box.receive(3, encode_value("a", b"1"))
    box.put(3, "b", b"2")
    assert box.wait(3, ["b", "a"], never) == [b"2", b"1"]
    assert box.has(3, ["a", "b"])
    assert not box.has(3, ["a", "c"])
    assert not box.has(2, ["a"])


def test_generations_do_not_mix() -> None:
    box = PeerValues()
    box.put(1, "a", b"old")
    box.put(2, "a", b"new")
    assert box.wait(1, ["a"], never) == [b"old"]
    assert box.wait(2, ["a"], never) == [b"new"]


def waiting(box: PeerValues, keys: list[str], called_off: threading.Event) -> tuple[threading.Thread, list[object]]:
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(box.wait(1, keys, called_off.is_set)))
    thread.start()
    return thread, got


def test_whoever_waits_gets_what_comes_later() -> None:
    box = PeerValues()
    thread, got = waiting(box, ["a", "b"], threading.Event())
    box.put(1, "a", b"1")
    box.put(1, "b", b"2")
    thread.join()
    assert got == [[b"1", b"2"]]


@pytest.mark.parametrize("how", ["called off", "forgotten"])
def test_whoever_waits_in_vain_hears_that_it_is_over(how: str) -> None:
    box = PeerValues()
    off = threading.Event()
    thread, got = waiting(box, ["a"], off)
    if how == "called off":
        off.set()
        box.wake()
    else:
        box.forget_below(2)
    thread.join()
    assert got == [None]


def test_what_is_forgotten_does_not_come_back() -> None:
    box = PeerValues()
    box.put(1, "a", b"1")
    box.put(2, "a", b"2")
    box.forget_below(2)
    box.put(1, "a", b"late")
    box.forget_below(1)
    assert not box.has(1, ["a"])
    assert box.wait(1, ["a"], never) is None
    assert box.has(2, ["a"])


def test_a_mailbox_takes_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 2)
    box = PeerValues()
    box.put(1, "a", b"")
    box.put(1, "b", b"")
    box.put(1, "a", b"again")
    for key, value in (("c", b""), ("a", bytes(module.VALUE_MAX + 1))):
        with pytest.raises(ValueError, match="at most 2 values of 65536 bytes"):
            box.put(1, key, value)
    for generation in range(2, 1 + module.GENERATIONS_MAX):
        box.put(generation, "a", b"")
    with pytest.raises(ValueError, match="there are values of 64 generations"):
        box.put(1 + module.GENERATIONS_MAX, "a", b"")


def test_what_is_no_letter_is_refused() -> None:
    with pytest.raises(ValueError, match="not a value"):
        PeerValues().receive(1, b"\x93abc")
