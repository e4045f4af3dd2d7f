"""`make gpu`: live training over NCCL on the GPUs of this machine, beside plain DDP, and through changes.

    overhead      a step over that of plain DDP with NCCL, and the memory of both: 10 M, 100 M and a GPT of 350 M
                  parameters with 1, 2 and 4 workers; --model selects
    elastic       join, leave, drain, a worker stopped by SIGSTOP, and kills at random moments, with three workers: the
                  pause, and no other member lost
    bits          deterministic training with 1, 2 and 3 workers, and through a kill
    transfer      workers that join a model of 10^9 parameters with momentum, 8 GB: pause and GB a second
    reconfigure   100 joins and leaves: descriptors, threads and memory of the workers that stay
    floor         without Pliant: the pause that a process causes for others when it begins or ends, and the host memory
                  that each process group of NCCL keeps

Each part prints one line of JSON when it ends, and takes less than eight minutes on one H200. With fewer GPUs than
workers, NCCL must be 2.29 or newer, and NCCL_MULTI_RANK_GPU_ENABLE=1 set. --device cpu tries the same scripts with tiny
models and without NCCL.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from e2e.running import wait_for
from gpu.floor import floor
from gpu.job import HERE, PATIENCE_S, PLIANT, environment, running
from gpu.models import mlp_parameters
from gpu.reconfigure import broken_by, reconfigure

WORLDS = (1, 2, 4)
STEPS_AT_4 = {"100M": 60, "gpt": 30}  # their reductions are slow where four workers share a GPU
BITS_STEPS = 120
PORT = 29511


@dataclass
class Campaign:
    """The settings of a run, and what it found."""

    folder: Path
    device: str
    models: tuple[str, ...]
    kills: int
    changes: int
    chance: random.Random
    broken: list[str] = field(default_factory=list)

    def check(self, is_right: object, what: str) -> None:
        if not is_right:
            self.broken.append(what)
            print(f"  BROKEN: {what}", flush=True)


# --------------------------------------------------------------------------------------------------- overhead


def overhead(campaign: Campaign) -> dict[str, Any]:
    """Return the milliseconds of a step and the memory, plain and with Pliant, by model and number of workers."""
    found: dict[str, Any] = {}
    for model in campaign.models:
        for size in WORLDS:
            options = ["--model", model, "--device", campaign.device]
            if size == 4 and model in STEPS_AT_4:
                options += ["--steps", str(STEPS_AT_4[model])]
            plain = _plain(campaign, size, options)
            ours = _ours(campaign, f"{model.lower()}-{size}", size, options)
            campaign.check(ours["size"] == size, f"{model} x {size} ended with {ours['size']} workers")
            found[f"{model} x {size}"] = {
                "ddp_ms": round(plain["median_ms"], 2),
                "pliant_ms": round(ours["median_ms"], 2),
                "ratio": round(ours["median_ms"] / plain["median_ms"], 3),
                "cpu_ms": [plain["cpu_ms"], ours["cpu_ms"]],
                "memory_mb": [round(plain["memory_mb"]), round(ours["memory_mb"])],
            }
            print(f"  {model} x {size}: {json.dumps(found[f'{model} x {size}'])}", flush=True)
    return found


def _plain(campaign: Campaign, size: int, options: list[str]) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "overhead.py"), "ddp", *options]
    env = environment(campaign.folder / "home")
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT), "WORLD_SIZE": str(size)}
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return _measured(outputs[0])


def _ours(campaign: Campaign, job: str, size: int, options: list[str]) -> dict[str, Any]:
    workers = ["--workers", str(size), "--nproc-per-node", str(size), "--checkpoint-every", "never"]
    command = [*PLIANT, "run", "--mode", "live", "--job", job, *workers, str(HERE / "overhead.py"), "pliant", *options]
    env = environment(campaign.folder / "home")
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            output = run.communicate(timeout=PATIENCE_S)[0]
        finally:
            run.terminate()
    assert run.returncode == 0, f"pliant run ended with {run.returncode}: {output[-3000:]}"
    return _measured(output)


def _measured(output: str) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if "median_ms" in line]
    assert len(lines) == 1, f"one report was expected, got {len(lines)}: {output[-3000:]}"
    found: dict[str, Any] = json.loads(lines[0][lines[0].index("{") :])
    return found


# ---------------------------------------------------------------------------------------------------- elastic


def elastic(campaign: Campaign) -> dict[str, Any]:
    """Train through a join, a leave, a drain, a freeze and kills; return the longest pauses."""
    chance = campaign.chance
    found: dict[str, Any] = {}

    def note(name: str, pause_s: float) -> None:
        found[name] = pause_s
        print(f"  {name}: {pause_s}", flush=True)

    with running(campaign.folder, "elastic", 2, campaign.device) as job:
        job.until_size(2)
        note("join_s", job.change(3, lambda: job.resize(3)))
        note("leave_s", job.change(2, lambda: job.resize(2)))
        job.change(3, lambda: job.resize(3))
        drained = chance.choice(sorted(job.pids()))
        note("drain_s", job.change(2, lambda: job.pliant("drain", job.name, drained)))
        job.until_size(3, time.time())
        frozen, frozen_pid = chance.choice(sorted(job.pids().items()))
        note("freeze_s", job.change(2, lambda: os.kill(frozen_pid, signal.SIGSTOP)))
        victims, pauses = {frozen}, []
        for number in range(campaign.kills):
            job.until_size(3, time.time())
            moment = time.monotonic() + chance.random() * 0.2
            wait_for(lambda: time.monotonic() >= moment, "a random moment of a step", PATIENCE_S)  # noqa: B023
            member, pid = chance.choice(sorted(job.pids().items()))
            victims.add(member)
            pauses.append(job.change(2, lambda pid=pid: os.kill(pid, signal.SIGKILL)))  # type: ignore[misc]
            print(f"  kill {number + 1} of {member}: {pauses[-1]}", flush=True)
        job.until_size(3, time.time())
        job.finish()
        job.result()
        lost = job.lost()
        campaign.check(victims <= lost, f"{sorted(victims - lost)} were killed, and the job did not notice")
        campaign.check(lost <= victims, f"{sorted(lost - victims)} were lost as well")
        campaign.check(job.is_audit_clean(), "the audit is not clean")
    return {**found, "kills": campaign.kills, "kill_s": sorted(pauses), "also_lost": sorted(lost - victims)}


# ------------------------------------------------------------------------------------------- bits and transfer


def bits(campaign: Campaign) -> dict[str, Any]:
    """Return the hashes of deterministic trainings, which must be the same."""
    options = ("--deterministic", "--pace", "0.01", "--steps", str(BITS_STEPS))
    found: dict[str, str] = {}
    for size in (1, 2, 3):
        with running(campaign.folder, f"bits-{size}", size, campaign.device, *options) as job:
            found[f"{size} workers"] = job.result()
            print(f"  {size} workers: {found[f'{size} workers']}", flush=True)
    with running(campaign.folder, "bits-killed", 3, campaign.device, *options) as job:
        job.until_size(3)
        os.kill(sorted(job.pids().values())[1], signal.SIGKILL)
        found["3 workers, one killed"] = job.result()
        campaign.check(len(job.lost()) == 1, "the killed worker was not lost")
    campaign.check(len(set(found.values())) == 1, f"the bits differ: {found}")
    return {"same": len(set(found.values())) == 1, **found}


def transfer(campaign: Campaign) -> dict[str, Any]:
    """Let workers join a model whose state has 8 GB; return the longest pauses."""
    gigabytes = mlp_parameters("1B", campaign.device) * 8 / 1e9  # weights and momentum
    pauses: list[float] = []
    with running(campaign.folder, "transfer", 1, campaign.device, "--model", "1B", "--pace", "0") as job:
        job.until_size(1)
        for size in (2, 3):
            pauses.append(job.change(size, lambda size=size: job.resize(size)))  # type: ignore[misc]
            print(f"  worker {size} joined: {pauses[-1]} s", flush=True)
        peaks = sorted(max(step.peak_mb for step in steps) for steps in job.steps().values() if steps)
        campaign.check(not job.lost(), f"{sorted(job.lost())} were lost")
    return {
        "state_gb": round(gigabytes, 2),
        "join_s": pauses,
        "gb_per_s": [round(gigabytes / pause, 2) for pause in pauses],
        "peak_mb": peaks,
    }


def reconfigurations(campaign: Campaign) -> dict[str, Any]:
    found = reconfigure(campaign.folder, campaign.device, campaign.changes, limit_s=420.0)
    for wrong in broken_by(found):
        campaign.check(is_right=False, what=wrong)
    return found


PARTS: dict[str, Callable[[Campaign], dict[str, Any]]] = {
    "elastic": elastic,
    "bits": bits,
    "transfer": transfer,
    "reconfigure": reconfigurations,
    "floor": lambda campaign: floor(campaign.device),
    "overhead": overhead,
}


def run_part(name: str, campaign: Campaign) -> dict[str, Any]:
    """Run a part and print its result as one line of JSON."""
    print(name, flush=True)
    began = time.monotonic()
    found: dict[str, Any] = {}
    try:
        found = PARTS[name](campaign)
    except (AssertionError, subprocess.SubprocessError, OSError) as error:
        campaign.check(is_right=False, what=f"{name}: {error}")
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"part": name, **found, "seconds": seconds}), flush=True)
    return {**found, "seconds": seconds}


@click.command()
@click.option("--seed", default=0, show_default=True, help="For the choice of the victims.")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="These parts alone.")
@click.option("--model", "models", multiple=True, type=click.Choice(["10M", "100M", "gpt"]), help="Of the overhead.")
@click.option("--kills", default=20, show_default=True, help="Number of workers to kill.")
@click.option("--changes", default=100, show_default=True, help="Number of joins and leaves of reconfigure.")
@click.option("--device", default="cuda", show_default=True, type=click.Choice(["cuda", "cpu"]), help="cpu: a trial.")
def main(seed: int, only: tuple[str, ...], models: tuple[str, ...], kills: int, changes: int, device: str) -> None:
    """Run it, and print one JSON object at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    if device == "cuda" and not torch.cuda.is_available():
        print("skipped: there is no GPU here", flush=True)
        print(json.dumps({"ok": True, "skipped": "there is no GPU here"}), flush=True)
        return
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-gpu-"))
    campaign = Campaign(folder, device, models or ("10M", "100M", "gpt"), kills, changes, random.Random(seed))
    versions = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu"}
    found = {name: run_part(name, campaign) for name in only or PARTS}
    if campaign.broken:
        print(f"the files of the run are in {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    seconds = round(time.monotonic() - began, 1)
    ok, broken = not campaign.broken, campaign.broken
    print(json.dumps({"ok": ok, "broken": broken, **versions, **found, "seconds": seconds}), flush=True)
    sys.exit(not ok)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
