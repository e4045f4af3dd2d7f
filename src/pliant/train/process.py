"""Services of a worker's process: its log, signal handlers, the stall watchdog, and measured pauses."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pliant.core.accounting.pauses import PAUSES_MAX, SWITCHING, Pause
from pliant.core.messages import Command, Report

log = logging.getLogger(__name__)

WATCH_S = 2.0
SHORT_S = 0.0005  # shorter pauses are not recorded


def log_to_stderr() -> None:
    """Print Pliant's log to stderr unless the script configures logging itself."""
    ours = logging.getLogger("pliant")
    if not ours.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("pliant: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False


class SigtermListener:
    """Call `on_sigterm` on a separate thread for each SIGTERM, until `close`. Create it in the main thread.

    The signal is handled at once, even while the training thread is inside a collective and runs no Python code.
    """

    def __init__(self, on_sigterm: Callable[[], None]) -> None:
        self._on_sigterm = on_sigterm
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handler_before = signal.signal(signal.SIGTERM, _ignore)
        self._thread = threading.Thread(target=self._listen, name="pliant-notice", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while numbers := os.read(self._read, 64):
            if signal.SIGTERM in numbers:
                self._on_sigterm()

    def close(self) -> None:
        """Restore the previous handler and wakeup descriptor."""
        signal.signal(signal.SIGTERM, self._handler_before)
        signal.set_wakeup_fd(self._wakeup_before, warn_on_full_buffer=False)
        os.close(self._write)
        self._thread.join(1.0)
        os.close(self._read)


class InterruptHandler:
    """Call `on_signal` in a thread of its own for the first SIGINT or SIGTERM. The second one has its usual effect.

    Create and close it in the main thread.
    """

    def __init__(self, on_signal: Callable[[str], None]) -> None:
        self._on_signal = on_signal
        self.exit_code = 0  # once a signal arrived
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as `signal` calls it
        self.close()
        self.exit_code = 128 + number
        name = signal.Signals(number).name
        log.info("%s: saving at the end of this step; send it again to end without saving", name)
        # The interrupted code may hold a lock that the session needs.
        threading.Thread(target=self._on_signal, args=(name,), name="pliant-interrupt", daemon=True).start()

    def close(self) -> None:
        """Restore the previous handlers."""
        for number, before in self._before.items():
            signal.signal(number, before)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python writes the signal's number to the wakeup descriptor only if a handler is set."""


class StallWatchdog:
    """Log the stack of the thread that created it once that thread has been in user code for too long, and end it.

    `busy_since` returns the time at which the thread entered user code, and None outside of it. `limit_s` returns how
    long it may stay there; 0 for ever. `end` ends the process; None: the stack is logged, once, and nothing else.
    """

    def __init__(
        self,
        member: str,
        limit_s: Callable[[], float],
        busy_since: Callable[[], float | None],
        end: Callable[[], None] | None = None,
    ) -> None:
        self._member = member
        self._limit_s = limit_s
        self._busy_since = busy_since
        self._end = end
        self._thread_id = threading.get_ident()
        self._over = threading.Event()
        self._reported: float | None = None
        self._thread = threading.Thread(target=self._watch, name="pliant-stall", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(1.0)

    def _watch(self) -> None:
        while not self._over.wait(min(self._limit_s() / 4 or WATCH_S, WATCH_S)):
            since, limit_s = self._busy_since(), self._limit_s()
            if since is None or since == self._reported or not limit_s or time.monotonic() - since < limit_s:
                continue
            self._reported = since
            frame = sys._current_frames().get(self._thread_id)
            stack = "".join(traceback.format_stack(frame)) if frame else "(its thread has ended)"
            log.warning("%s has been in the training loop's body for %.0f s:\n%s", self._member, limit_s, stack)
            if self._end is not None:
                log.warning("%s ends, so that the others go on; stall_s=0 allows any time", self._member)
                self._end()


class PauseLog:
    """Seconds that the training thread waited, by step and cause, for `pliant report`. Thread-safe.

    An entry is kept until its step is reported. Beyond `PAUSES_MAX` entries the oldest are dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[tuple[int, str], float] = {}
        self._reduced = (0, 0.0)  # the generation of the last reduction, and its duration

    @contextmanager
    def during(self, step: int, what: str) -> Iterator[None]:
        """Record the time spent in the `with` block as a pause in `step`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(step, what, time.monotonic() - began)

    def add(self, step: int, what: str, seconds: float) -> None:
        if seconds < SHORT_S:
            return
        with self._lock:
            self._seconds[step, what] = self._seconds.get((step, what), 0.0) + seconds
            for oldest in sorted(self._seconds)[:-PAUSES_MAX]:
                del self._seconds[oldest]

    def reduced(self, step: int, generation: int, seconds: float) -> None:
        """Call after every reduction. In the first one of a generation the time beyond the previous one is a pause."""
        before, usual_s = self._reduced
        if before not in (0, generation):
            self.add(step, SWITCHING, seconds - usual_s)
        self._reduced = (generation, seconds)

    def attach_to(self, command: Command) -> Command:
        """Return the command; a report carries the pauses of the steps in it."""
        if not isinstance(command, Report) or not command.lines:
            return command
        first, last = command.lines[0].lineage.step, command.lines[-1].lineage.step
        with self._lock:
            spent = tuple(
                Pause(step, what, seconds) for (step, what), seconds in self._seconds.items() if first <= step <= last
            )
        return replace(command, pauses=spent) if spent else command


def process_age_s() -> float:
    """Return the seconds since this process was started or forked; 0 if the system does not report it."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
