"""Real connections of real processes, cut and mended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.chaos import socket_filter
from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.inject import FaultInjector, StopRequest
from pliant.chaos.plan import Cut, PlannedFault
from pliant.chaos.processes import ProcessRef
from pliant.chaos.socket_filter import CutFilters, remove_filters, why_unavailable
from pliant.chaos.sockets import NOWHERE, NetworkFacts, SocketEnd, SocketFilter, socket_ends
from pliant.chaos.undo import MARGIN_S, PendingUndo, UndoProcess
from pliant.errors import PliantError
from unit.chaos.victims import Victim, answers, beside, filtered, heard, until, victim

QUIET_S = 0.3  # what does not come by then does not come at all, on one machine
STOP = PlannedFault(0, FaultKind.STOP, ("w1",), 60.0)


@pytest.fixture
def one() -> Iterator[Victim]:
    with victim("w1") as found:
        if why := why_unavailable(found.process):
            pytest.skip(why)
        yield found


def everything(one: Victim) -> list[tuple[ProcessRef, SocketEnd, SocketFilter]]:
    return [(one.process, end, SocketFilter.DROP_ALL) for end in socket_ends(one.process)]


def test_what_arrives_is_dropped_and_comes_again_when_the_cut_is_over(one: Victim) -> None:
    touched: list[ProcessRef] = []
    with one.connect() as ours:
        assert answers(ours)
        filters = CutFilters(lambda: everything(one), touched.append)
        filters.apply()
        filters.apply()  # the same again is nothing new
        assert (filters.count, filters.processes, touched) == (2, {one.process}, [one.process])
        assert not answers(ours, QUIET_S)
        with socket.socket() as late:
            late.settimeout(QUIET_S)
            with pytest.raises(TimeoutError):
                late.connect(("127.0.0.1", one.port))
        filters.remove()
        assert heard(ours)  # TCP has sent it again


def test_nothing_is_heard_on_a_new_connection_before_it_is_known_whose_it_is(one: Victim) -> None:
    kinds = {True: SocketFilter.HANDSHAKES_ONLY, False: SocketFilter.ACCEPT_ALL}
    filters = CutFilters(
        lambda: [(one.process, end, kinds[end.listens]) for end in socket_ends(one.process)], lambda _: None
    )
    with one.connect() as old:
        assert answers(old)
        filters.apply()
        assert answers(old)
        with contextlib.closing(socket.socket()) as new:
            old.close()  # it serves one after the other
            new.connect(("127.0.0.1", one.port))  # which is possible
            assert not answers(new, QUIET_S)
            until(lambda: len(socket_ends(one.process)) == 2, "that it is accepted")
            filters.apply()
            assert heard(new)
            filters.remove()
            assert answers(new)
    assert filters.count == 0


def guarded(one: Victim) -> CutFilters:
    """The member that connects is heard no more until a member looks, and no member does."""
    listening = [(one.process, end, SocketFilter.HANDSHAKES_ONLY) for end in socket_ends(one.process) if end.listens]
    filters = CutFilters(lambda: listening, lambda _: None)
    filters.apply()
    return filters


def test_a_connection_that_waits_to_be_accepted_is_not_left_deaf(one: Victim) -> None:
    with one.connect() as old, contextlib.closing(socket.socket()) as new:
        assert answers(old)
        filters = guarded(one)
        assert filtered(one.process) == 1
        new.connect(("127.0.0.1", one.port))  # it waits: the victim serves one after the other
        with beside(threading.Thread(target=filters.remove)):
            until(lambda: not filtered(one.process), "the first look")
            old.close()
        assert answers(new)


def test_a_connection_that_nobody_accepts_is_not_waited_for_for_ever(
    one: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_filter, "QUEUE_S", 0.1)
    with one.connect() as old, contextlib.closing(socket.socket()) as new:
        assert answers(old)
        filters = guarded(one)
        new.connect(("127.0.0.1", one.port))
        filters.remove()
        assert filtered(one.process) == 0


def test_a_process_that_ended_is_no_trouble(one: Victim) -> None:
    ours = [(one.process, SocketEnd(handle, NOWHERE, NOWHERE), SocketFilter.DROP_ALL) for handle in (3, 99)]
    filters = CutFilters(lambda: ours, lambda _: None)
    one.child.kill()
    one.child.wait()
    filters.apply()
    assert filters.count == 0
    remove_filters(one.process)
    assert why_unavailable(one.process) == ""


@pytest.mark.parametrize(("number", "said"), [(1, "ptrace_scope"), (38, "Linux 5.6 or newer"), (9, "")])
def test_a_system_that_does_not_let_us_says_so(
    one: Victim, number: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_process: ProcessRef) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(socket_filter, "open_sockets", refuse)
    assert said in why_unavailable(one.process)
    assert bool(why_unavailable(one.process)) == bool(said)


# ----------------------------------------------------------------------------------------------------- strikes


class Striking:
    """A fault that is under way in another thread."""

    def __init__(self, fault: PlannedFault, one: Victim) -> None:
        self.over = StopRequest()
        self.note = ""
        self._fault = fault
        self._one = one

    def run(self) -> None:
        with UndoProcess() as mender:
            strikes = FaultInjector(mender, self.over)
            self.note = strikes.inject(self._fault, {"w1": self._one.process}, NetworkFacts)


def under_way(fault: PlannedFault, one: Victim) -> tuple[Striking, threading.Thread]:
    striking = Striking(fault, one)
    return striking, threading.Thread(target=striking.run)


def test_a_stopped_worker_goes_on_when_it_is_over(one: Victim) -> None:
    striking, thread = under_way(STOP, one)
    with beside(thread):
        until(one.is_stopped, "the stop")
        striking.over.request(signal.SIGTERM)
    assert not one.is_stopped()
    assert (striking.note, striking.over.signal) == ("", signal.SIGTERM)


def test_a_stop_lasts_as_long_as_it_says(one: Victim) -> None:
    striking = Striking(PlannedFault(0, FaultKind.STOP, ("w1",), 0.1), one)
    striking.run()
    assert not one.is_stopped()
    assert not striking.over


def test_a_slowed_worker_stands_still_again_and_again(one: Victim) -> None:
    striking, thread = under_way(PlannedFault(0, FaultKind.SLOW, ("w1",), 60.0), one)
    with beside(thread), one.connect() as ours:
        until(one.is_stopped, "that it stands still")
        until(lambda: not one.is_stopped(), "that it goes on")
        until(one.is_stopped, "that it stands still again")
        assert answers(ours)
        striking.over.request()
    assert not one.is_stopped()


def test_a_cut_is_over_when_it_is_over(one: Victim) -> None:
    striking, thread = under_way(PlannedFault(0, FaultKind.PARTITION, ("w1",), 60.0, Cut.INBOUND), one)
    with one.connect() as ours:
        assert answers(ours)
        with beside(thread):
            until(lambda: not answers(ours, QUIET_S), "the cut")
            striking.over.request()
        assert heard(ours)
    assert striking.note == "2 sockets cut"


def test_a_victim_that_ended_is_told(one: Victim) -> None:
    one.child.kill()
    one.child.wait()
    for fault, note in [
        (STOP, "the worker had already ended"),
        (PlannedFault(0, FaultKind.SLOW, ("w1",), 9.0), "the worker ended meanwhile"),
        (PlannedFault(0, FaultKind.KILL, ("w1",)), "w1 had already ended"),
        (PlannedFault(0, FaultKind.PARTITION, ("w1",), 0.0, Cut.INBOUND), "no connection to cut"),
    ]:
        striking = Striking(fault, one)
        striking.run()
        assert striking.note == note


def test_a_kill_is_one(one: Victim) -> None:
    striking = Striking(PlannedFault(0, FaultKind.KILL, ("w1",)), one)
    striking.run()
    assert (one.child.wait(), striking.note) == (-signal.SIGKILL, "")


# ------------------------------------------------------------------------------------------------------- mender

HOLDER = """
import signal, sys, time
from pliant.chaos.socket_filter import CutFilters
from pliant.chaos.undo import UndoProcess
from pliant.chaos.processes import ProcessRef, send_signal
from pliant.chaos.sockets import SocketFilter, socket_ends

victim = ProcessRef(int(sys.argv[1]), int(sys.argv[2]))
undo = UndoProcess()
until = time.monotonic() + float(sys.argv[3])
wanted = [(victim, end, SocketFilter.DROP_ALL) for end in socket_ends(victim)]
CutFilters(lambda: wanted, lambda process: undo.register(process, until)).apply()
send_signal(victim, signal.SIGSTOP)
print("done", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def striker(one: Victim, lasts_s: float) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has stopped the victim and cut it off, and does nothing any more."""
    argv = [sys.executable, "-c", HOLDER, str(one.pid), str(one.process.start_ticks), str(lasts_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as found:
        try:
            assert found.stdout is not None
            assert found.stdout.readline() == b"done\n"
            until(one.is_stopped, "the stop")
            yield found
        finally:
            found.kill()


def test_whoever_strikes_may_be_killed_and_all_is_undone(one: Victim) -> None:
    with one.connect() as ours:
        assert answers(ours)
        with striker(one, 60.0) as found:
            ours.sendall(b"x")
            found.kill()
        until(lambda: not one.is_stopped(), "that it goes on")
        assert heard(ours)


def test_whoever_strikes_may_be_stopped_itself_and_all_is_undone_when_it_should_have_been(one: Victim) -> None:
    with one.connect() as ours:
        assert answers(ours)
        with striker(one, 0.5) as found:
            found.send_signal(signal.SIGSTOP)
            ours.sendall(b"x")
            until(lambda: not one.is_stopped(), "that it goes on")
            assert heard(ours)
            assert found.poll() is None


def test_who_was_let_go_is_not_mended() -> None:
    held = PendingUndo()
    assert held.wait_s(0.0) is None
    held.receive(b"register 1 2 50.0\nregister 3 4 60.0\nrelease 1 2\nrelease 9 ")
    held.receive(b"9\n")
    assert held.until == {ProcessRef(3, 4): 60.0}


def test_who_is_overdue_is_mended_again_until_it_is_let_go() -> None:
    held = PendingUndo()
    held.receive(b"register 1 2 50.0\nregister 3 4 90.0\n")
    assert (held.wait_s(40.0), held.overdue(51.0)) == (10.0 + MARGIN_S, [])
    assert (held.wait_s(60.0), held.overdue(60.0)) == (0.0, [ProcessRef(1, 2)])
    assert (held.wait_s(60.0), held.overdue(60.0)) == (MARGIN_S, [])
    assert held.overdue(60.0 + MARGIN_S) == [ProcessRef(1, 2)]
    held.receive(b"release 1 2\n")
    assert held.overdue(80.0) == []


def test_nothing_is_begun_without_a_mender(one: Victim) -> None:
    with UndoProcess() as mender:
        os.kill(mender.pid, signal.SIGKILL)
        until(lambda: not _alive(mender.pid), "its end")
        with pytest.raises(PliantError, match="process that undoes faults"):
            FaultInjector(mender, StopRequest()).inject(STOP, {"w1": one.process}, NetworkFacts)
    assert not one.is_stopped()


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
