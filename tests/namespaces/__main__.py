"""`make namespaces`: three agents in three namespaces, resized, placed, cut off, healed, and all of them replaced."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import click

from namespaces.cluster import Cluster
from namespaces.scenario import AGENTS, Scenario, finish
from pliant.core import messages as m
from pliant.errors import PliantError
from pliant_local import network
from pliant_local.trainer import read_step

SCRIPT = Path(__file__).with_name("training.py")
OPTIONS = ("--agents", str(AGENTS), "--network", "namespaces", "--lease-ttl-s", "3", "--for", "900")
RUN = ("--workers", "1:8", "--target", str(AGENTS), "--nproc-per-node", "4", "--max-restarts", "0")
TRAINER_STEPS = 3000


@click.command()
@click.option("--seed", default=0, show_default=True, help="For who is placed where, cut off, and replaced first.")
@click.option("--only", type=click.Choice(["live", "relaunch"]), help="One of the two.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def main(seed: int, only: str | None, keep: bool) -> None:
    """Run it, and print one JSON object at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`, so that nothing is left
    if why := _why_not():
        print(f"skipped: {why}", flush=True)
        print(json.dumps({"ok": True, "skipped": why}), flush=True)
        return
    began = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-ns-"))
    result: dict[str, Any] = {"seed": seed}
    broken: list[str] = []
    parts: dict[str, Callable[[Path, random.Random], dict[str, Any]]] = {"live": live, "relaunch": relaunch}
    for name, part in parts.items():
        if only in (None, name):
            print(f"{name}: {AGENTS} agents in {AGENTS} namespaces", flush=True)
            found = _tried(part, folder / name, random.Random(seed))
            broken += [f"{name}: {each}" for each in found.pop("broken")]
            result[name] = found
    for each in broken:
        print(f"BROKEN: {each}", flush=True)
    if broken or keep:
        print(f"what the run left is in {folder}")
    else:
        shutil.rmtree(folder)
    print(json.dumps({"ok": not broken, "broken": broken, **result, "seconds": round(monotonic() - began, 1)}))
    sys.exit(bool(broken))


def _why_not() -> str:
    """Return why namespaces cannot be made here, or empty. Makes one: root in a container may lack the right."""
    if why := network.namespaces_unavailable():
        return why
    try:
        network.Network(network.this_process()).open()
    except PliantError as error:
        return error.why
    finally:
        network.remove_all(network.this_process())
    return ""


def _tried(part: Callable[[Path, random.Random], dict[str, Any]], home: Path, chance: random.Random) -> dict[str, Any]:
    try:
        return part(home, chance)
    except AssertionError as error:
        return {"broken": [str(error)]}


def live(home: Path, chance: random.Random) -> dict[str, Any]:
    """A script that joins: no member is restarted, and the ledger is whole."""
    folder = home / "said"
    folder.mkdir(parents=True)
    with Cluster(home, *OPTIONS, *RUN, str(SCRIPT), str(folder)) as cluster:
        scenario = Scenario(cluster, chance, cluster.step)
        scenario.run()
        events = _events(cluster)
        summary = scenario.summary()
        status = finish(scenario, (folder / "hurry").touch)
    broken = _members(events, scenario)
    if status != 0:
        broken.append(f"pliant local ended with {status}: {cluster.output[-2000:]}")
    audit = cluster.pliant("audit", cluster.job, "--json").json
    if not audit["ok"] or audit["lost"] or audit["repeated"] or audit["rolled_back"]:
        broken.append(f"the audit is not clean: {audit}")
    said = [json.loads(path.read_text()) for path in folder.glob("*.said")]
    if len(said) != AGENTS or len({json.dumps(each["weights"]) for each in said}) != 1:
        broken.append(f"the members do not end with the same weights: {said}")
    counted = {key: audit[key] for key in ("ok", "samples", "lost", "repeated", "steps", "rolled_back")}
    return {"broken": broken, **summary, "audit": counted}


def relaunch(home: Path, chance: random.Random) -> dict[str, Any]:
    """A script that knows nothing of Pliant: it goes on from its own checkpoint, and comes to its end."""
    folder = home / "checkpoint"
    folder.mkdir(parents=True)
    trainer = ("-m", "pliant_local.trainer", "--steps", str(TRAINER_STEPS), "--checkpoint", str(folder))
    pace = ("--step-s", "0.05", "--hurry", str(folder / "hurry"))
    with Cluster(home, *OPTIONS, *RUN, "--mode", "relaunch", *trainer, *pace) as cluster:
        scenario = Scenario(cluster, chance, lambda: read_step(folder))
        scenario.run()
        summary = scenario.summary()
        status = finish(scenario, (folder / "hurry").touch)
    broken = [] if status == 0 else [f"pliant local ended with {status}: {cluster.output[-2000:]}"]
    if (step := read_step(folder)) != TRAINER_STEPS:
        broken.append(f"the last step is {step}, not {TRAINER_STEPS}")
    done = cluster.pliant("status", cluster.job, "--json").json
    if done["state"] != "finished" or done["failures"]:
        broken.append(f"the job is {done['state']} with {done['failures']} failures: {done['why']}")
    return {"broken": broken, **summary, "generations": done["generation"]}


def _events(cluster: Cluster) -> list[m.Event]:
    with cluster.client() as client:
        found: list[m.Event] = []
        after = 0
        while page := client.events(cluster.job, after, 1000):
            found += [event for _, event in page]
            after = page[-1][0]
        return found


def _members(events: list[m.Event], scenario: Scenario) -> list[str]:
    """Return who stayed was one process all the time; who is lost was cut off; who left was told to."""
    broken: list[str] = []
    pids: defaultdict[str, set[int]] = defaultdict(set)
    for event in events:
        if isinstance(event, m.MemberJoined):
            pids[event.member.id].add(event.member.pid)
        elif isinstance(event, m.MemberGone) and event.how != "left" and event.member not in scenario.lost:
            broken.append(f"{event.member} is gone, and it was not cut off: {event.how}: {event.why}")
    broken += [f"{member} was several processes: {sorted(found)}" for member, found in pids.items() if len(found) > 1]
    gone = {event.member for event in events if isinstance(event, m.MemberGone) and event.how != "left"}
    if missing := scenario.lost - gone:
        broken.append(f"{sorted(missing)} were cut off, and the job did not notice")
    return broken


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
