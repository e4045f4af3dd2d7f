"""Compare the work that a job keeps on spot machines with restarts from checkpoints: `make bench-spot TRACES=DIR`.

DIR has the folders that docs/internals/scheduling.md names. Nothing of it is part of this repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pliant_sim.cluster.spot_replay import Costs, ElasticReplay, Kept, RestartReplay
from pliant_sim.cluster.spot_traces import SpotTrace, read_spot_traces

LEASE_S = 10.0  # until a machine that is gone without notice is declared lost
WORKER_S = 30.0  # until the worker of a new machine has started
OURS = {
    f"ours {pause_s:g} s, save {save_s:g} s": Costs(pause_s, LEASE_S + pause_s, 0.0, WORKER_S, save_s)
    for pause_s, save_s in ((0.5, 60.0), (0.5, 600.0), (15.0, 600.0))
}
RESTARTS = {
    f"restart {restart_s:g} s, save {save_s:g} s": Costs(0.0, 0.0, restart_s, 0.0, save_s)
    for restart_s, save_s in ((30.0, 60.0), (75.0, 60.0), (75.0, 600.0), (300.0, 600.0))
}


def _replays(trace: SpotTrace) -> dict[str, Kept]:
    ours = {name: ElasticReplay(trace, costs).run() for name, costs in OURS.items()}
    return ours | {name: RestartReplay(trace, costs).run() for name, costs in RESTARTS.items()}


def _row(trace: SpotTrace, kept: dict[str, Kept]) -> dict[str, float]:
    first = kept[next(iter(OURS))]
    return {
        "hours": round(trace.end_s / 3600, 1),
        "machines": round(trace.machine_s / trace.end_s, 1),
        "losses": first.losses + max(0, first.restarts - 1),
        **{name: round(each.work / trace.machine_s, 3) for name, each in kept.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the published traces")
    arguments = parser.parse_args()
    if missing := [name for name in ("bamboo", "parcae", "skypilot") if not (arguments.traces / name).is_dir()]:
        sys.exit(f"{arguments.traces} has no folder {missing[0]}: pass the folder with the traces as TRACES=DIR")
    rows = {trace.name: _row(trace, _replays(trace)) for trace in read_spot_traces(arguments.traces)}
    names = list(next(iter(rows.values())))
    print("| trace | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for trace, row in rows.items():
        print(f"| {trace} | " + " | ".join(str(row[name]) for name in names) + " |")
    print(json.dumps({"ok": True, "traces": len(rows), "rows": rows}))


if __name__ == "__main__":
    main()
