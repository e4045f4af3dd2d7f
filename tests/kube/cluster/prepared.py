"""The folder of a containerd that has the test cluster's images: made once, brought up to date at each start.

Nodes get hard links of its layers, so three nodes cost neither three imports nor three times the disk. The layers of
Python, of the packages and of torch are packed once for each set of versions, Pliant's own layer every time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path

from e2e.running import wait_for
from kube.cluster import images
from kube.cluster.images import File, Layer
from kube.cluster.node import copy_containerd
from kube.cluster.processes import Daemon
from kube.cluster.programs import cache

START_S = 60.0
IMPORT_S = 600.0
_IMPORT_CONFIG = """version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{socket}"
"""
# Imported before packing: an image without bytecode would compile torch in every pod.
_WARM = "import torch, torch.distributed, pliant.torch, pliant.cli.main, sklearn.datasets"


def prepare_images(scratch: Path) -> Path:
    """Return a containerd folder in `scratch` with the images of this checkout. Another run waits meanwhile."""
    folder = cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archives = pack(folder, scratch)
        _import(folder / "containerd", archives, scratch)
        for archive in archives:
            archive.unlink()
        copy_containerd(folder / "containerd", scratch / "containerd")
    return scratch / "containerd"


def pack(folder: Path, scratch: Path) -> list[Path]:
    """Pack the three images and return their archives, which are in `scratch`."""
    control = images.closure(images.CONTROL_EXTRAS)
    trainer = images.closure(images.TRAINER_EXTRAS) - control
    everything = [*images.interpreter(), *images.packages(control | trainer)]
    libraries = [each for each in everything if isinstance(each.source, Path) and _is_program(each.source)]
    base = write_once(folder, "base", lambda: [*images.base(), *_loaded(libraries)], _versions(control | trainer))
    python = write_once(folder, "python", images.interpreter, [])
    needed = write_once(folder, "packages", lambda: images.packages(control), _versions(control))
    torch = write_once(folder, "torch", lambda: _warmed(trainer), _versions(trainer))
    own = images.write_layer(scratch / "pliant.tar", images.pliant())
    examples = images.write_layer(scratch / "examples.tar", images.examples())
    plain = images.write_layer(scratch / "plain.tar", images.base())
    archives = {images.PAUSE: [plain], images.PLIANT: [base, python, needed, own]}
    archives[images.TRAINER] = [base, python, needed, torch, own, examples]
    for tag, layers in archives.items():
        command = ["sleep", "2147483647"] if tag == images.PAUSE else ["pliant", "--help"]
        images.write_image(scratch / f"{tag.replace(':', '-')}.tar", tag, layers, command)
    return [scratch / f"{tag.replace(':', '-')}.tar" for tag in archives]


def write_once(folder: Path, name: str, files: Callable[[], Iterable[File]], versions: list[str]) -> Layer:
    """Write a layer, unless there is one for these versions."""
    source = Path(images.__file__).read_bytes()
    key = hashlib.sha256(json.dumps([sys.version, versions]).encode() + source).hexdigest()[:16]
    path, digest = folder / f"{name}-{key}.tar", folder / f"{name}-{key}.sha256"
    if not digest.exists():
        for old in folder.glob(f"{name}-*"):
            old.unlink()
        print(f"  packing the layer {name}", flush=True)
        written = images.write_layer(path, files())
        digest.write_text(written.digest, encoding="ascii")
    return Layer(path, digest.read_text(encoding="ascii"))


def _versions(names: Iterable[str]) -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in sorted(names)]


def _warmed(names: set[str]) -> Iterator[File]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", _WARM], env=env, check=True)
    return images.packages(names)


def _is_program(path: Path) -> bool:
    return path.suffix == ".so" or ".so." in path.name or path.parent.name == "bin"


def _loaded(files: Iterable[File]) -> Iterator[File]:
    return images.shared_libraries(each.source for each in files if isinstance(each.source, Path))


def _import(root: Path, archives: list[Path], scratch: Path) -> None:
    root.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ctr-", dir="/run") as state:
        socket = Path(state) / "containerd.sock"
        config = scratch / "import.toml"
        config.write_text(_IMPORT_CONFIG.format(root=root, state=state, socket=socket), encoding="utf-8")
        daemon = Daemon(["containerd", "-c", str(config)], scratch / "import.log")
        daemon.start()
        try:
            wait_for(lambda: socket.exists() or not daemon.runs, "containerd", START_S)
            daemon.check()
            for archive in archives:
                command = ["ctr", "-a", str(socket), "-n", "k8s.io", "images", "import", str(archive)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S, check=False)
                assert done.returncode == 0, f"{archive.name}: {done.stderr}{daemon.tail()}"
        finally:
            daemon.stop()
