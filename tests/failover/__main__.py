"""`make failover`: two coordinators on three etcd members, a live training, and every way to lose the leader."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click

from failover import lab
from failover.cluster import AGENTS, PATIENCE_S, Cluster
from failover.scenarios import FAULTS, compact, lose_quorum, strike, undisturbed
from networks.__main__ import alone, gone_for_no_reason
from pliant.core import messages as m

EPOCHS = "64"  # many enough to train through all faults
SLOW_S = "0.5"  # for a step, from the middle on: a world changes between two steps
QUORUM = "etcd without a quorum"
COMPACTED = "etcd compacted and defragmented"
CONTROL = "no fault"
SCRIPT = Path(__file__).parents[1] / "networks" / "training.py"

OF_ETCD = {QUORUM: lose_quorum, COMPACTED: compact}


@click.command()
@click.option("--only", multiple=True, type=click.Choice([*FAULTS, *OF_ETCD]), help="These faults alone.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run without a failure too.")
def main(only: tuple[str, ...], keep: bool) -> None:
    """Run it, and print one JSON object at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not lab.is_inside():
        if why := lab.why_not():
            print(f"skipped: {why}", flush=True)
            print(json.dumps({"ok": True, "skipped": why}), flush=True)
            return
        sys.exit(lab.enter(sys.argv[1:]))
    began = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-failover-"))
    expected = alone(folder / "alone", EPOCHS)
    found: dict[str, Any] = {}
    broken: list[str] = []
    network = lab.Lab()
    with Cluster(network, folder, (str(SCRIPT), EPOCHS, SLOW_S)) as cluster:
        try:
            cluster.start_training()
            found[CONTROL] = undisturbed(cluster)
            print(f"{CONTROL}\n  {json.dumps(found[CONTROL])}", flush=True)
            for name in only or (*FAULTS, *OF_ETCD):
                print(name, flush=True)
                found[name] = OF_ETCD[name](cluster) if name in OF_ETCD else strike(cluster, FAULTS[name])
                print(f"  {json.dumps(found[name])}", flush=True)
            cluster.hurry()
            for agent in cluster.agents:
                agent.wait(PATIENCE_S)
            broken += judge(ending(cluster), expected)
        except AssertionError as error:
            broken.append(str(error))
    for each in broken:
        print(f"BROKEN: {each}", flush=True)
    if broken or keep:
        print(f"the files of the run are in {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    seconds = round(monotonic() - began, 1)
    print(json.dumps({"ok": not broken, "broken": broken, "faults": found, "seconds": seconds}), flush=True)
    sys.exit(bool(broken))


@dataclass(frozen=True, slots=True)
class Ending:
    """A finished job: its events, the exit codes of its agents, its audit, and the results of its workers."""

    events: list[m.Event]
    codes: list[int | None]
    audit: dict[str, Any]
    results: list[dict[str, Any]]


def ending(cluster: Cluster) -> Ending:
    results = [json.loads(path.read_text()) for path in cluster.results()]
    return Ending(cluster.events(), [agent.returncode for agent in cluster.agents], cluster.audit(), results)


def judge(end: Ending, expected: dict[str, str]) -> list[str]:
    """Return what is wrong with the finished job: losses, split decisions, samples, bits."""
    broken = gone_for_no_reason(end.events, set())
    numbers = Counter(event.world.number for event in end.events if isinstance(event, m.WorldFormed))
    broken += [f"generation {number} was formed {count} times" for number, count in numbers.items() if count > 1]
    if end.codes != [0] * AGENTS:
        broken.append(f"the agents ended with {end.codes}")
    audit = end.audit
    if not audit["ok"] or audit["lost"] or audit["repeated"] or audit["rolled_back"]:
        broken.append(f"the audit is not clean: {audit}")
    if len(end.results) != AGENTS:
        broken.append(f"{len(end.results)} workers came to the end, not {AGENTS}")
    return broken + [
        f"{result['member']} ends with other {name}"
        for result in end.results
        for name in expected
        if result[name] != expected[name]
    ]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
