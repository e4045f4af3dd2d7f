"""Measure the cost of deterministic training, and the error of its sums.

Times steps of a deterministic job, of plain jobs and of raw DDP, alternating in the same processes, for 0.1 M and 10 M
parameters in worlds of 1 to 4 and for 100 M in a world of 2. A deterministic job computes one part for each slot. A
plain job and DDP compute their share in one part. A plain job with parts of a slot's size separates the cost of small
parts from that of the reduction. Then times the reductions alone, with all gradients ready, and counts the bytes they
send. Last, compares sums of heavy-tailed numbers with double precision. Prints tables and, as its last line, a JSON
object. Timings are reported, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bits_worker import LANES, job_name
from training import JOB, scene

from pliant.core import messages as m
from pliant.core.model.job import JobSpec, Target

WORKER = Path(__file__).with_name("bits_worker.py")
BLOCKS = {"S": (7, 10), "M": (5, 2), "L": (3, 1)}  # rounds, and steps in each
PATIENCE_S = 1800.0
WORLDS = {"S": (1, 2, 3, 4), "M": (1, 2, 3, 4), "L": (2,)}


def measure(base: Path, model: str, world: int, repeat: int) -> dict[str, Any]:
    rounds, steps = BLOCKS[model]
    with scene(base, model, world, WORKER, (rounds * repeat, steps)) as it:
        for lane in LANES[model]:
            if job_name(lane) != JOB:
                it.client.send(job_name(lane), m.Create(job_name(lane), JobSpec(world, world, Target(world))))
        it.until("the comparison", (it.folder / "compared.json").exists, PATIENCE_S)
        found = json.loads((it.folder / "compared.json").read_text())
    row: dict[str, Any] = {"model": model, "world": world, "parameters": found["parameters"]}
    row["step_ms"] = {way: _ms(each) for way, each in found["step_s"].items()}
    row["reduce_ms"] = {way: _ms(each) for way, each in found["reduce_s"].items()}
    for against, among in (("ddp", "step_s"), (JOB, "step_s"), ("small 16", "step_s"), (JOB, "reduce_s")):
        if against in found[among]:
            key = f"{among.partition('_')[0]}_over_{against.replace(' ', '_')}"
            row[key] = {way: _ratio(each, found[among][against]) for way, each in found[among].items()}
    least = 2 * (world - 1) / world * found["parameters"] * 4
    row["bytes"] = {way: int(each) for way, each in found["bytes"].items()}
    row["bytes_over_least"] = {way: round(each / least, 3) if least else 0.0 for way, each in found["bytes"].items()}
    row["errors"] = found.get("errors", [])
    return row


def _ms(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of each round."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def print_tables(rows: Sequence[dict[str, Any]]) -> None:
    print()
    print("steps in ms (the slowest rank's, medians): plain and DDP compute their share in one part, small 16 in parts")
    print("of a slot's size, bits N one of N slots at a time; then bits 16 over each of the others")
    ways = ("ddp", JOB, "small 16", "bits 16", "bits 12")
    names = ("DDP", "plain", "small 16", "bits 16", "bits 12", "/DDP", "/plain", "/small 16")
    print(f"{'':8}{''.join(f'{name:>11}' for name in names)}")
    for row in rows:
        figures = [row["step_ms"].get(way, "") for way in ways]
        figures += [row.get(f"step_over_{key}", {}).get("bits 16", "") for key in ("ddp", JOB, "small_16")]
        print(f"{row['model']} x {row['world']}   {''.join(f'{each:>11}' for each in figures)}")
    print()
    print("reductions alone in ms, over the plain one, and the bytes sent over the least that an all-reduce takes")
    titles = ("plain", "bits 16", "bits 12", "16/plain", "12/plain", "16 bytes", "12 bytes")
    print(f"{'':8}{''.join(f'{name:>11}' for name in titles)}")
    for row in rows:
        figures = [row["reduce_ms"].get(way, "") for way in (JOB, "bits 16", "bits 12")]
        for key in (f"reduce_over_{JOB}", "bytes_over_least"):
            figures += [row[key].get(way, "") for way in ("bits 16", "bits 12")]
        print(f"{row['model']} x {row['world']}   {''.join(f'{each:>11}' for each in figures)}")
    print()
    print("errors against double precision, of 1 M sums of heavy-tailed numbers, in L2 and at most, relative")
    for row in rows:
        for each in row["errors"]:
            sizes = f"{each['relative_l2']:>11.2e}{each['relative_max']:>11.2e}"
            print(f"world {row['world']}, {each['slots']} slots   {each['sum']:>11}{sizes}")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1, help="multiply the number of rounds")
    parser.add_argument("--models", default="S,M,L")
    parser.add_argument("--worlds", default="1,2,3,4", help="sizes to measure, where a model has them")
    asked = parser.parse_args()
    os.environ["BENCH_SEED"] = str(asked.seed)
    worlds = list(map(int, asked.worlds.split(",")))
    rows = []
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        for model in asked.models.split(","):
            for world in (each for each in WORLDS[model] if each in worlds):
                base = Path(folder) / f"{model}{world}"
                base.mkdir()
                rows.append(measure(base, model, world, asked.repeat))
                print(f"{model} x {world}: {json.dumps(rows[-1])}", flush=True)
    print_tables(rows)
    print(json.dumps({"ok": True, "seed": asked.seed, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
