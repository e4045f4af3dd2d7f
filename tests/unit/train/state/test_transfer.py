"""State on its way between members: of one lineage, whole, and never torn by the donor's next step."""

import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage
from pliant.core.member import signals as s
from pliant.core.model.names import MemberId
from pliant.train.peer.server import PeerLost
from pliant.train.state.flat import Leaf, State, flatten, restore
from pliant.train.state.memory import Memory, PreparedMemory
from pliant.train.state.shared_copy import HeldCopies
from pliant.train.state.state_lock import StateLock
from pliant.train.state.transfer import (
    LARGE_BYTES,
    STATE,
    ReceivedState,
    StateDownload,
    StateSource,
    StripeRequest,
    fetch_gradient,
    prepare_memory,
)
from unit.core.build import lines
from unit.train.pair import Make, Talker, introduce, talkers

PATIENCE_S = 60.0
LINES = lines(GENESIS, 1, 2)
LINEAGE = LINES[-1].lineage


def as_leaf(value: object) -> Leaf | None:
    return Leaf("u1", (len(value),), memoryview(value)) if isinstance(value, bytearray) else None


def value_of(received: ReceivedState) -> object:
    return restore(received.tree, received.contents, lambda _d, _s, content: content.tobytes())


@dataclass
class HostCopy:
    """A shared copy in this process, as a GPU's is in the driver."""

    handle: bytes
    memory: "HostMemory"

    def close(self) -> None:
        del self.memory.copies[self.handle]


@dataclass
class HostMemory:
    """Memory that all members of a test share."""

    copies: dict[bytes, list[bytes]] = field(default_factory=dict)
    is_full: bool = False
    is_foreign: bool = False  # another process's copies cannot be opened

    def copy(self, arrays: Sequence[bytearray]) -> HostCopy | None:
        if self.is_full:
            return None
        handle = f"copy {len(self.copies)}".encode()
        self.copies[handle] = [bytes(array) for array in arrays]
        return HostCopy(handle, self)

    def read(self, handle: bytes, nbytes: Sequence[int]) -> tuple[memoryview, ...]:
        if self.is_foreign:
            raise OSError("no access to that GPU")
        found = self.copies[handle]
        assert [len(each) for each in found] == list(nbytes)
        return tuple(memoryview(each) for each in found)


class Donor:
    """A member that holds a state and a gradient, with a gate before them."""

    def __init__(
        self,
        make: Make,
        name: str,
        *,
        content: bytes = b"abcdefgh",
        state: int = 5,
        shared_memory: HostMemory | None = None,
    ) -> None:
        self.gate = StateLock()
        self.live = [bytearray(content), bytearray(b""), bytearray(b"x" * 100), bytearray(b"y" * 50)]
        self.gradient: dict[Lineage, bytearray] = {LINEAGE: bytearray(b"gradient")}
        self.lines: tuple[LedgerLine, ...] = LINES
        self.source = StateSource(
            self.gate, self.layout, memoryview, self.gradient_of, lambda: self.lines, shared_memory
        )
        self.talker = make(name, lambda _g, _asker, kind, head: self.source.answer(kind, head))
        self.name = self.talker.name
        self.gate.allow_reads(LINEAGE, state)

    def layout(self) -> tuple[bytes, list[bytearray]]:
        return flatten({"model": self.live, "rate": 0.5}, as_leaf).tree, self.live

    def gradient_of(self, lineage: Lineage) -> State | None:
        found = self.gradient.get(lineage)
        return None if found is None else flatten({"sums": found}, as_leaf)


class Joiner:
    """Receives, and keeps what its machine would be fed."""

    def __init__(self, make: Make) -> None:
        self.talker = make("joiner")
        self.fed: queue.Queue[s.Signal] = queue.Queue()

    def fetch(
        self,
        *donors: MemberId,
        shared_memory: HostMemory | None = None,
        expected_bytes: int = 0,
        memory: PreparedMemory | None = None,
    ) -> StateDownload:
        fetching = StateDownload(
            self.talker.peers,
            1,
            donors,
            lambda _fetching, signal: self.fed.put(signal),
            shared_memory,
            expected_bytes,
            memory,
        )
        fetching.start()
        return fetching

    def prepare(self, memory: PreparedMemory, *donors: MemberId, bytes_max: int = 1000) -> None:
        prepare_memory(memory, self.talker.peers, bytes_max, 1, donors, threading.Event())

    def next(self) -> s.Signal:
        return self.fed.get(timeout=PATIENCE_S)


@pytest.fixture
def make() -> Iterator[Make]:
    with talkers() as made:
        yield made


@pytest.mark.parametrize("count", [1, 2, 3])
def test_stripes_make_the_whole_state_again(make: Make, count: int) -> None:
    donors = [Donor(make, f"d{at}") for at in range(count)]
    joiner = Joiner(make)
    introduce(1, joiner.talker, *(donor.talker for donor in donors))
    fetching = joiner.fetch(*(donor.name for donor in donors))
    assert [joiner.next() for _ in range(count)] == [s.Stripe(at, count, LINEAGE, 5, LINES) for at in range(count)]
    assert fetching.received is not None
    assert value_of(fetching.received) == {"model": [bytes(each) for each in donors[0].live], "rate": 0.5}


def test_more_donors_than_stripes_are_not_needed(make: Make) -> None:
    donors = [Donor(make, f"d{at}") for at in range(5)]
    joiner = Joiner(make)
    introduce(1, joiner.talker, *(donor.talker for donor in donors))
    fetching = joiner.fetch(*(donor.name for donor in donors))
    assert [type(joiner.next()) for _ in range(3)] == [s.Stripe] * 3
    assert fetching.donors == ("d0", "d1", "d2")


@pytest.mark.parametrize(("count", "stripes"), [(1, 4), (2, 4), (3, 4)])
def test_a_large_state_comes_over_several_connections(make: Make, count: int, stripes: int) -> None:
    donors = [Donor(make, f"d{at}") for at in range(count)]
    joiner = Joiner(make)
    introduce(1, joiner.talker, *(donor.talker for donor in donors))
    fetching = joiner.fetch(*(donor.name for donor in donors), expected_bytes=LARGE_BYTES)
    assert [joiner.next() for _ in range(stripes)] == [
        s.Stripe(at, stripes, LINEAGE, 5, LINES) for at in range(stripes)
    ]
    assert fetching.received is not None
    assert value_of(fetching.received) == {"model": [bytes(each) for each in donors[0].live], "rate": 0.5}


class Counted(PreparedMemory):
    """Notes which pieces were taken that were prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[int] = []
        self.taken: list[int] = []

    def prepare(self, sizes: Sequence[int], stop: threading.Event) -> None:
        self.prepared = sorted(sizes)
        super().prepare(sizes, stop)

    def take(self, nbytes: int) -> Memory:
        self.taken.append(nbytes)
        return super().take(nbytes)


def test_a_state_arrives_in_memory_that_was_prepared_for_it(make: Make) -> None:
    donor, joiner, memory = Donor(make, "d"), Joiner(make), Counted()
    introduce(1, joiner.talker, donor.talker)
    joiner.prepare(memory, donor.name)
    assert memory.prepared == [0, 8, 50, 100]
    fetching = joiner.fetch(donor.name, memory=memory)
    assert joiner.next() == s.Stripe(0, 1, LINEAGE, 5, LINES)
    assert fetching.received is not None
    assert value_of(fetching.received) == {"model": [bytes(each) for each in donor.live], "rate": 0.5}
    assert sorted(memory.taken) == [0, 8, 50, 100]


def test_the_next_donor_is_asked_for_the_sizes_if_one_is_gone(make: Make) -> None:
    gone, donor, joiner, memory = Donor(make, "d0"), Donor(make, "d1"), Joiner(make), Counted()
    introduce(1, joiner.talker, gone.talker, donor.talker)
    gone.gate.block_reads()
    gone.gate.close()
    joiner.prepare(memory, gone.name, donor.name)
    assert memory.prepared == [0, 8, 50, 100]


def test_no_memory_is_prepared_for_a_state_that_is_far_too_large(make: Make) -> None:
    donor, joiner, memory = Donor(make, "d"), Joiner(make), Counted()
    introduce(1, joiner.talker, donor.talker)
    joiner.prepare(memory, donor.name, bytes_max=157)
    assert memory.prepared == []
    joiner.prepare(memory, donor.name, bytes_max=158)
    assert memory.prepared == [0, 8, 50, 100]


def test_a_shared_copy_is_read_once_and_released(make: Make) -> None:
    memory = HostMemory()
    donor, other = Donor(make, "d0", shared_memory=memory), Donor(make, "d1", shared_memory=memory)
    joiner = Joiner(make)
    introduce(1, joiner.talker, donor.talker, other.talker)
    fetching = joiner.fetch(donor.name, other.name, shared_memory=memory)
    assert joiner.next() == s.Stripe(0, 1, LINEAGE, 5, LINES)
    assert fetching.received is not None
    assert value_of(fetching.received) == {"model": [b"abcdefgh", b"", b"x" * 100, b"y" * 50], "rate": 0.5}
    donor.gate.block_reads()
    assert memory.copies == {}


def test_the_donor_trains_on_while_its_copy_is_read(make: Make) -> None:
    memory = HostMemory()
    donor, joiner = Donor(make, "d", shared_memory=memory), Joiner(make)
    introduce(1, joiner.talker, donor.talker)
    read = memory.read

    def slow(handle: bytes, nbytes: Sequence[int]) -> tuple[memoryview, ...]:
        donor.gate.block_reads()  # returns at once: nothing reads the live state any more
        donor.live[0][:] = b"ABCDEFGH"
        return read(handle, nbytes)

    memory.read = slow  # type: ignore[method-assign]
    fetching = joiner.fetch(donor.name, shared_memory=memory)
    assert joiner.next() == s.Stripe(0, 1, LINEAGE, 5, LINES)
    assert fetching.received is not None
    assert value_of(fetching.received) == {"model": [b"abcdefgh", b"", b"x" * 100, b"y" * 50], "rate": 0.5}


@pytest.mark.parametrize("why", ["other machine", "no shared memory", "full", "foreign"])
def test_where_no_copy_can_be_shared_stripes_are_received(
    make: Make, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = HostMemory(is_full=why == "full", is_foreign=why == "foreign")
    machines = iter(["here", "there"])
    if why == "other machine":
        monkeypatch.setattr("pliant.train.state.transfer.this_machine", lambda: next(machines))
    donor = Donor(make, "d", shared_memory=None if why == "no shared memory" else memory)
    joiner = Joiner(make)
    introduce(1, joiner.talker, donor.talker)
    fetching = joiner.fetch(donor.name, shared_memory=memory)
    assert joiner.next() == s.Stripe(0, 1, LINEAGE, 5, LINES)
    assert fetching.received is not None
    assert value_of(fetching.received) == {"model": [b"abcdefgh", b"", b"x" * 100, b"y" * 50], "rate": 0.5}
    donor.gate.block_reads()
    assert memory.copies == {}


def test_what_was_read_of_a_copy_that_is_gone_is_discarded(make: Make) -> None:
    memory = HostMemory()
    donor, joiner = Donor(make, "d", shared_memory=memory), Joiner(make)
    donor.source._held = held = HeldCopies(held_s=0.0)
    introduce(1, joiner.talker, donor.talker)
    read = memory.read

    def too_slow(handle: bytes, nbytes: Sequence[int]) -> tuple[memoryview, ...]:
        found = read(handle, nbytes)
        held.drop()  # before the donor's next change, long after
        return found

    memory.read = too_slow  # type: ignore[method-assign]
    fetching = joiner.fetch(donor.name, shared_memory=memory)
    assert joiner.next() == s.TransferBroken(wrong_state=False)
    assert fetching.received is None
    assert memory.copies == {}


def test_a_copy_that_no_joiner_releases_is_dropped_after_a_while() -> None:
    memory, now = HostMemory(), [0.0]
    held = HeldCopies(held_s=30.0, now=lambda: now[0])
    copy = memory.copy([bytearray(b"x")])
    assert copy is not None
    copy_id = held.hold(copy)
    held.drop()
    assert memory.copies
    now[0] = 30.0
    held.drop()
    assert memory.copies == {}
    assert not held.release(copy_id)


def test_a_released_copy_is_dropped_by_the_thread_that_trains() -> None:
    memory = HostMemory()
    held = HeldCopies()
    copy = memory.copy([bytearray(b"x")])
    assert copy is not None
    assert held.release(held.hold(copy))
    assert memory.copies
    held.drop()
    assert memory.copies == {}


def test_what_is_received_is_a_copy(make: Make) -> None:
    donor, joiner = Donor(make, "d"), Joiner(make)
    introduce(1, joiner.talker, donor.talker)
    fetching = joiner.fetch(donor.name)
    joiner.next()
    donor.live[0][:] = b"ABCDEFGH"
    assert fetching.received is not None
    assert value_of(fetching.received) == {"model": [b"abcdefgh", b"", b"x" * 100, b"y" * 50], "rate": 0.5}


@pytest.mark.parametrize("what", ["lineage", "hash", "tree"])
def test_donors_that_differ_make_no_state(make: Make, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each checksum good, and still torn (H9). Users hear of it only if a state is wrong."""
    logging.getLogger("pliant").propagate = True
    caplog.set_level(logging.INFO, "pliant.train.state.transfer")
    one, other = (
        Donor(make, "d0"),
        Donor(make, "d1", content=b"longer than the other" if what == "tree" else b"abcdefgh"),
    )
    if what == "lineage":
        other.gate.allow_reads(replace(LINEAGE, step=9), 5)
    elif what == "hash":
        other.gate.allow_reads(LINEAGE, 6)
    joiner = Joiner(make)
    introduce(1, joiner.talker, one.talker, other.talker)
    fetching = joiner.fetch(one.name, other.name)
    assert joiner.next() == s.TransferBroken(wrong_state=what == "hash", values_differ=what == "tree")
    assert fetching.received is None
    assert len(caplog.records) == (what == "hash")


def test_a_donor_between_apply_and_boundary_is_waited_for(make: Make) -> None:
    donor, joiner = Donor(make, "d"), Joiner(make)
    donor.gate.block_reads()
    introduce(1, joiner.talker, donor.talker)
    joiner.fetch(donor.name)
    with pytest.raises(queue.Empty):
        joiner.fed.get(timeout=0.1)
    later = replace(LINEAGE, step=3)
    donor.gate.allow_reads(later, 8)
    assert joiner.next() == s.Stripe(0, 1, later, 8, LINES)


def test_a_donor_does_not_change_its_state_while_it_is_read(make: Make) -> None:
    """The gate is held until the last byte left, not until the first."""
    donor, asker = Donor(make, "d", content=bytes(64 << 20)), make("asker")
    introduce(1, asker, donor.talker)

    answer = asker.peers.request(1, donor.name, STATE, msgspec.msgpack.encode(StripeRequest(0, 1)), threading.Event())
    shut = threading.Event()

    def step() -> None:
        donor.gate.block_reads()
        shut.set()

    threading.Thread(target=step, daemon=True).start()
    assert not shut.wait(0.2), "the donor is free to step while 64 MiB of its state are still to be sent"
    answer.close()
    assert shut.wait(PATIENCE_S)


def test_a_donor_that_leaves_declines(make: Make) -> None:
    donor, joiner = Donor(make, "d"), Joiner(make)
    donor.gate.block_reads()
    introduce(1, joiner.talker, donor.talker)
    joiner.fetch(donor.name)
    donor.gate.close()
    assert joiner.next() == s.TransferBroken()


def test_a_donor_whose_state_cannot_be_captured_is_no_donor(make: Make) -> None:
    donor, joiner = Donor(make, "d"), Joiner(make)
    donor.live.append(object())  # type: ignore[arg-type]
    introduce(1, joiner.talker, donor.talker)
    joiner.fetch(donor.name)
    assert joiner.next() == s.TransferBroken()


def test_a_donor_that_dies_is_noticed(make: Make) -> None:
    one, other, joiner = Donor(make, "d0"), Donor(make, "d1"), Joiner(make)
    introduce(1, joiner.talker, one.talker, other.talker)
    other.talker.peers.close()
    joiner.fetch(one.name, other.name)
    assert joiner.next() == s.TransferBroken()


def test_what_was_stopped_feeds_nothing(make: Make) -> None:
    donor, joiner = Donor(make, "d"), Joiner(make)
    donor.gate.block_reads()
    introduce(1, joiner.talker, donor.talker)
    fetching = joiner.fetch(donor.name)
    fetching.stop()
    donor.gate.allow_reads(LINEAGE, 5)
    with pytest.raises(queue.Empty):
        joiner.fed.get(timeout=0.2)


# --------------------------------------------------------------------------------------------- gradients


def asked(joiner: Talker, lineage: Lineage, *donors: Donor) -> tuple[LedgerLine, ReceivedState] | None:
    names = tuple(donor.name for donor in donors)
    return fetch_gradient(joiner.peers, 1, names, lineage, threading.Event())


def test_the_gradient_of_the_last_step_comes_with_its_line(make: Make) -> None:
    donor, laggard = Donor(make, "d"), make("laggard")
    introduce(1, laggard, donor.talker)
    found = asked(laggard, LINEAGE, donor)
    assert found is not None
    assert found[0] == LINES[-1]
    assert value_of(found[1]) == {"sums": b"gradient"}


def test_whoever_still_has_it_gives_it(make: Make) -> None:
    without, other = Donor(make, "d0"), Donor(make, "d1")
    without.gradient.clear()
    laggard = make("laggard")
    introduce(1, laggard, without.talker, other.talker)
    assert asked(laggard, LINEAGE, without, other) is not None


def test_the_next_one_is_asked_where_one_does_not_answer(make: Make) -> None:
    dead, other = Donor(make, "d0"), Donor(make, "d1")
    laggard = make("laggard")
    introduce(1, laggard, dead.talker, other.talker)
    dead.talker.peers.close()
    assert asked(laggard, LINEAGE, dead, other) is not None


def test_nobody_having_it_is_no_failure(make: Make) -> None:
    donor, laggard = Donor(make, "d"), make("laggard")
    introduce(1, laggard, donor.talker)
    assert asked(laggard, replace(LINEAGE, digest=1), donor) is None


def test_nobody_answering_is_one(make: Make) -> None:
    donor, laggard = Donor(make, "d"), make("laggard")
    introduce(1, laggard, donor.talker)
    donor.talker.peers.close()
    with pytest.raises(PeerLost):
        asked(laggard, LINEAGE, donor)


def test_a_donor_that_fails_to_give_it_is_passed_over(make: Make) -> None:
    broken, other = Donor(make, "d0"), Donor(make, "d1")
    broken.gradient = None  # type: ignore[assignment]
    laggard = make("laggard")
    introduce(1, laggard, broken.talker, other.talker)
    assert asked(laggard, LINEAGE, broken, other) is not None
