"""The mistakes that people make first, each with the exact text of its message.

Every message names what is wrong with its value, then what to do, without a traceback of Pliant's above it.
"""

import io
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.core import messages as m
from pliant.core.messages.describe import describe
from pliant.core.model.job import FailingSlots, Mode
from pliant.core.model.names import MemberId
from pliant.credentials import make_token, write_token
from pliant.errors import BadInput
from unit.cli.program import Running, environment, invoke, real
from unit.cli.test_local_jobs import stopped_job
from unit.core.build import TERMS, A, B, after, join, new_job, refused

GOOD = "import torch\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a folder with scripts to be in."""
    for name in ("PLIANT_COORDINATOR", "PLIANT_TOKEN_FILE", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("PLIANT_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(GOOD)
    (tmp_path / "syn.py").write_text("import torch\nx = = 1\n")
    return home


def error_of(*args: str) -> str:
    """Return what a command prints on standard error, without click's line of usage."""
    done = invoke(*args)
    assert done.code != 0
    assert done.out == ""
    assert "Traceback" not in done.err
    return re.sub(r"^Usage: .*\nTry .*\n\n", "", done.err).strip()


# ------------------------------------------------------------------------------------------- the command line

COMMAND_LINES = [
    (("run", "--worker", "2", "train.py"), "Error: No such option '--worker'. Did you mean '--workers'?"),
    (("run", "--nproc", "4", "train.py"), "Error: No such option '--nproc'. Did you mean '--nproc-per-node'?"),
    (("statsu",), "Error: No such command 'statsu'. Did you mean 'status'?"),
    (("run", "nosuch.py"), "Error: There is no script 'nosuch.py'. Put options of pliant run before it."),
    (("run", "syn.py"), "pliant: syn.py, line 2: invalid syntax."),
    (
        ("run", "--workers", "2-4", "train.py"),
        "Error: Invalid value for '--workers': '2-4' is neither MIN:MAX, such as 2:8, nor one number.",
    ),
    (
        ("run", "--workers", "4:2", "train.py"),
        "pliant: --workers must be MIN:MAX with 1 <= MIN <= MAX, not 4:2. Did you mean 2:4?",
    ),
    (
        ("run", "--workers", "1:2", "--target", "9", "train.py"),
        "pliant: --target must be between 1 and 2, not 9.",
    ),
    (
        ("status", "digits", "--coordinator", "http://127.0.0.1:9", "--token-file", "nofile"),
        (
            "pliant: The token file nofile does not exist. On the coordinator's machine, run `pliant token create "
            "--scope join --job JOB --out FILE`. Copy FILE here and pass it with --token-file."
        ),
    ),
]


@pytest.mark.parametrize(("args", "error"), COMMAND_LINES, ids=lambda value: " ".join(value)[:40])
def test_a_mistake_on_the_command_line(home: Path, args: tuple[str, ...], error: str) -> None:
    assert error_of(*args) == error


def test_a_token_that_others_can_read(home: Path) -> None:
    write_token(home / "token", make_token())
    (home / "token").chmod(0o644)
    assert error_of("jobs", "create", "digits", "--workers", "2") == (
        f"pliant: Other users can read the token at {home / 'token'} (mode 0644). Run: chmod 600 {home / 'token'}"
    )


def test_a_misspelt_job(home: Path) -> None:
    stopped_job(home, "digits")
    assert error_of("status", "digts") == "pliant: no job 'digts'; jobs here: digits. Did you mean 'digits'?"
    assert error_of("resize", "digits", "9") == "pliant: the target must lie between min 1 and max 2; got 9"


# --------------------------------------------------------------------------------------------- the coordinator


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing into the error that is compared."""


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of a plain web server."""
    with HTTPServer(("127.0.0.1", 0), QuietHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_port_that_another_program_uses(home: Path, stranger: int) -> None:
    assert error_of("run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{stranger}", "train.py") == (
        f"pliant: Another program, not a Pliant coordinator, listens at 127.0.0.1:{stranger}. Stop it, or choose "
        f"another port, such as --rdzv-endpoint 127.0.0.1:{stranger + 1}."
    )


def test_a_coordinator_that_does_not_answer_is_named_at_once(home: Path) -> None:
    write_token(home / "token", make_token())
    with socket.socket() as taken:  # bound and not listening: a connection is refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        why = f"No coordinator answers at {url}: [Errno 111] Connection refused. Run `pliant doctor` to find out why."
        assert error_of("jobs", "--coordinator", url) == f"pliant: {why}"
        command = [str(Path(sys.executable).with_name("pliant")), "run", "--job", "j", "--coordinator", url, "train.py"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            shown = [process.stdout.readline(), process.stdout.readline()]
            process.kill()
    assert f"joining the coordinator at {url}" in shown[0]
    assert f"{why} Trying for 30 s." in shown[1]


def test_an_address_from_which_nothing_comes_back(home: Path) -> None:
    write_token(home / "token", make_token())
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        held = [socket.socket() for _ in range(4)]  # they fill its queue: the next attempt gets no reply
        for each in held:
            each.setblocking(False)
            each.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}"
        assert error_of("jobs", "--coordinator", url) == (
            f"pliant: No coordinator answers at {url}: no reply to a connection attempt within 3 s (a wrong address, "
            "or a firewall). Run `pliant doctor` to find out why."
        )
        for each in held:
            each.close()


def test_a_token_of_another_coordinator(running: Running, home: Path) -> None:
    token = make_token()
    write_token(home / "token", token)
    assert error_of("jobs", "--coordinator", running.url) == (
        f"pliant: Not allowed: token {token.id} is unknown at {running.url}, so it was not sent there. It may belong "
        "to another coordinator."
    )


# --------------------------------------------------------------------------------------------------- the script


def train(**changed: Any) -> pliant.Run:
    model = nn.Linear(4, 2)
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": TensorDataset(torch.zeros(20, 4)),
        "batch_size": 16,
    }
    with pliant.join() as job:
        return job.train(**{**given, **changed})


class Unsendable:
    def state_dict(self) -> dict[str, Any]:
        return {"fh": io.StringIO()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


WHOLE = "must be a whole number of at least 1, got"
ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"dataset": []}, "dataset has no samples (a list of length 0). Pass one with samples."),
    ({"batch_size": 0}, f"batch_size {WHOLE} 0."),
    ({"batch_size": 3.5}, f"batch_size {WHOLE} 3.5."),
    ({"batch_size": "16"}, f"batch_size {WHOLE} '16'."),
    ({"epochs": 1.5}, f"epochs {WHOLE} 1.5."),
    ({"seed": "x"}, "seed must be a whole number, got 'x'."),
    (
        {"state": [1]},
        'state must be a dictionary of objects by name, such as {"scheduler": scheduler}, got a list.',
    ),
    ({"clip_norm": -1}, "clip_norm must be a number above 0, or None for no clipping, got -1."),
    ({"slots": 64}, "slots=64 is more than batch_size=16. A slot holds at least one sample: lower slots."),
    ({"state": {"lr": 1}}, 'state["lr"] is an int; wrap it in an object with state_dict and load_state_dict.'),
    (
        {"state": {"counter": Unsendable()}},
        (
            "state['others']['counter']['fh'] is a StringIO, which cannot be sent to another member: state_dict() may "
            "contain numbers, strings, lists, dictionaries and tensors."
        ),
    ),
]


@pytest.mark.parametrize(("changed", "error"), ARGUMENTS, ids=lambda value: str(value)[:40])
def test_a_wrong_argument_of_train(home: Path, changed: dict[str, Any], error: str) -> None:
    with pytest.raises(BadInput) as raised:
        train(**changed)
    assert raised.value.why == error


def test_a_forgotten_run_step(home: Path) -> None:
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.zeros(20, 4))
    with pliant.join() as job:
        run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4)
        next(run)
        with pytest.raises(BadInput) as raised:
            next(run)
    assert raised.value.why == "run.step() was not called for the last item. Call it once for each item of the loop."


def test_several_workers_without_a_coordinator(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput) as raised:
        pliant.join()
    assert raised.value.why == (
        "WORLD_SIZE is 2, but PLIANT_COORDINATOR is not set. Start the workers with `pliant run`, or set "
        "PLIANT_COORDINATOR, PLIANT_JOB and PLIANT_TOKEN_FILE."
    )


def test_the_traceback_of_a_mistake_in_a_script_ends_at_its_own_line(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "mistaken.py"
    script.write_text(
        "import pliant.torch as pliant\n"
        "from torch import nn, optim\n"
        "model = nn.Linear(4, 2)\n"
        "with pliant.join() as job:\n"
        "    job.train(model, optim.SGD(model.parameters(), lr=0.1), [1, 2], batch_size=0)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(home), capture_output=True, text=True, check=False
    )
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert frames == [f'  File "{script}", line 5, in <module>']
    assert done.stderr.endswith(f"pliant.errors.BadInput: batch_size {WHOLE} 0.\n")


def test_an_exception_on_one_worker_names_the_slot_or_the_step(home: Path) -> None:
    found = FailingSlots(30, (8,), ((113,),), MemberId("vm-1.1"), "ValueError: bad sample")
    assert describe(m.SlotRaised(1.0, found)) == "slot 8 of step 30 raised on vm-1.1: ValueError: bad sample"


def test_a_model_that_differs_from_the_job_s(home: Path) -> None:
    ours, theirs = (replace(TERMS, extra=(("model", text),)) for text in ("Linear with 18 parameters", "MLP with 178"))
    job = after(new_job(2), join(A, terms=ours))
    assert refused(job, join(B, terms=theirs)).why == (
        "b would train with model MLP with 178 where the job has Linear with 18 parameters: pass the job's value, or "
        "train under another name with --job"
    )


def test_a_setting_that_a_job_cannot_take_is_named_with_both_values(home: Path) -> None:
    job = after(new_job(2), join(A))
    assert refused(job, m.Create("demo", replace(job.spec, mode=Mode.RELAUNCH))).why == (
        "job demo runs --mode live, which cannot become --mode relaunch: pass --mode live; or choose another name with "
        "--job"
    )


def test_a_module_that_is_missing_ends_the_job_at_once(home: Path, tmp_path: Path) -> None:
    (tmp_path / "imp.py").write_text("import nosuchmodule\n")
    done = real(environment(home, PLIANT_AGENT="vm"), "run", "--preload", "", "imp.py")
    why = "vm-g1.0 ended with exit code 1: ModuleNotFoundError: No module named 'nosuchmodule'"
    assert done.code == 1
    assert f"pliant: imp failed: it cannot start: {why}\n" in done.err
    assert done.err.count("[vm-g1.0] Traceback") == 1
    assert "script starts again" not in done.out
