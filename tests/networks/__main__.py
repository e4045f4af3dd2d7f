"""`make networks`: trainings over bad networks, one for each way in which a network can be bad."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import click

from namespaces.__main__ import _events, _why_not
from namespaces.cluster import Cluster
from networks.scenarios import AGENTS, LEASE_S, PATIENCE_S, SCENARIOS, Scene
from networks.wires import Wires
from pliant.core import messages as m

SCRIPT = Path(__file__).with_name("training.py")
OPTIONS = ("--agents", str(AGENTS), "--network", "namespaces", "--lease-ttl-s", f"{LEASE_S:g}", "--for", "600")
RUN = ("--workers", f"1:{AGENTS}", "--target", str(AGENTS), "--nproc-per-node", "1", "--max-restarts", "0")
ALONE_S = 900.0


@click.command()
@click.option("--seed", default=0, show_default=True, help="For who is struck, and which frames are lost.")
@click.option("--only", multiple=True, type=click.Choice([*SCENARIOS]), help="These alone.")
@click.option("--keep", is_flag=True, help="Keep the folder of a run that went well, too.")
def main(seed: int, only: tuple[str, ...], keep: bool) -> None:
    """Run it, and print one JSON object at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `finally`, so that nothing is left
    if why := why_not():
        print(f"skipped: {why}", flush=True)
        print(json.dumps({"ok": True, "skipped": why}), flush=True)
        return
    began = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pliant-networks-"))
    expected = alone(folder / "alone")
    found: dict[str, Any] = {}
    broken: list[str] = []
    for name in only or SCENARIOS:
        print(f"{name}: {SCENARIOS[name].__doc__}", flush=True)
        said = scenario(name, folder / name.replace(" ", "-"), seed, expected)
        broken += [f"{name}: {each}" for each in said["broken"]]
        found[name] = said
    for each in broken:
        print(f"BROKEN: {each}", flush=True)
    if broken or keep:
        print(f"what the run left is in {folder}")
    else:
        shutil.rmtree(folder)
    well = sum(not said["broken"] for said in found.values())
    took = round(monotonic() - began, 1)
    said = {"ok": not broken, "seed": seed, "well": well, "of": len(found), "broken": broken, "scenarios": found}
    print(json.dumps({**said, "seconds": took}))
    sys.exit(bool(broken))


def why_not() -> str:
    """Return why it cannot be tried here; empty if it can."""
    if why := _why_not():
        return why
    return "" if shutil.which("unshare") else "there is no `unshare` here; the package is called util-linux"


def alone(folder: Path, *args: str) -> dict[str, str]:
    """Return the hashes of an undisturbed run of the script by one worker."""
    folder.mkdir(parents=True)
    (folder / "hurry").touch()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(SCRIPT), str(folder), *args], env=env, timeout=ALONE_S, check=True)
    (said,) = _said(folder)
    return {name: said[name] for name in ("weights", "optimizer")}


def scenario(name: str, home: Path, seed: int, expected: dict[str, str]) -> dict[str, Any]:
    """One training through one scenario: what was broken, and what was seen."""
    began = monotonic()
    folder = home / "said"
    folder.mkdir(parents=True)
    broken: list[str] = []
    found: dict[str, Any] = {}
    try:
        with Cluster(home, *OPTIONS, *RUN, str(SCRIPT), str(folder), OMP_NUM_THREADS="1") as cluster:
            cluster.up()
            cluster.until(lambda: _is_live(cluster), "the first world", PATIENCE_S)
            with Wires(cluster, seed) as wires:
                scene = Scene(cluster, wires, random.Random(f"{seed} {name}"), folder)
                for agent in scene.agents():
                    wires.lay(agent)
                scene.goes_on()
                SCENARIOS[name](scene)
                scene.goes_on()
                found = {"waits_s": scene.took_s, "frames": wires.counts(), "lost": len(scene.lost)}
                events = _events(cluster)
                (folder / "hurry").touch()
                status = cluster.ended(PATIENCE_S)
        if status != 0:
            broken.append(f"pliant local ended with {status}: {cluster.output[-2000:]}")
        broken += gone_for_no_reason(events, scene.lost)
        broken += [*_audited(cluster), *_other_bits(folder, expected)]
        cluster.left_nothing()
        found["generations"] = sum(isinstance(event, m.WorldFormed) for event in events)
    except AssertionError as error:
        broken.append(str(error))
    print(f"  {'broken' if broken else 'well'}, {monotonic() - began:.0f} s: {json.dumps(found)}", flush=True)
    return {"broken": broken, **found}


def _is_live(cluster: Cluster) -> bool:
    """Before that its workers are launched ones that have not joined: they are told by rank, too."""
    found = cluster.job_status()
    return found is not None and found.live and len(cluster.active()) == AGENTS


def _said(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("*.said")]


def _other_bits(folder: Path, expected: dict[str, str]) -> list[str]:
    said = _said(folder)
    if len(said) != AGENTS:
        return [f"{len(said)} workers came to the end, not {AGENTS}"]
    return [
        f"{one['member']} ends with other {name}" for one in said for name in expected if one[name] != expected[name]
    ]


def _audited(cluster: Cluster) -> list[str]:
    audit = cluster.pliant("audit", cluster.job, "--json").json
    clean = audit["ok"] and not audit["lost"] and not audit["repeated"] and not audit["rolled_back"]
    return [] if clean else [f"the audit is not clean: {audit}"]


def gone_for_no_reason(events: list[m.Event], lost: set[str]) -> list[str]:
    """Return who stayed was one process all the time; who is gone without goodbye was cut off or killed by us."""
    broken: list[str] = []
    pids: defaultdict[str, set[int]] = defaultdict(set)
    for event in events:
        if isinstance(event, m.MemberJoined):
            pids[event.member.id].add(event.member.pid)
        elif isinstance(event, m.MemberGone) and event.how != "left" and event.member not in lost:
            broken.append(f"{event.member} is gone, and nothing was done to it: {event.how}: {event.why}")
    return broken + [
        f"{member} was several processes: {sorted(each)}" for member, each in pids.items() if len(each) > 1
    ]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
