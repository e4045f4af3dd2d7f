"""Alone, the first Ctrl-C saves, and the second one ends."""

import os
import signal
import threading

import pytest

from pliant.train.process import InterruptHandler


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_passed_on_and_the_handlers_are_restored(number: int, status: int) -> None:
    heard: list[str] = []
    done = threading.Event()

    def hear(name: str) -> None:
        heard.append(name)
        done.set()

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    handler = InterruptHandler(hear)
    try:
        assert handler.exit_code == 0
        os.kill(os.getpid(), number)
        assert done.wait(20.0)
        assert (heard, handler.exit_code) == ([signal.Signals(number).name], status)
        assert {each: signal.getsignal(each) for each in before} == before
    finally:
        handler.close()


def test_a_second_ctrl_c_interrupts_as_usual() -> None:
    handler = InterruptHandler(lambda _: None)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        handler.close()
