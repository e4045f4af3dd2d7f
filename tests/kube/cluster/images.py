"""Container images without a container engine: layers packed from this machine's files into archives.

    pause:1                   the process that holds a pod's namespaces
    pliant:VERSION            Python, Pliant and what the coordinator and the operator need
    pliant-trainer:VERSION    the same with torch, scikit-learn and the examples

`deploy/` has the Containerfiles of the images that users build; these here have the same layout in `/opt/python`, with
this machine's Python and its shared libraries. `containerd` imports the archives (`kube.cluster.prepared`).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from pliant import __version__
from tidy.files import ROOT

PAUSE = "pause:1"
PLIANT = f"pliant:{__version__}"
TRAINER = f"pliant-trainer:{__version__}"
HOME = PurePosixPath("opt/python")
SITE = HOME / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
USER = 65532
CONTROL_EXTRAS, TRAINER_EXTRAS = ("kube", "tls"), ("examples", "fsspec")
# Large parts that no training needs: headers, test programs and test modules.
_UNUSED = re.compile(
    r"^torch/(include|test|share)/|^torch/bin/(?!torch_shm_manager)|(^|/)tests?/|^(idlelib|tkinter|ensurepip|lib2to3|turtledemo)/"
)
_SCRIPT = f"#!/{HOME}/bin/python3\nfrom pliant.cli.main import main\n\nmain()\n"
_ACCOUNTS = f"root:x:0:0::/:/bin/sh\npliant:x:{USER}:{USER}::/tmp:/bin/sh\n"


@dataclass(frozen=True, slots=True)
class File:
    """A file, folder or link of a layer. A source that is a path is read when the layer is written."""

    name: PurePosixPath
    source: Path | bytes | None = None  # None: a folder
    link: str = ""
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as an archive on disk."""

    path: Path
    digest: str


def write_layer(path: Path, files: Iterable[File]) -> Layer:
    """Write a layer: the same files give the same bytes."""
    folders: set[PurePosixPath] = set()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(files, key=lambda each: each.name):
            for parent in reversed(file.name.parents[:-1]):
                if parent not in folders:
                    folders.add(parent)
                    archive.addfile(_entry(File(parent)))
            folders.add(file.name)
            _add(archive, file)
    with path.open("rb") as written:
        return Layer(path, hashlib.file_digest(written, "sha256").hexdigest())


def _add(archive: tarfile.TarFile, file: File) -> None:
    entry = _entry(file)
    if isinstance(file.source, Path):
        status = file.source.stat()
        # Bytecode names the time of its source.
        entry.size, entry.mtime = status.st_size, int(status.st_mtime)
        with file.source.open("rb") as content:
            archive.addfile(entry, content)
    else:
        archive.addfile(entry, io.BytesIO(file.source or b""))


def _entry(file: File) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(str(file.name))
    entry.mode = file.mode
    if file.link:
        entry.type, entry.linkname = tarfile.SYMTYPE, file.link
    elif file.source is None:
        entry.type = tarfile.DIRTYPE
    elif isinstance(file.source, bytes):
        entry.size = len(file.source)
    return entry


def write_image(path: Path, tag: str, layers: list[Layer], command: list[str], user: int = USER) -> None:
    """Write an image as an archive that `ctr images import` and `docker load` read."""
    search = f"/{HOME}/bin:/usr/local/bin:/usr/bin:/bin"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "User": str(user), "WorkingDir": "/", "Env": [f"PATH={search}", "HOME=/tmp"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [{"created": "1970-01-01T00:00:00Z"} for _ in layers],
    }
    data = json.dumps(config).encode()
    name = f"{hashlib.sha256(data).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{layer.digest}/layer.tar" for layer in layers]}]
    with tarfile.open(path, "w") as archive:
        for entry, content in ((name, data), ("manifest.json", json.dumps(manifest).encode())):
            _add(archive, File(PurePosixPath(entry), content))
        for layer in layers:
            archive.add(layer.path, f"{layer.digest}/layer.tar")


# ------------------------------------------------------------------------------------------------ contents


def closure(extras: Iterable[str]) -> set[str]:
    """The installed distributions that Pliant needs with these extras, itself not included."""
    found: set[tuple[str, str]] = set()
    todo = [("pliant", extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for text in metadata.distribution(name).requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                todo += [(_canonical(needed.name), each) for each in ("", *needed.extras)]
    return {name for name, _ in found} - {"pliant"}


def packages(names: Iterable[str]) -> Iterator[File]:
    """The files of installed distributions, with the bytecode that exists."""
    for name in sorted(names):
        distribution = metadata.distribution(name)
        for each in distribution.files or []:
            source = Path(str(distribution.locate_file(each)))
            inside = ".." not in each.parts and not _UNUSED.search(str(each))
            if inside and source.is_file() and source.suffix != ".pyc":
                yield File(SITE / each, source, mode=source.stat().st_mode & 0o755)
                yield from _bytecode(source, SITE / each)


def interpreter() -> Iterator[File]:
    """This Python: the program, its library and the standard library."""
    prefix = Path(sys.base_prefix)
    standard = Path(sysconfig.get_path("stdlib"))
    program = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    yield File(HOME / "bin" / "python3", program.resolve())
    yield File(HOME / "bin" / "python", link="python3")
    home = SITE.parent
    for source in standard.rglob("*"):
        name = source.relative_to(standard)
        wanted = name.parts[0] != "site-packages" and not _UNUSED.search(f"{name}/" if source.is_dir() else str(name))
        if wanted and source.is_file() and "__pycache__" not in name.parts and not name.parts[0].startswith("config-"):
            yield File(home / name, source, mode=0o644)
            yield from _bytecode(source, home / name)


def _bytecode(source: Path, name: PurePosixPath) -> Iterator[File]:
    if source.suffix == ".py":
        compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        if compiled.exists():
            yield File(name.parent / "__pycache__" / compiled.name, compiled, mode=0o644)


def shared_libraries(programs: Iterable[Path]) -> Iterator[File]:
    """The shared libraries of the system that programs and extension modules load, each at its own path."""
    listed = [str(path) for path in programs]
    done = subprocess.run(["ldd", *listed], capture_output=True, text=True, check=False)  # fails on static programs
    own = (str(Path(sys.prefix)), str(Path(sys.base_prefix) / "lib" / "python"))
    paths = {hit for hit in re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout) if not hit.startswith(own)}
    libraries = Path("usr/lib")
    for path in sorted(paths):
        source = Path(path).resolve()
        # Python's own library lies beside it in its folder; in the image it goes where the loader looks.
        target = libraries / Path(path).name if path.startswith(sys.base_prefix) else Path(path.removeprefix("/"))
        yield File(PurePosixPath(_without_links(target)), source)


def _without_links(path: Path) -> Path:
    """Name a path as it is in an image whose `lib` and `lib64` are links into `usr`."""
    return Path("usr") / path if path.parts[0] in ("lib", "lib64") else path


def base() -> Iterator[File]:
    """The root of an image: a shell, accounts, and folders."""
    yield File(PurePosixPath("etc/passwd"), _ACCOUNTS.encode(), mode=0o644)
    yield File(PurePosixPath("etc/group"), f"root:x:0:\npliant:x:{USER}:\n".encode(), mode=0o644)
    yield File(PurePosixPath("etc/nsswitch.conf"), b"hosts: files dns\n", mode=0o644)
    yield File(PurePosixPath("tmp"), mode=0o1777)
    for name in ("proc", "sys", "dev", "run", "var/tmp"):
        yield File(PurePosixPath(name))
    for name in ("bin", "sbin", "lib", "lib64"):
        yield File(PurePosixPath(name), link=f"usr/{name}")
    shell = Path(str(shutil.which("busybox"))).resolve()
    yield File(PurePosixPath("usr/bin/busybox"), shell)
    for name in ("sh", "sleep", "cat", "ls", "env", "true", "false", "kill", "ps", "nc"):
        yield File(PurePosixPath("usr/bin") / name, link="busybox")


def pliant() -> Iterator[File]:
    """Pliant itself, as it is in this checkout."""
    for source in sorted((ROOT / "src").rglob("*")):
        name = source.relative_to(ROOT / "src")
        if source.is_file() and "__pycache__" not in name.parts:
            yield File(SITE / name, source, mode=0o644)
            yield from _bytecode(source, SITE / name)
    for each in metadata.distribution("pliant").files or []:
        if each.parts[0].endswith(".dist-info") and each.name in ("METADATA", "entry_points.txt"):
            yield File(SITE / each, Path(str(each.locate())), mode=0o644)
    yield File(HOME / "bin" / "pliant", _SCRIPT.encode())


def examples() -> Iterator[File]:
    """The example scripts."""
    for source in sorted((ROOT / "examples").rglob("*.py")):
        yield File(PurePosixPath("app") / source.relative_to(ROOT / "examples"), source, mode=0o644)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
