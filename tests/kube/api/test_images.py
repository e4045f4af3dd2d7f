"""Images packed without an engine."""

import json
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from kube.cluster.images import File, closure, write_image, write_layer


def files(tmp_path: Path) -> list[File]:
    source = tmp_path / "source"
    source.write_bytes(b"program")
    return [File(PurePosixPath("usr/bin/program"), source), File(PurePosixPath("bin"), link="usr/bin")]


def read(archive: tarfile.TarFile, name: str) -> Any:
    content = archive.extractfile(name)
    assert content is not None
    return json.load(content)


def test_the_same_files_give_the_same_layer(tmp_path: Path) -> None:
    first = write_layer(tmp_path / "1.tar", files(tmp_path))
    second = write_layer(tmp_path / "2.tar", reversed(files(tmp_path)))
    assert first.digest == second.digest
    with tarfile.open(first.path) as archive:
        assert archive.getnames() == ["bin", "usr", "usr/bin", "usr/bin/program"]
        assert archive.getmember("usr").isdir()
        assert archive.getmember("bin").linkname == "usr/bin"


def test_an_image_names_its_layers_in_order(tmp_path: Path) -> None:
    layers = [write_layer(tmp_path / f"{n}.tar", [File(PurePosixPath(f"file-{n}"), b"x")]) for n in range(2)]
    write_image(tmp_path / "image.tar", "thing:1", layers, ["program"])
    with tarfile.open(tmp_path / "image.tar") as archive:
        [manifest] = read(archive, "manifest.json")
        config = read(archive, manifest["Config"])
    assert manifest["RepoTags"] == ["thing:1"]
    assert manifest["Layers"] == [f"{layer.digest}/layer.tar" for layer in layers]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.digest}" for layer in layers]
    assert config["config"]["User"] == "65532"


def test_the_packages_of_the_coordinator_are_without_torch() -> None:
    small = closure(["tls"])
    assert {"starlette", "uvicorn", "cryptography"} <= small
    assert "torch" not in small
    assert "torch" in closure(["examples"])
