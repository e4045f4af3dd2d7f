"""Measure the time from an event to the first step in the new world, for a script that does not import Pliant.

The same script under `pliant run` and under torchrun, tuned and with its defaults, in worlds of 2 and 4: agents with
one worker each. A worker is killed, an agent added, one asked to leave, one killed. And from the command to the first
step, for all workers on one machine. Trials are interleaved. Prints a table and, as its last line, one JSON object.
Timings are reported, not judged: it fails if something did not recover, or if Pliant left a process behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaunch_agents import (
    Crowd,
    NotRecovered,
    Pliant,
    Standalone,
    StandaloneTorchrun,
    Torchrun,
    World,
    free_port,
)

LOW_LEASE_S = 3.0  # the detection time of the tuned torchrun: three times one second
STEPS_S = 1.0  # of training before each event
STAGES = ("seen", "stopped", "born", "began", "imported", "grouped", "built", "stepped")
COLD, KILLED, ADDED, LEAVES, GONE = (
    "worker killed, no template",
    "worker killed",
    "agent added",
    "agent leaves",
    "agent killed",
)
NO_ROOM, START = "worker killed, no room for more", "start"
SILENT, SILENT_LOW = "machine silent", f"machine silent, lease {LOW_LEASE_S:g} s"
PARTS = ("pliant", "tuned", "default", "lease", "cold", "full", "start", "floor")
AIMS = {"default": 0.1, "tuned": 0.33, "start": 1.0}


@dataclass(frozen=True, slots=True)
class Figure:
    """One event in one trial. `stages` are the seconds of each stage."""

    event: str
    world: int
    system: str
    seconds: float
    pause_s: float
    forked: bool
    stages: dict[str, float]


@dataclass(slots=True)
class Book:
    """All results."""

    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    floors: dict[int, list[dict[str, float]]] = field(default_factory=dict)

    def note(self, figure: Figure) -> None:
        self.figures.append(figure)
        how = ", forked" if figure.forked else ""
        print(f"  {figure.system:8} {figure.world}  {figure.event}: {figure.seconds:.2f} s{how}", flush=True)

    def of(self, event: str, world: int, system: str) -> list[Figure]:
        return [each for each in self.figures if (each.event, each.world, each.system) == (event, world, system)]


# ---------------------------------------------------------------------------------------------------- trials


@dataclass(frozen=True, slots=True)
class Trial:
    """One job from its start through some events."""

    book: Book
    system: str
    world: int
    crowd: Crowd
    chance: random.Random

    def run(self, events: tuple[str, ...]) -> None:
        """Run the events in order, and leave no process behind."""
        try:
            began = time.time()
            for _ in range(self.world):
                self.crowd.add()
            now = self.crowd.wait_for(self.world, began)
            for event in events:
                self.crowd.settle()
                time.sleep(STEPS_S)
                now = self._measure(event, now)
        except (NotRecovered, subprocess.SubprocessError) as error:
            self.book.failures.append(f"{self.system}, world of {self.world}: {error}")
            print(f"  {self.book.failures[-1]}", flush=True)
        finally:
            self.book.left += [f"{self.system}: {each}" for each in self.crowd.close()]

    def _measure(self, event: str, world: World) -> World:
        size = world.size
        victim = self.chance.choice(world.ranks)
        began = time.time()
        if event in (COLD, KILLED, NO_ROOM):
            os.kill(victim["pid"], signal.SIGKILL)
        elif event == ADDED:
            size += 1
            self.crowd.add()
        elif event == LEAVES:
            size -= 1
            self.crowd.let_leave()
        else:
            size -= 1
            self.crowd.lose_agent(silent=event != GONE)
        new = self.crowd.wait_for(size, began)
        pause_s, seconds = self.crowd.pause_s(began, new), new.reached("stepped") - began
        found = Figure(event, self.world, self.system, seconds, pause_s, new.forked, self._stages(began, new))
        self.book.note(found)
        return new

    def _stages(self, began: float, new: World) -> dict[str, float]:
        at = {stage: new.reached(stage) for stage in STAGES[2:]}
        if isinstance(self.crowd, Pliant):
            at |= decided(self.crowd, began, new)
        return between(began, at)


def decided(crowd: Pliant, began: float, new: World) -> dict[str, float]:
    """Return the times at which the coordinator ended the launch and created the next."""
    events, port = crowd.events(), f":{new.ranks[0]['port']}"
    [launched] = [
        event["at"]
        for event in events
        if event["type"] == "Launched" and event["launch"]["seats"][0]["address"].endswith(port)
    ]
    knew = [
        event["at"]
        for event in events
        if event["type"] in ("JobCreated", "LaunchOver", "AgentGone") and began <= event["at"] <= launched
    ]
    return {"seen": min(knew, default=launched), "stopped": launched}


def between(began: float, at: dict[str, float]) -> dict[str, float]:
    """Return the seconds of each stage."""
    found, last = {}, began
    for stage in STAGES:
        if stage in at:
            found[stage] = round(at[stage] - last, 3)
            last = at[stage]
    return found


def start(book: Book, base: Path, world: int, system: str) -> None:
    """Measure from the command to the first step."""
    crowd: Standalone | StandaloneTorchrun
    crowd = Standalone(base) if system == "pliant" else StandaloneTorchrun(base, tuned=False)
    try:
        began = time.time()
        crowd.start(world)
        new = crowd.wait_for(world, began)
        at = {stage: new.reached(stage) for stage in STAGES[2:]}
        stages = between(began, at | (decided(crowd, began, new) if isinstance(crowd, Pliant) else {}))
        seconds = new.reached("stepped") - began
        book.note(Figure(START, world, system, seconds, seconds, new.forked, stages))
    except NotRecovered as error:
        book.failures.append(f"{system}, start with {world}: {error}")
    finally:
        book.left += [f"{system}: {each}" for each in crowd.close()]


def floor(book: Book, base: Path, world: int) -> None:
    """Measure a lower bound: a relaunch without detection, stopping and coordination."""
    crowd = Crowd(base)
    command = [sys.executable, str(Path(__file__).with_name("relaunch_floor.py")), str(crowd.steps)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    commanded = time.time()
    try:
        subprocess.run([*command, str(world), str(free_port())], check=True, timeout=120, env=env)
        if (new := crowd.whole(world, 0.0)) is None:
            raise NotRecovered("no world")
        began = min(each["born"] for each in new.ranks)
        stages = between(began, {stage: new.reached(stage) for stage in STAGES[4:]})
        done = new.reached("stepped")
        book.floors.setdefault(world, []).append(stages | {"all": done - began, "with_imports": done - commanded})
        print(f"  floor    {world}  {done - began:.2f} s, {done - commanded:.2f} s with the imports", flush=True)
    except (NotRecovered, subprocess.SubprocessError) as error:
        book.failures.append(f"floor, world of {world}: {error}")
    finally:
        crowd.close()


def one(book: Book, base: Path, system: str, world: int, chance: random.Random) -> None:
    """Run one trial. `lease` waits for an expiry, `cold` has no template, and `full` leaves torchrun no room."""
    folder = Path(tempfile.mkdtemp(dir=base))
    events: tuple[str, ...] = (KILLED, ADDED, LEAVES, GONE)
    crowd: Crowd
    match system:
        case "pliant":
            crowd = Pliant(folder)
        case "lease":
            crowd, events = Pliant(folder), (SILENT,)
        case "low lease":
            crowd, events = Pliant(folder, lease_ttl_s=LOW_LEASE_S), (SILENT_LOW,)
        case "cold":
            crowd, events = Pliant(folder, warm=False), (COLD,)
        case "tuned" | "default":
            crowd = Torchrun(folder, system == "tuned")
        case _:
            system = system.removesuffix(" full")
            crowd, events = Torchrun(folder, system == "tuned", world), (NO_ROOM,)
    named = "pliant" if system in ("lease", "low lease", "cold") else system
    Trial(book, named, world, crowd, random.Random(chance.random())).run(events)


def trials(book: Book, base: Path, worlds: list[int], repeat: int, parts: set[str], chance: random.Random) -> None:
    """Run all trials. With torchrun's defaults both worlds run at once, since most of it is waiting."""
    for _ in range(repeat):
        for world in worlds:
            for system in chance.sample(["pliant", "tuned"], 2):
                if system in parts:
                    one(book, base, system, world, chance)
            for system in chance.sample(["pliant", "torchrun"], 2):
                if "start" in parts:
                    start(book, Path(tempfile.mkdtemp(dir=base)), world, system)
            if "floor" in parts:
                floor(book, Path(tempfile.mkdtemp(dir=base)), world)
    for world in worlds:
        for system in ("lease", "low lease", "cold", "tuned full", "default full"):
            if system.rpartition(" ")[2] in parts:
                one(book, base, system, world, chance)
    if "default" in parts:
        beside = [threading.Thread(target=one, args=(book, base, "default", world, chance)) for world in worlds]
        for each in beside:
            each.start()
        for each in beside:
            each.join()


# --------------------------------------------------------------------------------------------------- reporting


def median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return round(ours / theirs, 3) if ours is not None and theirs else None


def rows(book: Book, worlds: list[int]) -> list[dict[str, Any]]:
    made = []
    for event in (COLD, KILLED, NO_ROOM, ADDED, LEAVES, GONE, SILENT, SILENT_LOW, START):
        for world in worlds:
            like = {COLD: KILLED, SILENT: GONE, SILENT_LOW: GONE}.get(event, event)  # torchrun has no such case
            ours = book.of(KILLED if event == NO_ROOM else event, world, "pliant")
            theirs = {name: book.of(like, world, name) for name in ("tuned", "default", "torchrun")}
            if not (any(theirs.values()) if event == NO_ROOM else ours or (like == event and any(theirs.values()))):
                continue
            row: dict[str, Any] = {"event": event, "world": world}
            row["pliant_s"] = median([each.seconds for each in ours])
            row["pliant_s_all"] = [round(each.seconds, 3) for each in ours]
            row["pause_s"] = median([each.pause_s for each in ours])
            row["forked"] = [each.forked for each in ours]
            row["stages"] = stages(ours)
            for name, figures in theirs.items():
                if figures:
                    row[f"{name}_s"] = median([each.seconds for each in figures])
                    row[f"{name}_s_all"] = [round(each.seconds, 3) for each in figures]
                    row[f"{name}_pause_s"] = median([each.pause_s for each in figures])
                    row[f"{name}_stages"] = stages(figures)
                    row[f"of_{name}"] = ratio(row["pliant_s"], row[f"{name}_s"])
            made.append(row)
    return made


def stages(figures: list[Figure]) -> dict[str, float | None]:
    return {
        stage: median([each.stages[stage] for each in figures])
        for stage in STAGES
        if figures and all(stage in each.stages for each in figures)
    }


def show(found: list[dict[str, Any]], floors: dict[int, dict[str, float | None]]) -> None:
    def cell(value: object, digits: int = 2) -> str:
        return f"{value:>9.{digits}f}" if isinstance(value, float) else f"{'-':>9}"

    print("\nseconds from the event to the first step in the new world, medians; pause: of those that stay")
    print(f"{'':36}{'Pliant':>9}{'pause':>9}{'tuned':>9}{'default':>9}{'x tuned':>9}{'x default':>10}")
    for row in found:
        if row["event"] != START:
            keys = ("pliant_s", "pause_s", "tuned_s", "default_s")
            ratios = cell(row.get("of_tuned")) + " " + cell(row.get("of_default"))
            print(f"{row['world']}  {row['event']:33}{''.join(cell(row.get(key)) for key in keys)}{ratios}")
    print(f"{'':36}{'Pliant':>9}{'torchrun':>9}{'x':>9}")
    for row in found:
        if row["event"] == START:
            figures = "".join(cell(row.get(key)) for key in ("pliant_s", "torchrun_s", "of_torchrun"))
            print(f"{row['world']}  {'from the command to the first step':33}{figures}")
    print("\nwhere Pliant's time goes: until it is seen, until all have stopped, until the last process is born, ...")
    print(f"{'':36}{''.join(f'{stage:>9}' for stage in STAGES)}")
    for row in found:
        print(f"{row['world']}  {row['event']:33}{''.join(cell(row['stages'].get(stage), 3) for stage in STAGES)}")
    for world, floor_stages in floors.items():
        print(f"{world}  {'the least there can be':33}{''.join(cell(floor_stages.get(each), 3) for each in STAGES)}")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3, help="number of trials; torchrun's defaults get one")
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    parser.add_argument("--quick", action="store_true", help="one trial, a world of 2, without torchrun's defaults")
    asked = parser.parse_args()
    parts = set(asked.only.split(","))
    if wrong := parts - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(wrong))}; there are {', '.join(PARTS)}")
    worlds = [2] if asked.quick else [int(world) for world in asked.worlds.split(",")]
    repeat = 1 if asked.quick else asked.repeat
    parts -= {"default", "full"} if asked.quick else set()
    book, began, load = Book(), time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        trials(book, Path(folder), worlds, repeat, parts, random.Random(asked.seed))
    found = rows(book, worlds)
    floors = {
        world: {stage: median([each[stage] for each in each_floor]) for stage in each_floor[0]}
        for world, each_floor in book.floors.items()
    }
    show(found, floors)
    ours = [each for each in book.left if each.startswith("pliant")]
    for each in (*book.failures, *(f"left behind: {each}" for each in book.left)):
        print(each)
    ok = not book.failures and not ours
    about = {"ok": ok, "seed": asked.seed, "took_s": round(time.monotonic() - began), "load_before": load}
    trouble = {"failures": book.failures, "left": book.left}
    print(json.dumps({**about, "aims": AIMS, "rows": found, "floor": floors, **trouble}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
