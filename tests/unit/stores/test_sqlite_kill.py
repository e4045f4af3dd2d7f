"""Kill -9 at any moment: what was acknowledged is there, whole, and the next process need not wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pliant.errors import StoreError
from pliant.stores.base import Busy, Hold
from pliant.stores.sqlite import SqliteStore, process_identity
from pliant.stores.sqlite.process_identity import ProcessIdentity, current_process, has_exited
from unit.stores.disk import PROGRAMS, add
from unit.stores.writer import EVENTS, JOBS

KILLS = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def running(*args: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAMS / "writer.py"), *args]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        try:
            yield writer
        finally:
            writer.kill()


def said(writer: subprocess.Popen[str]) -> int:
    assert writer.stdout is not None
    return int(writer.stdout.readline())


def kill_after(path: Path, answers: int) -> int:
    """Let a writer be acknowledged so many times, kill it, and return the last revision that it was told."""
    with running(str(path)) as writer:
        last = [said(writer) for _ in range(answers)][-1]
        writer.kill()
        assert writer.stdout is not None
        for line in writer.stdout:  # what it still managed to say
            if line.endswith("\n"):
                last = int(line)
    return last


def test_a_writer_killed_at_any_write_loses_nothing_acknowledged_and_leaves_no_half_batch(path: Path) -> None:
    identity = ""
    for answers in range(1, KILLS + 1):
        last = kill_after(path, answers)
        with SqliteStore(path) as store:
            identity = identity or store.identity
            assert store.identity == identity  # no kill looks like a restored backup
            contents = [[entry.data for entry in store.events(job, 0, 100_000)] for job in JOBS]
            assert contents[0] == contents[1] == contents[2]
            newest = len(contents[0])
            assert newest in {last, last + EVENTS}  # the last batch may be there without having been acknowledged
            assert contents[0] == [f"{i}".encode() for i in range(1, newest + 1)]
            stored = store.read("b")
            assert stored is not None
            assert stored.record == f"after {stored.record_revision}".encode()
            assert stored.revision == newest


def test_a_writer_killed_while_others_have_the_store_open_loses_nothing_either(path: Path) -> None:
    with SqliteStore(path) as store:
        for answers in (1, 4, 9):
            last = kill_after(path, answers)
            newest = len(store.events("a", 0, 100_000))
            assert newest in {last, last + EVENTS}
            add(store, b"e", job="another")  # a lock of the dead is none


# ------------------------------------------------------------------------------------------------------- holds


def test_the_hold_of_a_killed_process_is_free_at_once(path: Path) -> None:
    now = time.monotonic()
    with SqliteStore(path) as store, running(str(path), "hold") as holder:
        term = said(holder)
        busy = store.hold("lead", "the next one", 3.0, now)
        assert isinstance(busy, Busy)
        assert busy.hold.owner == "the one that dies"
        holder.kill()
        holder.wait()
        held = store.hold("lead", "the next one", 3.0, now)
        assert isinstance(held, Hold)
        assert held.term > term


def test_the_hold_of_a_dead_process_that_nobody_buried_is_free_too(path: Path) -> None:
    with SqliteStore(path) as store, running(str(path), "hold") as holder:
        said(holder)
        holder.kill()
        assert holder.stdout is not None
        holder.stdout.read()  # its end has come, and no member has waited for it: it is in the table of processes still
        held = store.hold("lead", "the next one", 3.0, time.monotonic())
        while isinstance(held, Busy):  # its files are closed a moment before it counts as dead
            held = store.hold("lead", "the next one", 3.0, time.monotonic())
        assert held.owner == "the next one"


def boot(monkeypatch: pytest.MonkeyPatch, boot_id: str) -> None:
    """From now on, be a process that was started after another boot, or on another machine."""
    monkeypatch.setattr(process_identity, "_boot_id", lambda: boot_id)


def test_a_hold_from_before_a_restart_of_the_machine_is_over_after_its_time_to_live(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock starts again with the machine, so the old end may lie days ahead."""
    with SqliteStore(path) as store:
        old = store.hold("lead", "x", 10.0, 1_000_000.0)
        assert isinstance(old, Hold)
        boot(monkeypatch, "the next boot")
        assert store.hold("lead", "y", 10.0, 5.0) == Busy(Hold("lead", "x", old.term, 15.0))
        assert store.hold("lead", "y", 10.0, 15.0) == Hold("lead", "y", old.term + 1, 25.0)


def test_a_hold_that_is_renewed_on_another_machine_stops_this_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file on a volume that two machines share. It can be told from a restart, after which no old process renews."""
    with SqliteStore(path) as there, SqliteStore(path) as here:
        boot(monkeypatch, "there")
        held = there.hold("lead", "x", 3.0, 1_000_000.0)
        assert isinstance(held, Hold)
        boot(monkeypatch, "here")
        assert isinstance(here.hold("lead", "y", 3.0, 5.0), Busy)
        boot(monkeypatch, "there")
        there.hold("lead", "x", 3.0, 1_000_001.5)
        boot(monkeypatch, "here")
        for now in (6.5, 8.0):
            with pytest.raises(StoreError, match=r"is in use by x on another machine; nothing was written") as caught:
                here.hold("lead", "y", 3.0, now)
        assert "Stop one of the two coordinators" in caught.value.why
        after = here.hold("lead", "y", 3.0, 9.5)  # the other machine was switched off
        assert isinstance(after, Hold)
        assert after.term == held.term + 1


def test_where_no_boot_is_known_a_hold_is_over_after_its_time_to_live(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(monkeypatch, "")
    with SqliteStore(path) as store:
        assert store.hold("lead", "x", 10.0, 1_000_000.0) == Hold("lead", "x", 1, 1_000_010.0)
        assert store.hold("lead", "y", 2.0, 5.0) == Busy(Hold("lead", "x", 1, 15.0))
        assert store.hold("lead", "y", 2.0, 14.9) == Busy(Hold("lead", "x", 1, 15.0))
        assert store.hold("lead", "y", 2.0, 15.0) == Hold("lead", "y", 2, 17.0)
        assert store.hold("lead", "y", 2.0, 16.0) == Hold("lead", "y", 2, 18.0)


def test_a_process_of_another_start_or_number_has_exited() -> None:
    me = current_process()
    assert me.boot_id
    assert not has_exited(me)
    assert has_exited(
        ProcessIdentity(me.boot_id, me.pid_namespace, me.pid, me.start_ticks + 1)
    )  # the same number, another process
    assert has_exited(ProcessIdentity(me.boot_id, me.pid_namespace, 2**22 + 1, me.start_ticks))


def test_a_process_that_cannot_be_seen_is_not_taken_for_exited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    me = current_process()
    assert not has_exited(ProcessIdentity(me.boot_id, "another container's", me.pid, me.start_ticks + 1))
    assert not has_exited(ProcessIdentity("", me.pid_namespace, me.pid, me.start_ticks + 1))
    assert not has_exited(ProcessIdentity("another machine's boot", me.pid_namespace, me.pid, me.start_ticks + 1))
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)  # a system without /proc
    assert current_process() == ProcessIdentity("", "", me.pid, 0)
    assert not has_exited(me)
    assert not has_exited(current_process())


def test_a_programs_name_may_hold_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    for state, started in (("S", 4711), ("Z", None), ("X", None)):
        fields = " ".join([state, *["0"] * 18, "4711", "0"])
        (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b c) {fields}\n", encoding="utf-8")
        assert process_identity._start_ticks(7) == started
