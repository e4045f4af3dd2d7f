"""`make gpu`: live training over NCCL on the GPUs of this machine, beside plain DDP, and through changes.

    overhead   seconds of a step over those of plain DDP with NCCL, in the same run
    changes    join, leave, drain, a worker stopped by SIGSTOP, and kills at random moments: the longest pause, and no
               other member lost
    large      a worker that joins a model of 10^9 parameters with momentum, 8 GB: the pause
    bits       deterministic training with 1, 2 and 3 workers, and through a kill

With fewer GPUs than workers, NCCL must be 2.29 or newer, and NCCL_MULTI_RANK_GPU_ENABLE=1 set.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import torch

from e2e.running import wait_for
from unit.cli.program import PLIANT

HERE = Path(__file__).parent
PATIENCE_S = 120.0
PARTS = ("changes", "bits", "large", "overhead")


class Job:
    """`pliant run` of the elastic script."""

    def __init__(self, folder: Path, name: str, target: int, steps: int, *options: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.env = {**os.environ, "PLIANT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        script = [str(HERE / "elastic.py"), str(self.folder), "--steps", str(steps), *options]
        run = [PLIANT, "run", "--job", name, "--workers", "1:4", "--target", str(target), "--nproc-per-node", "4"]
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen([*run, *script], stdout=log, stderr=log, env=self.env)

    def pliant(self, *args: str) -> str:
        done = subprocess.run([PLIANT, *args], capture_output=True, text=True, env=self.env, timeout=60, check=True)
        return done.stdout

    def steps(self) -> list[list[float]]:
        """Return time, number, size and rank of every step that a worker noted, in the order of time."""
        found: list[list[float]] = []
        for path in self.folder.glob("*.steps"):
            found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("]")]
        return sorted(found)

    def until_size(self, size: int) -> None:
        def has_size() -> bool:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
            steps = self.steps()
            return bool(steps) and steps[-1][2] == size

        wait_for(has_size, f"{self.name} in a world of {size}", PATIENCE_S)

    def pids(self) -> dict[str, int]:
        status = json.loads(self.pliant("status", self.name, "--json"))
        return {line["id"]: line["pid"] for line in status["members"] if line["rank"] is not None}

    def longest_pause_s(self, since: float) -> float:
        times = [step[0] for step in self.steps() if step[0] > since - 0.5]
        return max(after - before for before, after in pairwise(times))

    def change(self, size: int, act: Callable[[], object]) -> float:
        """Do something that leads to a world of another size, and return the longest pause."""
        since = time.time()
        act()
        self.until_size(size)
        return round(self.longest_pause_s(since), 2)

    def result(self) -> str:
        """Wait for the end, and return the hash of the weights, the same on every worker."""
        assert self.process.wait(PATIENCE_S * 2) == 0, (self.folder / "log").read_text()[-3000:]
        (found,) = {json.loads(path.read_text())["hash"] for path in self.folder.glob("*.done")}
        return str(found)


def overhead(folder: Path) -> dict[str, Any]:
    """Return the milliseconds of a step, plain and with Pliant, by model and number of workers."""
    found: dict[str, Any] = {}
    for model, sizes in {"10M": (1, 2, 4), "100M": (1, 2), "gpt": (1, 2)}.items():
        for size in sizes:
            plain = _plain(model, size)
            ours = _ours(folder, model, size)
            ratio = round(ours["median_ms"] / plain["median_ms"], 3)
            found[f"{model} x {size}"] = {
                "ddp_ms": round(plain["median_ms"], 2),
                "pliant_ms": round(ours["median_ms"], 2),
                "ratio": ratio,
                "cpu_ms": [plain["cpu_ms"], ours["cpu_ms"]],
                "memory_mb": [round(plain["memory_mb"]), round(ours["memory_mb"])],
            }
            print(f"  {model} x {size}: {json.dumps(found[f'{model} x {size}'])}", flush=True)
    return found


def _plain(model: str, size: int) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "overhead.py"), "ddp", "--model", model]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": str(size)}
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    return _measured(outputs[0])


def _ours(folder: Path, model: str, size: int) -> dict[str, Any]:
    env = {**os.environ, "PLIANT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    run = [PLIANT, "run", "--job", f"{model.lower()}-{size}", "--workers", str(size), "--checkpoint-every", "never"]
    command = [*run, str(HERE / "overhead.py"), "pliant", "--model", model]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return _measured(done.stdout)


def _measured(output: str) -> dict[str, Any]:
    (line,) = (line for line in output.splitlines() if "median_ms" in line)
    found: dict[str, Any] = json.loads(line[line.index("{") :])
    return found


def changes(folder: Path, chance: random.Random, kills: int) -> dict[str, Any]:
    """Train through a join, a leave and kills; return the longest pauses, and members lost besides the victims."""
    job = Job(folder, "changes", 2, 150 * (kills + 3) + 4000, "--pace", "0.02")
    job.until_size(2)
    join_s = job.change(3, lambda: job.pliant("resize", job.name, "3"))
    leave_s = job.change(2, lambda: job.pliant("resize", job.name, "2"))
    job.change(3, lambda: job.pliant("resize", job.name, "3"))
    drained = chance.choice(sorted(job.pids()))
    drain_s = job.change(2, lambda: job.pliant("drain", job.name, drained))
    job.until_size(3)
    frozen, frozen_pid = chance.choice(sorted(job.pids().items()))
    freeze_s = job.change(2, lambda: os.kill(frozen_pid, signal.SIGSTOP))
    job.until_size(3)
    pauses: list[float] = []
    victims = {frozen}
    for _ in range(kills):
        member, pid = chance.choice(sorted(job.pids().items()))
        victims.add(member)
        pauses.append(job.change(2, lambda pid=pid: os.kill(pid, signal.SIGKILL)))  # type: ignore[misc]
        job.until_size(3)
    job.result()
    lines = job.pliant("events", job.name, "--json").splitlines()
    events = [json.loads(line)["event"] for line in lines]
    lost = {event["member"] for event in events if event["type"] == "MemberGone" and event["how"] == "lost"}
    assert victims <= lost, f"{sorted(victims - lost)} were killed, and the job did not notice"
    audit = json.loads(job.pliant("audit", job.name, "--json"))
    return {
        "join_s": join_s,
        "leave_s": leave_s,
        "drain_s": drain_s,
        "freeze_s": freeze_s,
        "kill_s": sorted(pauses),
        "kills": kills,
        "also_lost": sorted(lost - victims),
        "audit_ok": audit["ok"] and not audit["lost"] and not audit["repeated"],
    }


def large(folder: Path) -> dict[str, Any]:
    """Let workers join a model whose state has 8 GB; return the longest pauses."""
    job = Job(folder, "large", 1, 20_000, "--model", "1B", "--pace", "0")
    job.until_size(1)
    joins_s = [job.change(size, lambda size=size: job.pliant("resize", job.name, str(size))) for size in (2, 3)]  # type: ignore[misc]
    job.pliant("cancel", job.name)
    job.process.wait(PATIENCE_S)
    return {"state_gb": 8.05, "join_s": joins_s, "gb_per_s": [round(8.05 / pause, 2) for pause in joins_s]}


def bits(folder: Path) -> dict[str, Any]:
    """Return the hashes of deterministic trainings, which must be the same."""
    options = ("--deterministic", "--pace", "0.01")
    found = {f"{size} workers": Job(folder, f"bits-{size}", size, 120, *options).result() for size in (1, 2, 3)}
    job = Job(folder, "bits-killed", 3, 120, *options)
    job.until_size(3)
    os.kill(sorted(job.pids().values())[1], signal.SIGKILL)
    found["3 workers, one killed"] = job.result()
    return found


@click.command()
@click.option("--seed", default=0, show_default=True, help="For the choice of the victims.")
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="These parts alone.")
@click.option("--kills", default=20, show_default=True, help="Number of workers to kill.")
def main(seed: int, only: tuple[str, ...], kills: int) -> None:
    """Run it, and print one JSON object at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not torch.cuda.is_available():
        print("skipped: there is no GPU here", flush=True)
        print(json.dumps({"ok": True, "skipped": "there is no GPU here"}), flush=True)
        return
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-gpu-"))
    found: dict[str, Any] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)}
    broken: list[str] = []
    for name in only or PARTS:
        print(name, flush=True)
        try:
            if name in ("overhead", "large"):
                found[name] = overhead(folder) if name == "overhead" else large(folder)
            elif name == "changes":
                part = found[name] = changes(folder, random.Random(seed), kills)
                broken += [f"{member} was lost as well" for member in part["also_lost"]]
                broken += [] if part["audit_ok"] else ["the audit of the changes is not clean"]
            else:
                part = found[name] = bits(folder)
                broken += [] if len(set(part.values())) == 1 else [f"the bits differ: {part}"]
        except (AssertionError, subprocess.SubprocessError) as error:
            broken.append(f"{name}: {error}")
        print(f"  {json.dumps(found.get(name))}", flush=True)
    for each in broken:
        print(f"BROKEN: {each}", flush=True)
    if broken:
        print(f"the files of the run are in {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"ok": not broken, "broken": broken, **found, "seconds": seconds}), flush=True)
    sys.exit(bool(broken))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
