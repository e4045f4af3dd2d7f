"""The Kubernetes programs of the test cluster: one Go program, built once and kept in a cache.

    python -m kube.cluster.programs     build them, if they are not there

`tests/kube/go` pins the version. The cache is `$XDG_CACHE_HOME/pliant-kube/VERSION`, `~/.cache` if that is not set.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

SOURCE = Path(__file__).parents[1] / "go"
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
PROGRESS_S = 15.0
_WHOLE, _STAMP = "kubernetes", "built-from"


def version() -> str:
    """The version of Kubernetes that `go.mod` pins."""
    found = re.search(r"k8s\.io/kubernetes (v[\d.]+)", (SOURCE / "go.mod").read_text(encoding="utf-8"))
    assert found is not None, "go.mod names no version of k8s.io/kubernetes"
    return found.group(1)


def cache() -> Path:
    """The folder of the built programs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pliant-kube" / version()


def program(name: str) -> str:
    """The path of a built program."""
    assert name in NAMES, name
    return str(cache() / name)


def are_built() -> bool:
    """Return whether the cache holds the programs of this `tests/kube/go`."""
    stamp = cache() / _STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == _digest()


def why_not_built() -> str:
    """Return why no test can use the programs; empty if they are built."""
    if are_built():
        return ""
    missing = " Go is not installed either." if shutil.which("go") is None else ""
    return f"the Kubernetes programs are not built: run `make kube-programs` once.{missing}"


def why_not_buildable() -> str:
    """Return why the programs cannot be built here; empty if they can or are built."""
    if are_built() or shutil.which("go") is not None:
        return ""
    return "Go is not installed: the Kubernetes programs are built from their published modules (package golang)"


def build() -> float:
    """Build the programs unless the cache has them, and return the seconds it took. Two builds never run at once."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if are_built():
            return 0.0
        began = monotonic()
        (cache() / _STAMP).unlink(missing_ok=True)
        _compile(cache() / f"{_WHOLE}.part")
        (cache() / f"{_WHOLE}.part").replace(cache() / _WHOLE)
        for name in NAMES:
            with suppress(FileNotFoundError):
                (cache() / name).unlink()
            (cache() / name).symlink_to(_WHOLE)
        (cache() / _STAMP).write_text(_digest(), encoding="utf-8")
        return monotonic() - began


def _compile(out: Path) -> None:
    _, major_minor = version().split("v")
    major, minor, _ = major_minor.split(".")
    shown = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in shown.items())
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", str(out), "."]
    copied = out.with_name("source")  # a checkout may change while the build runs
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(SOURCE, copied)
    began = monotonic()
    with subprocess.Popen(command, cwd=copied, env={**os.environ, "CGO_ENABLED": "0"}) as process:
        pause = threading.Event()
        while process.poll() is None:
            pause.wait(PROGRESS_S)
            print(f"  building Kubernetes {version()}: {monotonic() - began:.0f} s", flush=True)
    if process.returncode != 0:
        sys.exit(f"go build ended with {process.returncode}")


def _digest() -> str:
    parts = [(SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def main() -> None:
    """Build, and print where the programs are."""
    if why := why_not_buildable():
        print(f"skipped: {why}", flush=True)
        return
    if not are_built():
        print(f"Kubernetes {version()}: built once into {cache()}; this takes some minutes", flush=True)
    seconds = build()
    print(f"Kubernetes {version()}: {f'built in {seconds:.0f} s' if seconds else 'already built'}, in {cache()}")


if __name__ == "__main__":
    main()
