"""Memory that is prepared before it is needed."""

import mmap
import threading
from pathlib import Path

from pliant.train.state.memory import HUGE_PAGE_BYTES, PreparedMemory, allocate


def test_each_prepared_piece_is_taken_once() -> None:
    memory = PreparedMemory()
    memory.prepare([10, 10, 20], threading.Event())
    first, second, third = memory.take(10), memory.take(10), memory.take(10)
    assert [len(each) for each in (first, second, third)] == [10, 10, 10]
    assert len({id(each) for each in (first, second, third)}) == 3
    assert len(memory.take(20)) == 20


def test_prepared_memory_is_in_place_before_it_is_used() -> None:
    memory, nbytes = PreparedMemory(), 3 * HUGE_PAGE_BYTES + 5
    before = resident_bytes()
    memory.prepare([nbytes], threading.Event())
    assert resident_bytes() - before > nbytes // 2
    piece = memory.take(nbytes)
    assert bytes(piece[:]) == bytes(nbytes)


def test_memory_that_nobody_prepared_is_there_once_it_is_used() -> None:
    before = resident_bytes()
    piece = allocate(64 << 20)
    assert resident_bytes() - before < 32 << 20
    assert len(piece) == 64 << 20


def test_nothing_more_is_prepared_once_it_is_stopped() -> None:
    memory, stop = PreparedMemory(), threading.Event()
    stop.set()
    before = resident_bytes()
    memory.prepare([64 << 20], stop)
    assert resident_bytes() - before < 32 << 20
    assert len(memory.take(64 << 20)) == 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
