"""Measure the pause of a join, a leave, a kill and a SIGSTOP beside torchft and torchrun, both tuned.

A job of two workers on one machine trains a model of 0.1 M (S), 10 M (M) or 100 M parameters (L). At a random moment a
third worker joins, one leaves, one is killed, one is stopped. The pause is the longest time between two steps of a
worker that stays, from the event to its fifth step in the new world. It contains one step. A worker that stays is lost
if its process ends: torchrun ends all of them by design, and steps since its last snapshot are repeated, which is not
counted. Rounds are interleaved, and the order within each is random.

Prints a table and, as its last line, one JSON object. Timings are reported, not judged: it fails if Pliant loses a
worker or does not recover.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pause_systems import SYSTEMS, WORLD, NotRecovered, System, is_alive

JOIN, LEAVE, KILL, STOP = "join", "leave", "kill", "stop"
EVENTS = (JOIN, LEAVE, KILL, STOP)
STEPS_AFTER = 5
STEADY_STEPS = 10
MOMENT_S = (0.2, 1.2)  # between a steady state and the event
BEGUN = 0.8  # of the time in which trials are begun


@dataclass(slots=True)
class Book:
    """All results, by model, event and system."""

    pauses: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    steps: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)  # also by the number of workers
    lost: dict[tuple[str, str, str], int] = field(default_factory=dict)  # changes that ended another worker
    tried: dict[tuple[str, str, str], int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


class OthersLost(Exception):
    """A change ended the processes of all workers that were to stay."""


def change(system: System, event: str, chance: random.Random) -> tuple[float, bool]:
    """Make one change at a random moment. Return the pause, and whether a worker that stays was lost."""
    size = WORLD + 1 if event == LEAVE else WORLD
    system.until(f"{size} workers", lambda: system.trains(size, None, 0.0, STEADY_STEPS))
    time.sleep(chance.uniform(*MOMENT_S))
    before = system.pids()
    victim = system.pick(sorted(before), chance)
    began = time.time()
    if event == JOIN:
        system.join()
    elif event == LEAVE:
        system.leave(victim)
    else:
        os.kill(before[victim], signal.SIGKILL if event == KILL else signal.SIGSTOP)
    worlds = {each.world for name in before for each in system.stamps(name) if each.at <= began}
    staying = set(before)
    if event == LEAVE:  # a coordinator may choose another one
        system.until("the leaver's end", lambda: any(not is_alive(pid) for pid in before.values()))
        staying = set(before) - {victim} if system.restarts else {n for n, pid in before.items() if is_alive(pid)}
        if not system.restarts and len(staying) < WORLD:
            raise OthersLost
    elif event != JOIN:
        staying -= {victim}

    def settled() -> bool:
        if not system.restarts and not any(is_alive(before[name]) for name in staying):
            raise OthersLost
        there = {name for name in staying if system.restarts or is_alive(before[name])}
        if event in (KILL, STOP):  # another worker may join before the fifth step
            return system.trains_elsewhere(there, worlds, began, STEPS_AFTER)
        return system.trains({JOIN: WORLD + 1, LEAVE: WORLD}[event], there, began, STEPS_AFTER)

    system.until(f"{STEPS_AFTER} steps after the {event}", settled)
    lost = any(not is_alive(before[name]) for name in staying)
    pause = max(longest(system, name, began) for name in staying)
    return pause, lost


def longest(system: System, seat: str, began: float) -> float:
    """Return the longest time between two steps of a seat, of which the later one came after that moment."""
    times = [each.at for each in system.stamps(seat)]
    return max((b - a for a, b in pairwise(times) if b > began), default=0.0)


def trial(
    book: Book, base: Path, model: str, kind: type[System], events: tuple[str, ...], chance: random.Random
) -> None:
    """Run some events on one job; a new job follows if a system cannot go on."""
    left = list(events)
    while left:
        system = kind(Path(tempfile.mkdtemp(dir=base)), model)
        try:
            while left:
                event = left.pop(0)
                key = model, event, system.name
                pause, lost = change(system, event, chance)
                book.tried[key] = book.tried.get(key, 0) + 1
                book.lost[key] = book.lost.get(key, 0) + lost
                book.pauses.setdefault(key, []).append(pause)
                print(f"{model} {system.name:8} {event:5} {1e3 * pause:8.0f} ms{', others lost' * lost}", flush=True)
                if event in (KILL, STOP):
                    system.restore()
        except OthersLost:
            book.tried[key] = book.tried.get(key, 0) + 1
            book.lost[key] = book.lost.get(key, 0) + 1
            print(f"{model} {system.name:8} {event:5} ended the workers that were to stay", flush=True)
            if event == JOIN:
                left = [each for each in left if each != LEAVE]
        except NotRecovered as error:
            book.failures.append(f"{model}, {event}: {error}")
            print(f"  {book.failures[-1]}", flush=True)
            return
        finally:
            note_steps(book, system, model)
            system.close()


def note_steps(book: Book, system: System, model: str) -> None:
    """Note the usual time of a step in worlds of each size. One worker alone computes the slots of all."""
    gaps: dict[int, list[float]] = {}
    for seat in {file.name.rsplit(".", 2)[0] for file in system.folder.glob("*.stamps")}:
        for a, b in pairwise(system.stamps(seat)):
            if a.world == b.world:
                gaps.setdefault(b.size, []).append(b.at - a.at)
    for size, found in gaps.items():
        book.steps.setdefault((model, system.name, size), []).append(statistics.median(found))


def trials(
    models: list[str], kinds: list[type[System]], repeat: int, chance: random.Random
) -> Iterator[tuple[str, type[System]]]:
    """Yield all trials. torchrun gets one of each model, because its pauses are long. L comes last."""
    small, large = [model for model in models if model != "L"], [model for model in models if model == "L"]
    quick = [kind for kind in kinds if not kind.restarts]
    for number in range(repeat):
        for model in small:
            among = kinds if number == 0 else quick
            yield from ((model, kind) for kind in chance.sample(among, len(among)))
    for model in large:
        yield from ((model, kind) for kind in [*chance.sample(quick, len(quick)), *set(kinds) - set(quick)])


def rows(book: Book, models: list[str], names: list[str]) -> list[dict[str, Any]]:
    found = []
    for model in models:
        for event in EVENTS:
            row: dict[str, Any] = {"model": model, "event": event}
            for name in names:
                key = model, event, name
                if key in book.tried:
                    all_ms = [round(1e3 * each, 1) for each in book.pauses.get(key, [])]
                    row[name] = {
                        "ms": round(statistics.median(all_ms), 1) if all_ms else None,
                        "all_ms": all_ms,
                        "tried": book.tried[key],
                        "others_lost": book.lost[key],
                    }
            found.append(row)
    return found


def show(found: list[dict[str, Any]], steps: dict[str, float], names: list[str]) -> None:
    print("\npause in ms, medians; in brackets: changes that ended another worker, of how many")
    print(f"{'':10}" + "".join(f"{name:>20}" for name in names))
    for row in found:
        cells = []
        for name in names:
            each = row.get(name)
            text = "-" if each is None else f"{each['ms'] or '-'} [{each['others_lost']}/{each['tried']}]"
            cells.append(f"{text:>20}")
        print(f"{row['model']} {row['event']:8}" + "".join(cells))
    print("a step: " + ", ".join(f"{name} {ms} ms" for name, ms in steps.items()))


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    names = [kind.name for kind in SYSTEMS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3, help="rounds of S and M; L and torchrun get one")
    parser.add_argument("--models", default="S,M,L")
    parser.add_argument("--systems", default=",".join(names), help="some of: %(default)s")
    parser.add_argument("--events", default=",".join(EVENTS), help="some of: %(default)s; a leave needs a join before")
    parser.add_argument("--minutes", type=float, default=10.0, help="limit; no trial begins in the last fifth of it")
    asked = parser.parse_args()
    chance, models = random.Random(asked.seed), asked.models.split(",")
    kinds = [kind for kind in SYSTEMS if kind.name in asked.systems.split(",")]
    book, began = Book(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        for model, kind in trials(models, kinds, asked.repeat, chance):
            if time.monotonic() - began > BEGUN * 60 * asked.minutes:
                book.failures.append(f"left out for lack of time: {model} with {kind.name}")
                continue
            book.loads.append(round(os.getloadavg()[0], 1))
            trial(book, Path(folder), model, kind, tuple(asked.events.split(",")), chance)
    found = rows(book, models, [kind.name for kind in kinds])
    steps = {
        f"{model} {name} x {size}": round(1e3 * statistics.median(each), 1)
        for (model, name, size), each in sorted(book.steps.items())
    }
    show(found, steps, [kind.name for kind in kinds])
    lost = sum(count for (_, _, name), count in book.lost.items() if name == "Pliant")
    ok = not lost and not any("Pliant: timed out" in each for each in book.failures)
    about = {"seed": asked.seed, "steps_ms": steps, "loads": book.loads, "failures": book.failures}
    print(json.dumps({"ok": ok, "pliant_lost": lost, **about, "rows": found}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
