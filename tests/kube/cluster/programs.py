"""The Kubernetes programs of the test cluster and Helm: two Go programs, built once and kept in a cache.

    python -m kube.cluster.programs     build them, if they are not there

`tests/kube/go` and `tests/kube/helm` pin the versions. The cache is `$XDG_CACHE_HOME/pliant-kube/VERSION`, `~/.cache`
if that is not set.
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
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

SOURCE = Path(__file__).parents[1] / "go"
HELM_SOURCE = Path(__file__).parents[1] / "helm"
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
HELM = "helm"
PROGRESS_S = 15.0


@dataclass(frozen=True, slots=True)
class _Build:
    """A Go program: the folder of its module, the package, its file in the cache and the links to that."""

    source: Path
    package: str
    name: str
    links: tuple[str, ...]
    stamp: str

    def digest(self) -> str:
        parts = [path.read_bytes() for path in sorted(self.source.iterdir())]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def is_built(self) -> bool:
        stamp = cache() / self.stamp
        return stamp.exists() and stamp.read_text(encoding="utf-8") == self.digest()


_BUILDS = (
    _Build(SOURCE, ".", "kubernetes", NAMES, "built-from"),
    _Build(HELM_SOURCE, "helm.sh/helm/v3/cmd/helm", HELM, (), "helm-built-from"),
)


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
    assert name in (*NAMES, HELM), name
    return str(cache() / name)


def are_built() -> bool:
    """Return whether the cache holds the programs of this checkout."""
    return all(build.is_built() for build in _BUILDS)


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
        began = monotonic()
        missing = [each for each in _BUILDS if not each.is_built()]
        for each in missing:
            (cache() / each.stamp).unlink(missing_ok=True)
            _compile(each, cache() / f"{each.name}.part")
            (cache() / f"{each.name}.part").replace(cache() / each.name)
            for link in each.links:
                with suppress(FileNotFoundError):
                    (cache() / link).unlink()
                (cache() / link).symlink_to(each.name)
            (cache() / each.stamp).write_text(each.digest(), encoding="utf-8")
        return monotonic() - began if missing else 0.0


def _compile(build: _Build, out: Path) -> None:
    _, major_minor = version().split("v")
    major, minor, _ = major_minor.split(".")
    shown = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in shown.items())
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", str(out), build.package]
    copied = out.with_name("source")  # a checkout may change while the build runs
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(build.source, copied)
    began = monotonic()
    with subprocess.Popen(command, cwd=copied, env={**os.environ, "CGO_ENABLED": "0"}) as process:
        pause = threading.Event()
        while process.poll() is None:
            pause.wait(PROGRESS_S)
            print(f"  building {build.name}: {monotonic() - began:.0f} s", flush=True)
    if process.returncode != 0:
        sys.exit(f"go build ended with {process.returncode}")


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
