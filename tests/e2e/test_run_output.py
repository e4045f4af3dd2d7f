"""The terminal of `pliant run`: what stands there, and that nothing depends on its reader."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.launched import TIME, TRAINER, Calm, Launched, all_gone, family, kill
from e2e.running import start, wait_for
from unit.cli.program import PLIANT, environment, real

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


BAR = """
import os, sys, time
if os.environ["RANK"] == "0":
    sys.stderr.write("\\r 10%|#         |")
    sys.stderr.flush()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    sys.stderr.write("\\r100%|##########|\\n")
"""


WAITS = """
import os, sys, time
print("waiting for go", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


LIVE = """
import time
import torch, torch.nn.functional as F
import pliant.torch as pliant

data = torch.utils.data.TensorDataset(torch.randn(512, 8, generator=torch.Generator().manual_seed(0)))
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
with pliant.join() as job:
    run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=32, epochs=1000, seed=7)
    for (a,) in run:
        model(a).square().mean().backward()
        run.step()
        time.sleep(0.02)
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
        started = family(tmp_path)
        run.signal(signal.SIGINT)
        assert run.process.wait(60) == 130
        all_gone(started, tmp_path)


@pytest.mark.timeout(120)
def test_a_progress_bar_is_drawn_live_on_a_terminal_and_its_log_has_the_last_state(tmp_path: Path) -> None:
    script, go = tmp_path / "bar.py", tmp_path / "go"
    script.write_text(BAR)
    terminal, side = os.openpty()
    command = [PLIANT, "run", "--job", "demo", *BARE, "--workers", "2", str(script), str(go)]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment(tmp_path))
    os.close(side)
    seen = b""
    with contextlib.suppress(OSError):  # a terminal ends with an error when its last user is gone
        while data := os.read(terminal, 1 << 12):
            seen += data
            if b" 10%|#" in seen and not go.exists():
                (log,) = (tmp_path / "jobs" / "demo" / "logs").glob("*-g1.0.log")
                assert log.read_text() == "", "the bar is not a line yet"
                go.touch()
    os.close(terminal)
    assert process.wait(60) == 0, seen
    assert log.read_text() == "100%|##########|\n"
    drawn, _, line = seen.decode().partition("100%|##########|")
    assert "-g1.0]  10%|#" in drawn
    assert "demo finished after" in line


@pytest.mark.timeout(120)
def test_two_sigterms_of_timeout_are_one(tmp_path: Path) -> None:
    with Launched(tmp_path, *BARE, "--workers", "1", str(TRAINER), "go") as run:
        run.has_members(1)
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGTERM)
        assert run.ended() == 128 + signal.SIGTERM
    assert "SIGTERM: the workers save and leave" in run.output
    assert "again: ending now" not in run.output
    assert "nothing is lost" in run.output


@pytest.mark.long
@pytest.mark.timeout(200)
def test_an_agent_says_that_its_coordinator_is_gone_and_ends_with_its_script(tmp_path: Path) -> None:
    script, go = tmp_path / "waits.py", tmp_path / "go"
    script.write_text(WAITS)
    with start(home=tmp_path / "elsewhere") as coordinator:
        place = ("--coordinator", coordinator.url, "--token-file", str(tmp_path / "elsewhere" / "token"))
        with Launched(tmp_path / "home", *BARE, *place, "--workers", "1", str(script), str(go)) as run:
            run.sees("waiting for go")
            coordinator.kill()
            run.sees(f"the coordinator at {coordinator.url} has not answered since")
            go.touch()
            assert run.ended() == 0
    assert "this machine left demo. Its coordinator has not answered since" in run.output


@pytest.mark.timeout(200)
def form(line: str) -> str:
    """A line of Pliant without what differs from job to job: names, numbers, times and paths."""
    text = TIME.sub("", line).removeprefix("[pliant] ")
    for pattern, word in ((r"/\S+", "PATH"), (r"\S+-g?\d+\.\d+", "MEMBER"), (r"(\d+ (min|h) )?\d+ (s|min)\b", "TIME")):
        text = re.sub(pattern, word, text)
    text = re.sub(r"SIG(INT|TERM)", "SIGNAL", re.sub(r"\d+", "N", text)).replace("workers", "worker")
    return re.sub(r"MEMBER(, MEMBER)+", "MEMBER", text)  # as many as leave or join at once


def told(text: str) -> set[str]:
    """Return the forms of its own lines, without reminders that workers are awaited: those depend on the machine."""
    own = [form(line) for line in text.splitlines() if line.startswith("[pliant] ")]
    return {line for line in own if not line.startswith("waiting: ")}


@pytest.mark.parametrize("saves", [1, pytest.param(5, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_a_whole_job_is_told_in_the_few_plain_lines_of_the_page_about_it(tmp_path: Path, saves: int) -> None:
    """With a resize, a kill and Ctrl-C; with five scheduled checkpoints, one a minute, it takes five minutes."""
    pytest.importorskip("torch")
    script, env = tmp_path / "live.py", environment(tmp_path)
    script.write_text(LIVE)
    with Calm(tmp_path, "--workers", "1:3", "--target", "2", "--checkpoint-every", "1m", str(script)) as run:
        run.sees("training goes on with 2 workers")
        assert real(env, "resize", "demo", "3").code == 0
        run.sees("training goes on with 3 workers")
        victim, pid = sorted(run.has_members(3).items())[-1]
        kill(pid)
        run.sees(f"worker {victim} was lost (its process ended with signal 9)")
        run.sees("training goes on with 3 workers", 2)
        if saves == 1:
            assert real(env, "checkpoint", "demo").code == 0
        for saved in range(saves):
            run.sees("checkpoint saved: step ", saved + 1)
        run.signal(signal.SIGINT)
        assert run.ended() == 130
    own = [line for line in run.lines if line.startswith("[pliant] ")]
    assert len(own) < 25, run.output
    page = (Path(__file__).parents[2] / "docs" / "operating" / "output.md").read_text(encoding="utf-8")
    assert told(run.output) <= told(page), told(run.output) - told(page)
    assert own[-2].endswith("; nothing is lost.")
    assert own[-1] == "[pliant] next: start it with the same command"
