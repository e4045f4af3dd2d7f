"""The first process of a node: prepare its mounts, start its programs, and reap what its containers leave.

python -m kube.cluster.node_init BOOT.json
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.running import wait_for

# The kubelet sets these for the whole machine; it finds files with the values that it wants instead.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
START_S = 60.0


def main(boot: dict[str, Any]) -> None:
    """Boot, then wait for children for ever."""
    disk = Path(boot["disk"])
    mount_all(disk)
    socket.sethostname(boot["name"])
    Path("/run/containerd").mkdir()
    Path("/var/lib/kubelet").mkdir(exist_ok=True)
    start(boot["containerd"], disk / "log" / "containerd.log")
    wait_for(Path("/run/containerd/containerd.sock").exists, "containerd", START_S)
    start(boot["kubelet"], disk / "log" / "kubelet.log")
    start(boot["proxy"], disk / "log" / "proxy.log")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        os.wait()


def mount_all(disk: Path) -> None:
    """Give the node folders of its own where its programs write."""
    _mount("--make-rprivate", "/")
    _mount("--make-rshared", "/")
    for name, target in (("lib", "/var/lib"), ("log", "/var/log")):
        _mount("--bind", str(disk / name), target)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name, value in KERNEL_SETTINGS.items():
        place = Path("/run/settings") / name.replace("/", "_")
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"{value}\n", encoding="ascii")
        _mount("--bind", str(place), f"/proc/sys/{name}")


def start(command: list[str], log: Path) -> None:
    """Start a program of the node. It ends with the node."""
    with log.open("ab") as out:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
