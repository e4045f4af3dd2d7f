"""The keys members show one another: the same at every coordinator of a store, and no other member's to work out."""

import hashlib
import hmac

import pytest

from pliant.coordinator.generation_keys import SECRET_BYTES, STREAM, GenerationKeys, PeerSecret
from pliant.errors import BadInput, StoreTimeout, StoreUnavailable
from pliant.stores.base import Write
from pliant.stores.memory import MemoryStore
from pliant.wire.codec import decode_state
from unit.coordinator.shaky import Shaky


@pytest.fixture
def store() -> Shaky:
    return Shaky(MemoryStore("unit"))


def secret(store: Shaky) -> str:
    kept = store.inner.read(STREAM)
    assert kept is not None
    return decode_state(kept.record, PeerSecret).secret


def test_a_key_is_made_of_the_secret_the_job_its_creation_and_the_generation(store: Shaky) -> None:
    key = GenerationKeys(store).key("demo", 12.5, 3)
    expected = hmac.new(bytes.fromhex(secret(store)), b"demo\n12.5\n3", hashlib.sha256).hexdigest()
    assert key == expected
    assert len(bytes.fromhex(secret(store))) == SECRET_BYTES


def test_every_job_and_generation_has_a_key_of_its_own(store: Shaky) -> None:
    peers = GenerationKeys(store)
    keys = {peers.key(job, 1.0, generation) for job in ("demo", "demo1", "other") for generation in (1, 2, 11)}
    assert len(keys) == 9


def test_a_job_that_was_deleted_and_created_again_has_other_keys(store: Shaky) -> None:
    peers = GenerationKeys(store)
    assert peers.key("demo", 1.0, 1) != peers.key("demo", 2.0, 1)


def test_the_keys_stay_the_same_for_whoever_opens_the_store_later(store: Shaky) -> None:
    first = GenerationKeys(store).key("demo", 0.0, 1)
    writes = len(store.writes)
    assert GenerationKeys(store).key("demo", 0.0, 1) == first
    assert len(store.writes) == writes


def test_another_store_has_other_keys(store: Shaky) -> None:
    assert GenerationKeys(store).key("demo", 0.0, 1) != GenerationKeys(MemoryStore("other")).key("demo", 0.0, 1)


def test_of_two_that_make_the_secret_at_once_both_take_the_first(store: Shaky) -> None:
    rival: list[GenerationKeys] = []
    store.before_write = [lambda: rival.append(GenerationKeys(store.inner))]
    assert GenerationKeys(store).key("demo", 0.0, 1) == rival[0].key("demo", 0.0, 1)


def test_after_a_timeout_the_next_attempt_takes_what_was_written(store: Shaky) -> None:
    store.trouble["write"] = [StoreTimeout("no answer")]
    store.applied.add(STREAM)
    with pytest.raises(StoreTimeout):
        GenerationKeys(store)
    written = secret(store)
    GenerationKeys(store)
    assert secret(store) == written


def test_without_a_store_there_are_no_keys(store: Shaky) -> None:
    store.trouble["read"] = [StoreUnavailable("the disk is away")]
    with pytest.raises(StoreUnavailable):
        GenerationKeys(store)


def test_a_damaged_secret_is_not_replaced_in_silence() -> None:
    store = MemoryStore("unit")
    store.write([Write(STREAM, 0, (b"x",), b"not a secret")])
    with pytest.raises(BadInput):
        GenerationKeys(store)


def test_the_secret_is_in_no_event_and_in_no_representation(store: Shaky) -> None:
    GenerationKeys(store)
    text = secret(store)
    assert not any(text.encode() in entry.data for entry in store.inner.events(STREAM, 0, 10))
    assert text not in repr(PeerSecret(text))
