"""Compare policies on published workloads: `make bench-cluster TRACES=DIR`.

DIR has the folders that docs/internals/scheduling.md names. Nothing of it is part of this repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import cache
from multiprocessing import Pool
from pathlib import Path

from pliant_sim.cluster.policies import POLICIES
from pliant_sim.cluster.replay import Outcome, WorkloadReplay
from pliant_sim.cluster.workloads import LOADS, authors_results, read_workloads

COSTS_S = (0.5, 5.0, 30.0, 75.0)
URGENT_EVERY = 10
SLOTS = 64

Case = tuple[Path, float, str, float, str, int]  # traces, load, policy, cost, workload, urgent_every


_workloads = cache(read_workloads)  # each process reads the files once


def _replay(case: Case) -> tuple[Case, Outcome]:
    traces, load, policy, cost_s, workload, urgent_every = case
    jobs = _workloads(traces, load, urgent_every)[workload]
    return case, WorkloadReplay(jobs, POLICIES[policy], cost_s, SLOTS // 4).run()


def _cases(traces: Path, loads: list[float], urgent_every: int) -> Iterator[Case]:
    for load in loads:
        for workload in sorted(_workloads(traces, load, urgent_every)):
            for policy in POLICIES:
                for cost_s in _costs(policy) if not urgent_every else (COSTS_S[0],):
                    yield traces, load, policy, cost_s, workload, urgent_every


def _costs(policy: str) -> tuple[float, ...]:
    """Return the costs of a change to try. A policy that never changes a size pays for the start alone."""
    return (COSTS_S[0],) if policy in ("first-come", "static") else COSTS_S


def _run(cases: list[Case]) -> dict[tuple[float, str, float], list[Outcome]]:
    """Replay all cases on every core, the slowest first, and show the progress."""
    found: dict[tuple[float, str, float], list[Outcome]] = {}
    cases.sort(key=lambda case: (case[2] != "ours", -case[1]))
    with Pool() as pool:
        for done, (case, outcome) in enumerate(pool.imap_unordered(_replay, cases), 1):
            found.setdefault((case[1], case[2], case[3]), []).append(outcome)
            print(f"\r{done} of {len(cases)} replays", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _row(outcomes: list[Outcome]) -> dict[str, float]:
    return {
        "mean_s": round(_mean([o.mean for o in outcomes])),
        "p99_s": round(_mean([o.p99 for o in outcomes])),
        "makespan_s": round(_mean([o.makespan for o in outcomes])),
        "used": round(_mean([o.busy_s / o.makespan / SLOTS for o in outcomes]), 3),
        "paused": round(_mean([o.paused_s / o.busy_s for o in outcomes]), 3),
        "changes": round(_mean([o.changes / len(o.jct) for o in outcomes]), 1),
        "inversion_s": round(_mean([o.inversion_s for o in outcomes])),
    }


def _print(title: str, rows: list[tuple[str, dict[str, float]]]) -> None:
    print(f"\n{title}\n")
    names = list(rows[0][1])
    print("| policy | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for label, row in rows:
        print(f"| {label} | " + " | ".join(f"{row[name]:,}" if name in row else "" for name in names) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the published traces")
    parser.add_argument("--load", type=float, action="append", choices=sorted(LOADS), help="only this load")
    arguments = parser.parse_args()
    if not (arguments.traces / "pollux-osdi21").is_dir():
        sys.exit(f"{arguments.traces} has no folder pollux-osdi21: pass the folder with the traces as TRACES=DIR")
    loads = arguments.load or sorted(LOADS)
    plain = _run(list(_cases(arguments.traces, loads, 0)))
    urgent = _run(list(_cases(arguments.traces, [1.0], URGENT_EVERY)))
    report: dict[str, object] = {}
    for load in loads:
        rows = [
            (f"{policy}, {cost_s:g} s", _row(plain[load, policy, cost_s]))
            for policy in POLICIES
            for cost_s in _costs(policy)
        ]
        for policy, (mean_s, p99_s) in authors_results(arguments.traces, load).items():
            rows.append((f"{policy}, 30 s (authors' files)", {"mean_s": round(mean_s), "p99_s": round(p99_s)}))
        _print(f"Load {load}, mean of 8 workloads, cost of a change after the name of the policy", rows)
        report[f"load-{load}"] = dict(rows)
    rows = [(policy, _row(urgent[1.0, policy, COSTS_S[0]])) for policy in POLICIES]
    _print(f"Load 1.0, every {URGENT_EVERY}th job urgent, {COSTS_S[0]} s", rows)
    report["urgent"] = dict(rows)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
