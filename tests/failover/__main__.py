"""`make failover`: two coordinators on three etcd members, a live training, and every way to lose the leader."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import click

from failover import lab
from failover.cluster import AGENTS, PATIENCE_S, Cluster
from failover.scenarios import FAULTS, lose_quorum, strike
from networks.__main__ import alone, gone_for_no_reason
from pliant.core import messages as m

EPOCHS = "64"  # many enough to train through all faults
QUORUM = "etcd without a quorum"
SCRIPT = Path(__file__).parents[1] / "networks" / "training.py"


@click.command()
@click.option("--only", multiple=True, type=click.Choice([*FAULTS, QUORUM]), help="These faults alone.")
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
    with Cluster(network, folder, (str(SCRIPT), EPOCHS)) as cluster:
        try:
            cluster.start_training()
            for name in only or (*FAULTS, QUORUM):
                print(name, flush=True)
                found[name] = lose_quorum(cluster) if name == QUORUM else strike(cluster, FAULTS[name])
                print(f"  {json.dumps(found[name])}", flush=True)
            cluster.hurry()
            for agent in cluster.agents:
                agent.wait(PATIENCE_S)
            broken += judge(cluster, expected)
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


def judge(cluster: Cluster, expected: dict[str, str]) -> list[str]:
    """Return what is wrong with the finished job: losses, split decisions, samples, bits."""
    events = cluster.events()
    broken = gone_for_no_reason(events, set())
    numbers = Counter(event.world.number for event in events if isinstance(event, m.WorldFormed))
    broken += [f"generation {number} was formed {count} times" for number, count in numbers.items() if count > 1]
    codes = [agent.returncode for agent in cluster.agents]
    if codes != [0] * AGENTS:
        broken.append(f"the agents ended with {codes}")
    audit = cluster.audit()
    if not audit["ok"] or audit["lost"] or audit["repeated"] or audit["rolled_back"]:
        broken.append(f"the audit is not clean: {audit}")
    results = [json.loads(path.read_text()) for path in cluster.results()]
    if len(results) != AGENTS:
        broken.append(f"{len(results)} workers came to the end, not {AGENTS}")
    return broken + [
        f"{result['member']} ends with other {name}"
        for result in results
        for name in expected
        if result[name] != expected[name]
    ]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
