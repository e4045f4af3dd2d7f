"""SIGTERM is heard at once, whatever the training thread is doing, and everything is as before afterwards."""

import os
import signal
import subprocess
import sys
import threading

from pliant.train.process import SigtermListener

PATIENCE_S = 60.0

# A lock of the C library that is taken twice: a signal does not wake the thread that waits for it.
STUCK = """
import ctypes, os
from pliant.train.process import SigtermListener
notice = SigtermListener(lambda: os.write(1, b"heard"))
c, lock = ctypes.CDLL(None), (ctypes.c_char * 64)()
os.write(1, b"ready ")
c.pthread_mutex_lock(lock)
c.pthread_mutex_lock(lock)
"""


def test_it_is_heard_on_another_thread() -> None:
    heard = threading.Event()
    where: list[threading.Thread] = []

    def hear() -> None:
        where.append(threading.current_thread())
        heard.set()

    notice = SigtermListener(hear)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.wait(PATIENCE_S)
        assert where[0] is not threading.main_thread()
    finally:
        notice.close()


def test_every_one_is_heard_and_other_signals_are_not() -> None:
    heard = threading.Semaphore(0)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    notice = SigtermListener(heard.release)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.acquire(timeout=PATIENCE_S)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.acquire(timeout=PATIENCE_S)
        assert not heard.acquire(timeout=0.05)
    finally:
        notice.close()
        signal.signal(signal.SIGUSR1, before)


def test_close_puts_everything_back() -> None:
    handler, wakeup = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    threads = threading.active_count()
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # links to what may be gone already
    notice = SigtermListener(lambda: None)
    notice.close()
    assert signal.getsignal(signal.SIGTERM) == handler
    now = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    assert now == wakeup
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208


def test_it_is_heard_while_the_main_thread_runs_no_python() -> None:
    """A collective that waits for a peer is C code: a plain handler would run when it returns, which may be never."""
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(6) == b"ready "
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read(5) == b"heard"
        finally:
            process.kill()
