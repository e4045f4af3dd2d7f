"""A soak: `python -m soak --minutes 30`, in the folder `tests`.

Four workers train, and every so often something is done to one of them or to the coordinator; between such windows
there are quiet ones, to compare with, and at the end one in which the machine has twice its load besides. So it takes
a fifth longer than `--minutes` says. The last line of the output is one JSON object. Only broken promises
make it fail: something that grows, a step that is lost, a member that is taken for dead. How fast it was is told.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from e2e.launched import Launched, family
from e2e.running import wait_for
from pliant.chaos.fault_kinds import FaultKind
from pliant.cli.connect import read_events
from pliant.core.accounting.goodput import Goodput
from pliant.core.messages import Event
from soak.faults import Striker, burning
from soak.looks import Looks
from soak.plan import BATCH, kinds, windows
from soak.verdict import (
    Span,
    false_evictions,
    files_too_large,
    flatness,
    log_sizes,
    progress,
    rate,
    store_growth,
)
from unit.cli.program import environment, real

SCRIPT = Path(__file__).with_name("training.py")
WORKERS = 4
EPOCHS = "1000000"  # more than a soak takes
PATIENCE_S = 120.0
AIM = 0.95  # of the undisturbed samples a second, what starts cost taken off
_PAUSE = threading.Event()  # never set: it only passes time


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="How long there are faults.")
@click.option("--every", default=15.0, show_default=True, help="Seconds between two faults.")
@click.option("--seed", default=0, show_default=True, help="For the faults and their victims.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def main(minutes: float, every: float, seed: int, keep: bool) -> None:
    """Train for long, through faults, and see whether anything grows or is lost."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`, so that nothing is left
    folder = Path(tempfile.mkdtemp(prefix="pliant-soak-"))
    found = soak(folder, minutes, every, seed)
    for each in found["broken"]:
        print(f"BROKEN: {each}", flush=True)
    if found["broken"] or keep:
        print(f"what the run left is in {folder}")
    else:
        shutil.rmtree(folder)
    print(json.dumps({"ok": not found["broken"], "seed": seed, **found}), flush=True)
    sys.exit(bool(found["broken"]))


def soak(folder: Path, minutes: float, every_s: float, seed: int) -> dict[str, Any]:
    """All of it, and what it showed."""
    options = ("--mode", "live", "--workers", f"1:{WORKERS}", "--target", str(WORKERS), "--max-restarts", "100000")
    with Launched(folder, *options, str(SCRIPT), EPOCHS, str(BATCH), job="soak", OMP_NUM_THREADS="1") as run:
        run.has_members(WORKERS)
        looks = Looks(run)
        looks.start()
        try:
            striker = Striker(run, looks, random.Random(seed))
            spans = list(_windows(striker, looks, minutes, every_s, kinds(seed)))
            looks.close()
            with run.client() as client:
                events = [event for _, event in read_events(client, "soak")]
        finally:
            looks.close()
        audit = real(environment(folder), "audit", "soak", "--json").json
        report = real(environment(folder), "report", "soak", "--json").json
        real(environment(folder), "cancel", "soak")
        status = run.ended()
    left = family(folder)
    for pidfd in left.values():
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
    found = _found(spans, events, looks, striker)
    found["report"] = {name: round(seconds, 1) for name, seconds in report["seconds"].items()}
    found["broken"] += [] if audit["ok"] else [f"the audit: {audit['problems'][:3]}"]
    found["broken"] += [f"{len(left)} processes are left"] if left else []
    found["exit"] = status
    return found


def _windows(
    striker: Striker, looks: Looks, minutes: float, every_s: float, faults: Iterator[FaultKind]
) -> Iterator[Span]:
    """Let the windows pass. Each begins with every member there, or as soon as a while has passed."""
    for window in windows(minutes):
        _wait_for_everybody(looks)
        with ExitStack() as around:
            if window.kind == "loaded":
                around.enter_context(burning())
            print(f"{window.kind} for {window.seconds:.0f} s", flush=True)
            began = time.time()
            while (left_s := began + window.seconds - time.time()) > 0:
                if window.kind == "quiet" or left_s < every_s:
                    _PAUSE.wait(left_s)
                    continue
                kind = next(faults)
                due = time.monotonic() + every_s
                print(f"  {kind}{'' if striker.strike(kind) else ': no member to strike'}", flush=True)
                _PAUSE.wait(max(0.0, due - time.monotonic()))
        yield Span(window.kind, began, time.time())


def _wait_for_everybody(looks: Looks) -> None:
    wait_for(lambda: len(looks.pids) >= WORKERS, f"{WORKERS} workers", PATIENCE_S)


def _found(spans: list[Span], events: list[Event], looks: Looks, striker: Striker) -> dict[str, Any]:
    known = progress(events)
    folded = Goodput()
    for event in events:
        folded.add(event)
    lost = folded.progress.recomputed_steps + folded.progress.highest_step - folded.progress.steps
    evicted = false_evictions(events, striker.struck, spans[-1].ended)
    sizes, files = log_sizes(events), max(size for _, size in looks.store)
    flat = [*flatness(looks.seen, spans[0].began, spans[-1].ended), *store_growth(sizes, known)]
    broken = [f"{each.what} grew from {each.middle:.0f} to {each.last:.0f}" for each in flat if not each.ok]
    broken += [f"{lost} steps were lost"] if lost else []
    broken += [f"the store takes {files} bytes"] if files_too_large(files, sizes[-1][1]) else []
    broken += [f"taken for lost: {each}" for each in evicted]
    return {
        "broken": broken,
        "minutes": round((spans[-1].ended - spans[0].began) / 60.0, 2),
        "faults": dict(striker.fired),
        "steps": folded.progress.steps,
        "steps_lost": lost,
        "false_evictions": len(evicted),
        "store": {"log_bytes": sizes[-1][1], "most_file_bytes": files},
        "flat": {each.what: [round(each.middle, 1), round(each.last, 1)] for each in flat},
        **_speeds(spans, known, looks, striker.stops),
    }


def _speeds(
    spans: list[Span], known: list[tuple[float, int]], looks: Looks, stops: list[tuple[float, float]]
) -> dict[str, Any]:
    """Samples a second with faults and without; what of the CPU went into starts, and how long one was stopped."""
    disturbed = [span for span in spans if span.kind == "disturbed"]
    seconds = sum(span.ended - span.began for span in disturbed)
    starts = [each for each in looks.starts if any(span.began <= each.at < span.ended for span in disturbed)]
    cpu_s = sum(each.cpu_s for each in starts)
    quiet = rate(known, [span for span in spans if span.kind == "quiet"], BATCH)
    struck = rate(known, disturbed, BATCH)
    apart = cpu_s / (seconds * (os.cpu_count() or 1)) if seconds else 0.0
    stopped_s = sum(spent for at, spent in stops if any(span.began <= at < span.ended for span in disturbed))
    stopped = stopped_s / seconds if seconds else 0.0
    return {
        "samples_per_second": {
            "undisturbed": round(quiet, 1),
            "disturbed": round(struck, 1),
            "loaded": round(rate(known, [span for span in spans if span.kind == "loaded"], BATCH), 1),
        },
        "starts": {
            "count": len(starts),
            "cpu_s": round(cpu_s, 1),
            "share_of_cpu": round(apart, 4),
            "seconds": round(sum(each.age_s for each in starts), 1),
        },
        "goodput": round(struck / quiet, 3) if quiet else None,
        "goodput_without_starts": round(struck / quiet / (1.0 - apart), 3) if quiet else None,
        "goodput_without_starts_and_stops": round(struck / quiet / (1.0 - apart - stopped), 3) if quiet else None,
        "stopped_s": stopped_s,
        "aim": AIM,
    }


if __name__ == "__main__":
    main()
