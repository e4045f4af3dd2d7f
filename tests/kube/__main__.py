"""`make kube`: a real Kubernetes with three nodes on this machine, the acceptance tests on it, and nothing left after.

The cluster lives in namespaces that end with this program, however it ends. Its files are below the cache of the built
programs and are removed at the end, or by the next run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import click

from e2e.running import wait_for
from kube.cluster import cgroups, lab, programs

FOLDER = "PLIANT_KUBE_FOLDER"
HERE = Path(__file__).parent


@click.command()
@click.option("--only", default="", metavar="EXPRESSION", help="The tests whose names match, as pytest's -k.")
@click.option("--shell", is_flag=True, help="Start the cluster and a shell in it instead of the tests.")
@click.option("--keep", is_flag=True, help="Keep the logs of a run without a failure too.")
def main(only: str, shell: bool, keep: bool) -> None:
    """Run the tests on a real cluster, and print one JSON object at the end."""
    if why := programs.why_not_buildable() or lab.why_not():
        print(f"skipped: {why}", flush=True)
        print(json.dumps({"ok": True, "skipped": why}), flush=True)
        return
    programs.main()
    began = monotonic()
    name = f"{cgroups.PREFIX}{os.getpid()}"
    folder = programs.cache() / "labs" / name
    _remove_abandoned(folder.parent)
    folder.mkdir(parents=True)
    os.environ[FOLDER] = str(folder)
    # The child decides what Ctrl-C does; this process cleans up after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    inside = [sys.executable, "-m", "kube.shell"] if shell else _pytest(only)
    code = 1
    try:
        code = lab.enter(inside, name)
    finally:
        wait_for(lambda: cgroups.remove(name), "the end of the cluster's processes")
        _remove(folder, keep_logs=keep or (code != 0 and not shell))
    print(json.dumps({"ok": code == 0, "seconds": round(monotonic() - began, 1)}), flush=True)
    sys.exit(code)


def _pytest(only: str) -> list[str]:
    chosen = ["-k", only] if only else []
    options = ("-v", "-s", "--tb=short", "--timeout=1800")
    return [sys.executable, "-m", "pytest", *options, *chosen, str(HERE / "acceptance")]


def _remove(folder: Path, *, keep_logs: bool) -> None:
    # The links of a node's kubelet to the logs of containers lead nowhere outside the node.
    logs = sorted(path for path in folder.rglob("*.log") if path.is_file()) if keep_logs else []
    if logs:
        kept = folder.parents[1] / "logs"
        shutil.rmtree(kept, ignore_errors=True)
        for path in logs:
            to = kept / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
        print(f"the logs of the run are in {kept}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(labs: Path) -> None:
    """Remove what runs left that were killed."""
    cgroups.remove_abandoned()
    for path in labs.glob(f"{cgroups.PREFIX}*"):
        if not Path("/proc", path.name.removeprefix(cgroups.PREFIX)).exists():
            subprocess.run(["rm", "-rf", str(path)], check=False)


if __name__ == "__main__":
    main()
