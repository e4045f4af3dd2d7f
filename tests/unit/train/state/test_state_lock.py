"""The gate between those who read the state and the one who changes it."""

import threading
from collections.abc import Callable

from e2e.running import wait_for
from pliant.core.data.ledger import Lineage
from pliant.train.state.state_lock import StateLock

FIRST, SECOND = Lineage(1, 4, 11), Lineage(1, 5, 12)
PATIENCE_S = 60.0


def beside(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Do it on another thread; what it returned, once it did."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(act()), daemon=True)
    thread.start()
    return thread, done


def read_label(gate: StateLock) -> object:
    with gate.reading() as label:
        return label


def test_readers_learn_what_they_read() -> None:
    gate = StateLock()
    gate.allow_reads(FIRST, 7)
    assert read_label(gate) == (FIRST, 7)


def test_several_read_at_a_time() -> None:
    gate = StateLock()
    gate.allow_reads(FIRST, 7)
    with gate.reading() as one, gate.reading() as other:
        assert one == other == (FIRST, 7)


def test_the_state_does_not_change_while_somebody_reads() -> None:
    gate = StateLock()
    gate.allow_reads(FIRST, 7)
    with gate.reading():
        shutting, shut = beside(gate.block_reads)
        shutting.join(0.05)
        assert not shut
    shutting.join(PATIENCE_S)
    assert shut


def test_whoever_comes_while_it_is_shut_reads_the_next_state() -> None:
    gate = StateLock()
    gate.allow_reads(FIRST, 7)
    gate.block_reads()
    reading, labels = beside(lambda: read_label(gate))
    reading.join(0.05)
    assert not labels
    gate.allow_reads(SECOND, 8)
    reading.join(PATIENCE_S)
    assert labels == [(SECOND, 8)]


def test_nobody_gets_in_between_while_it_is_being_shut() -> None:
    """Else readers that come one after the other would keep the training thread out for ever."""
    gate = StateLock()
    gate.allow_reads(FIRST, 7)
    with gate.reading():
        shutting, _ = beside(gate.block_reads)
        wait_for(lambda: gate._label is None, "it to be shut")
        late, labels = beside(lambda: read_label(gate))
        late.join(0.05)
        assert not labels
    shutting.join(PATIENCE_S)
    assert not labels
    gate.allow_reads(SECOND, 8)
    late.join(PATIENCE_S)
    assert labels == [(SECOND, 8)]


def test_a_reader_that_fails_lets_go() -> None:
    gate = StateLock()
    gate.allow_reads(FIRST, 7)
    try:
        with gate.reading():
            raise ValueError
    except ValueError:
        pass
    shutting, shut = beside(gate.block_reads)
    shutting.join(PATIENCE_S)
    assert shut


def test_whoever_waits_is_sent_away_at_the_end() -> None:
    gate = StateLock()
    reading, labels = beside(lambda: read_label(gate))
    gate.close()
    reading.join(PATIENCE_S)
    assert labels == [None]
    assert read_label(gate) is None


def test_a_state_that_is_as_before_is_read_again() -> None:
    gate = StateLock()
    gate.allow_reads(FIRST, 7)
    with gate.kept():
        gate.block_reads()
        reading, labels = beside(lambda: read_label(gate))
        reading.join(0.05)
        assert not labels
    reading.join(PATIENCE_S)
    assert labels == [(FIRST, 7)]


def test_a_state_that_was_not_readable_stays_so() -> None:
    gate = StateLock()
    with gate.kept():
        gate.block_reads()
    reading, labels = beside(lambda: read_label(gate))
    reading.join(0.05)
    assert not labels
    gate.close()
    reading.join(PATIENCE_S)
    assert labels == [None]
