"""Measure the cost of a checkpoint for a step, against `torch.save` and torch's asynchronous distributed checkpoint.

For 10 M and 100 M parameters with Adam, in worlds of 1 and 2, one thread a process. Every system is a set of processes
that stay; they train in turns, so each round has a turn of each. *stall* is the step with a checkpoint less a step
without, on the rank that it costs most; *all* adds what the steps after it lose until everything is written. Prints
tables and, as its last line, one JSON object. Timings are reported, not judged; it fails if a checkpoint is not the
state to the byte, or does not come.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoint_floor import copy_s, disk_s
from checkpoint_systems import Broken, Pliant, Raw, System, Turn
from checkpoint_turns import STEPS

from pliant.train.checkpoint import DamagedCheckpoint, open_storage, read_checkpoint, read_manifest

SYSTEMS = ("pliant", "save", "async", "staged")
CALLED = {"pliant": "Pliant", "save": "torch.save", "async": "async", "staged": "staged"}
ROUNDS = {"M": 5, "L": 3}
BUDGET_S = {"M": 150.0, "L": 360.0}  # no further round starts after it; a busy machine may complete one only
AIMS = {"save": 0.05, "async": 0.5}


@dataclass(slots=True)
class Figure:
    """One turn with a checkpoint, on the rank with the highest cost."""

    plain_s: float
    stall_s: float
    all_s: float
    waits_s: float
    copied: int
    calls_s: float
    written_s: float
    extra: int  # bytes of memory beyond those of a turn without a checkpoint


@dataclass(slots=True)
class Found:
    """The results of one model in one world."""

    model: str
    world: int
    figures: dict[str, list[Figure]]
    nbytes: int = 0
    disk_s: list[float] = field(default_factory=list)
    hashed_s: list[float] = field(default_factory=list)
    copy_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def middle(self, system: str, what: str) -> float:
        return float(statistics.median(getattr(each, what) for each in self.figures[system]))


def measure(base: Path, model: str, world: int, names: list[str], rounds: int, chance: random.Random) -> Found:
    """Run rounds of turns, each in a random order. The first round is without checkpoints."""
    found = Found(model, world, {name: [] for name in names})
    systems: dict[str, System] = {}
    try:
        for name in names:
            made = base / name
            systems[name] = Pliant(made, model, world) if name == "pliant" else Raw(made, model, world, name)
            systems[name].until_ready()
        end = time.monotonic() + BUDGET_S[model]
        bare = {name: system.turn(0) for name, system in systems.items()}
        state = bare["pliant"].state
        for number in range(1, rounds + 1):
            if number > 1 and time.monotonic() > end:
                break
            for name in chance.sample(names, len(names)):
                turn = systems[name].turn(number)
                if isinstance(here := systems[name], Pliant):
                    found.nbytes = check(here, number, state, found)
                    state = turn.state
                figure = judged(turn, bare[name])
                found.figures[name].append(figure)
                print(
                    f"  {model} x {world}, {CALLED[name]:10} step {1e3 * figure.plain_s:6.0f} ms, "
                    f"stall {1e3 * figure.stall_s:6.0f}, all {1e3 * figure.all_s:6.0f}, "
                    f"wait {1e3 * figure.waits_s:6.1f} for {figure.copied / 1e6:5.0f} MB, "
                    f"written in {figure.written_s:5.2f} s, {figure.extra / 1e6:5.0f} MB more",
                    flush=True,
                )
            found.disk_s.append(disk_s(base, found.nbytes, world, hashed=False))
            found.hashed_s.append(disk_s(base, found.nbytes, world, hashed=True))
            found.copy_s.append(copy_s(found.nbytes, world))
    except (Broken, DamagedCheckpoint) as error:
        found.wrong.append(str(error))
        print(f"  {error}", flush=True)
    finally:
        for system in systems.values():
            system.close()
    return found


def judged(turn: Turn, bare: Turn) -> Figure:
    """Return the figures of a turn. Steps that start after the write count as steps without a checkpoint."""
    began = min(each.began for each in turn.noted)
    stalls, alls, plains = [], [], []
    for noted in turn.noted:
        at, during = noted.began, 0
        for step_s in noted.steps_s:
            if at >= turn.done:
                break
            at, during = at + step_s, during + 1
        during = max(during, 1)
        after = noted.steps_s[during:] if len(noted.steps_s) - during >= 3 else bare.of(noted.rank).steps_s[1:]
        plain = statistics.median(after)
        plains.append(plain)
        stalls.append(noted.steps_s[0] - plain)
        alls.append(sum(noted.steps_s[:during]) - during * plain)
    extra = max(turn.peaks.get(pid, 0) - peak for pid, peak in bare.peaks.items())
    waits = max(turn.noted, key=lambda each: each.waits_s)
    calls_s = max(each.calls_s for each in turn.noted)
    written_s = turn.done - began
    return Figure(max(plains), max(stalls), max(alls), waits.waits_s, waits.copied, calls_s, written_s, extra)


def check(system: Pliant, number: int, state: str, found: Found) -> int:
    """Compare the checkpoint with the state of its step, and return its size."""
    place = open_storage(system.saved)
    manifest = read_manifest(place, system.name_of(number))
    digest = hashlib.sha256()
    for content in read_checkpoint(place, manifest.checkpoint).contents:
        digest.update(content)
    if digest.hexdigest() != state:
        found.wrong.append(f"{found.model} x {found.world}: {manifest.checkpoint.name} is not the state of its step")
    return manifest.nbytes


# --------------------------------------------------------------------------------------------------- reporting


def row(found: Found) -> dict[str, Any]:
    ours = found.middle("pliant", "stall_s")
    made: dict[str, Any] = {"model": found.model, "world": found.world, "nbytes": found.nbytes}
    for system in found.figures:
        made[system] = {
            "step_ms": ms(found.middle(system, "plain_s")),
            "stall_ms": ms(found.middle(system, "stall_s")),
            "stall_ms_all": [ms(each.stall_s) for each in found.figures[system]],
            "sum_ms": ms(found.middle(system, "all_s")),
            "wait_ms": ms(found.middle(system, "waits_s")),
            "wait_ms_all": [ms(each.waits_s) for each in found.figures[system]],
            "copied_mb": round(found.middle(system, "copied") / 1e6),
            "call_ms": ms(found.middle(system, "calls_s")),
            "written_s": round(found.middle(system, "written_s"), 3),
            "mb_per_s": round(found.nbytes / found.middle(system, "written_s") / 1e6),
            "memory_mb": round(max(each.extra for each in found.figures[system]) / 1e6),
        }
        theirs = found.middle(system, "stall_s")
        made[system]["ours_is"] = round(ours / theirs, 3) if theirs > 0 else None
    made["disk_mb_per_s"] = round(found.nbytes / statistics.median(found.disk_s) / 1e6)
    made["hashed_mb_per_s"] = round(found.nbytes / statistics.median(found.hashed_s) / 1e6)
    made["copy_ms"] = ms(statistics.median(found.copy_s))
    return made


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


def show(rows: list[dict[str, Any]]) -> None:
    names = [name for name in SYSTEMS if all(name in each for each in rows)]

    def table(title: str, *more: str) -> None:
        print(f"\n{title}")
        print(f"{'':8}{''.join(f'{CALLED[name]:>12}' for name in names)}{''.join(f'{each:>12}' for each in more)}")

    def line(each: dict[str, Any], key: str, *more: object) -> None:
        cells = [each[name][key] for name in names] + list(more)
        print(f"{each['model']} x {each['world']:<4}{''.join(f'{cell!s:>12}' for cell in cells)}")

    table("ms that the step with a checkpoint takes longer, medians", *(f"x {name}" for name in names[1:]), "copy")
    for each in rows:
        line(each, "stall_ms", *(each[name]["ours_is"] for name in names[1:]), each["copy_ms"])
    table("ms that all steps until it is written take longer, medians", "a step")
    for each in rows:
        line(each, "sum_ms", each["pliant"]["step_ms"])
    table("ms that a step waits for its copy alone, medians", "copied MB")
    for each in rows:
        line(each, "wait_ms", each["pliant"]["copied_mb"])
    table("MB a second, from begin to end (torch.save does not flush)", "disk", "disk+sha256", "state MB")
    for each in rows:
        line(each, "mb_per_s", each["disk_mb_per_s"], each["hashed_mb_per_s"], round(each["nbytes"] / 1e6))
    table("MB of memory more at its peak, in one process", "state MB")
    for each in rows:
        line(each, "memory_mb", round(each["nbytes"] / 1e6))


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", default="M,L", help="M has 10 M parameters, L has 100 M")
    parser.add_argument("--worlds", default="1,2")
    parser.add_argument("--only", default=",".join(SYSTEMS[1:]), help="systems to compare with: %(default)s")
    parser.add_argument("--rounds", type=int, help="rounds with a checkpoint of each system")
    parser.add_argument("--folder", help="folder on the disk to measure; takes up to 12 GB")
    asked = parser.parse_args()
    names = ["pliant", *filter(None, asked.only.split(","))]
    if wrong_names := set(names) - set(SYSTEMS):
        parser.error(f"no such system: {', '.join(sorted(wrong_names))}; there are {', '.join(SYSTEMS[1:])}")
    chance, began, load = random.Random(asked.seed), time.monotonic(), os.getloadavg()[0]
    everything = []
    with tempfile.TemporaryDirectory(prefix="pliant-bench-", dir=asked.folder) as folder:
        for model in asked.models.split(","):
            for world in map(int, asked.worlds.split(",")):
                with tempfile.TemporaryDirectory(dir=folder) as base:
                    rounds = asked.rounds or ROUNDS[model]
                    everything.append(measure(Path(base), model, world, names, rounds, chance))
    rows = [row(found) for found in everything if all(found.figures.values()) and found.copy_s]
    show(rows)
    wrong = [each for found in everything for each in found.wrong]
    loads = [round(load, 1), round(os.getloadavg()[0], 1)]
    rounds_done = {f"{found.model} x {found.world}": len(found.copy_s) for found in everything}
    print(f"\n{len(wrong)} wrong; rounds: {rounds_done}; steps of a turn: {STEPS}; load before and after: {loads}")
    about = {"ok": not wrong, "seed": asked.seed, "took_s": round(time.monotonic() - began), "load": loads}
    print(json.dumps({**about, "aims": AIMS, "rounds": rounds_done, "rows": rows, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
