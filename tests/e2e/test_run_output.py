"""The terminal of `pliant run`: what stands there, and that nothing depends on its reader."""

import signal
from pathlib import Path

import pytest

from e2e.launched import TRAINER, Launched, all_gone, family
from e2e.running import wait_for

BARE = ("--preload", "")

CHATTY = f"""
import runpy, sys, threading
def chat():
    while True:
        print("x" * 1000)
threading.Thread(target=chat, daemon=True).start()
sys.argv = ["trainer.py", "0.02", "1000"]
runpy.run_path({str(TRAINER)!r}, run_name="__main__")
"""


class Unread(Launched):
    """One whose reader stops at the first line of a worker and leaves the pipe open, as a pager does."""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if "xxx" in line:
                return


def step(run: Launched) -> int:
    with run.client() as client:
        return client.job(run.job).job.step


@pytest.mark.timeout(120)
def test_output_that_is_not_read_stops_neither_training_nor_ctrl_c(tmp_path: Path) -> None:
    script = tmp_path / "chatty.py"
    script.write_text(CHATTY)
    with Unread(tmp_path, *BARE, "--workers", "2", str(script)) as run:
        run.sees("xxx")
        log = next((run.folder / "logs").glob("*-g1.0.log"))
        wait_for(lambda: log.stat().st_size > 20 << 20, "more output than the pipe and the queue hold")
        before = step(run)
        wait_for(lambda: step(run) > before + 10, "further steps")
        everybody = family(tmp_path)
        run.signal(signal.SIGINT)
        assert run.process.wait(60) == 130
        all_gone(everybody, tmp_path)
