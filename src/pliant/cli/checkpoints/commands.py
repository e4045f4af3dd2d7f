"""`pliant checkpoints`, `verify` and `export`: checkpoints on disk."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pliant.cli.checkpoints.source import (
    CheckpointEntry,
    CheckpointSource,
    find_source,
    iter_usable,
    list_entries,
    select_entries,
    where_argument,
)
from pliant.cli.connect import Flags, connection_options
from pliant.cli.output import clean, format_age, format_size, json_option, print_json, print_table
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.core.model.checkpoint import Checkpoint
    from pliant.train.checkpoint import Manifest
    from pliant.train.state.transfer import ReceivedState

TORCH_ENDINGS = (".pt", ".pth")


@click.command()
@where_argument
@json_option
@connection_options
def checkpoints(where: str | None, flags: Flags, as_json: bool) -> None:
    """List the checkpoints of a job, a folder or a URL.

    Reads manifests and file sizes only; `pliant verify` reads every byte. For a job, shows which ones it keeps.
    """
    source = find_source(where, flags)
    found = list_entries(source)
    if as_json:
        print_json(
            {
                "storage": source.storage.location,
                "job": source.job,
                "checkpoints": [_entry_json(each) for each in found],
            }
        )
    elif not found:
        click.echo(f"There are no checkpoints in {source.storage.location}.", err=True)
    else:
        heads = ("name", "step", "size", "age", "members", "state")
        now = time.time()
        print_table(heads, [_row(each, now) for each in found])


@click.command()
@where_argument
@click.argument("name", required=False)
@json_option
@connection_options
def verify(where: str | None, name: str | None, flags: Flags, as_json: bool) -> int:
    """Verify checkpoints against their hashes.

    Reads every byte. Without NAME, verifies all finished checkpoints. Exits with 1 if a file is damaged.
    """
    source = find_source(where, flags)
    wanted = select_entries(source, name or source.name)
    results = [(each, _problems(source, each)) for each in wanted if each.finished or name]
    if as_json:
        print_json(
            {
                "ok": not any(problems for _, problems in results),
                "storage": source.storage.location,
                "checkpoints": [
                    {**_entry_json(each), "ok": not problems, "problems": problems} for each, problems in results
                ],
            }
        )
    else:
        for each, problems in results:
            _print_verified(each, problems)
        if not results:
            click.echo(f"There is no finished checkpoint in {source.storage.location}.", err=True)
    return 1 if any(problems for _, problems in results) else 0


@click.command()
@where_argument
@click.argument("name", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR|FILE", help="Folder or file to write."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "torch"]),
    help="Format to write.  [default: torch for .pt and .pth, else safetensors]",
)
@json_option
@connection_options
def export(where: str | None, name: str | None, out: Path, kind: str | None, flags: Flags, as_json: bool) -> None:
    """Export a checkpoint for use without Pliant.

    Without NAME, exports the newest intact checkpoint. safetensors: a folder with model.safetensors and the rest, or a
    single file with the model. torch: one file for `torch.load`; needs the extra `torch`.
    """
    from pliant.train.checkpoint import DamagedCheckpoint

    kind = kind or ("torch" if out.suffix in TORCH_ENDINGS else "safetensors")
    write = _writer(out, kind)
    source = find_source(where, flags)
    wanted = select_entries(source, name or source.name)
    for each in iter_usable(wanted):
        manifest = _manifest(each)
        try:
            received = _read(source, manifest.checkpoint)
        except DamagedCheckpoint as damage:
            if len(wanted) == 1:
                raise
            click.echo(f"pliant: {clean(damage.why)} Trying the one before.", err=True)
            continue
        try:
            files = write(received, manifest)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a full disk
            why = error.strerror if isinstance(error, OSError) else None
            raise BadInput(f"{out} cannot be written: {why or error}.") from error
        _print_exported(each, files, as_json)
        return
    raise BadInput(
        f"None of the checkpoints in {source.storage.location} can be used. Run `pliant verify` for the reasons."
    )


# ------------------------------------------------------------------------------------------------ verify


def _problems(source: CheckpointSource, found: CheckpointEntry) -> list[dict[str, str]]:
    from pliant.train.checkpoint import find_problems

    if found.checkpoint is None:
        return [{"file": "manifest.json", "problem": found.problem}]
    total = sum(piece.nbytes for piece in found.checkpoint.pieces)
    with progress(f"Reading {found.name}", total) as seen:
        return [
            {"file": problem.file, "problem": problem.wrong}
            for problem in find_problems(source.storage, found.checkpoint, seen)
        ]


def _print_verified(found: CheckpointEntry, problems: list[dict[str, str]]) -> None:
    step = "" if found.step is None else f", step {found.step}"
    click.echo(f"{clean(found.name)}{step}, {format_size(found.nbytes)}: {'damaged' if problems else 'intact'}")
    for problem in problems:
        click.echo(f"  {clean(problem['file'])}: {clean(problem['problem'])}")


# ------------------------------------------------------------------------------------------------ export


def _writer(out: Path, kind: str) -> Callable[[ReceivedState, Manifest], list[Path]]:
    """Return the function that writes the requested format. Raise BadInput before any long work if it cannot."""
    from pliant.train.checkpoint import export

    if kind == "torch":
        file = out / "checkpoint.pt" if out.is_dir() else out
        export.refuse_existing([file])
        return _torch_writer(file)
    if out.suffix == ".safetensors":
        export.refuse_existing([out])

        def write_one(received: ReceivedState, manifest: Manifest) -> list[Path]:
            export.export_model(out, received, manifest)
            return [out]

        return write_one
    if out.suffix in TORCH_ENDINGS:
        raise BadInput(f"{out} has the suffix of a torch file. Pass --format torch, or name a folder.")
    names = (export.MODEL_FILE, export.REST_FILE, export.REST_TENSORS)
    export.refuse_existing([out / name for name in names])
    return lambda received, manifest: export.export_folder(out, received, manifest)


def _torch_writer(file: Path) -> Callable[[ReceivedState, Manifest], list[Path]]:
    try:
        from pliant.torch.state.export import export_torch
    except ModuleNotFoundError as missing:
        raise BadInput(
            "The torch format needs torch, which is not installed. Run pip install 'pliant[torch]', or drop --format "
            "torch for safetensors, which does not need it."
        ) from missing

    def write(received: ReceivedState, manifest: Manifest) -> list[Path]:
        export_torch(file, received, manifest)
        return [file]

    return write


def _read(source: CheckpointSource, checkpoint: Checkpoint) -> ReceivedState:
    from pliant.train.checkpoint import read_checkpoint

    with progress(f"Reading {checkpoint.name}", sum(piece.nbytes for piece in checkpoint.pieces)) as seen:
        return read_checkpoint(source.storage, checkpoint, seen)


def _manifest(found: CheckpointEntry) -> Manifest:
    from pliant.train.checkpoint import CheckpointFacts, Manifest

    if found.checkpoint is None:
        raise AssertionError("a checkpoint without a manifest was chosen")
    return Manifest(found.checkpoint, found.facts or CheckpointFacts(0.0))


def _print_exported(found: CheckpointEntry, files: list[Path], as_json: bool) -> None:
    sizes = {str(file): file.stat().st_size for file in files}
    if as_json:
        print_json({"name": found.name, "step": found.step, "files": sizes})
        return
    click.echo(f"{clean(found.name)}, step {found.step}:")
    for file, nbytes in sizes.items():
        click.echo(f"  {file}, {format_size(nbytes)}")


# ------------------------------------------------------------------------------------------------ shown


def _entry_json(found: CheckpointEntry) -> dict[str, Any]:
    checkpoint, facts = found.checkpoint, found.facts
    cursor = None if facts is None or facts.cursor is None else facts.cursor
    return {
        "name": found.name,
        "step": found.step,
        "generation": None if checkpoint is None else checkpoint.lineage.generation,
        "at": None if facts is None else facts.at,
        "cursor": cursor,
        "members": [] if facts is None else list(facts.members),
        "nbytes": found.nbytes,
        "files": [] if checkpoint is None else [piece.file for piece in checkpoint.pieces],
        "ok": not found.problem,
        "problem": found.problem,
        "retention": found.retention,
    }


def _row(found: CheckpointEntry, now: float) -> tuple[str, ...]:
    facts = found.facts
    return (
        found.name,
        "" if found.step is None else str(found.step),
        format_size(found.nbytes),
        "" if facts is None else format_age(now - facts.at),
        "" if facts is None else str(len(facts.members)),
        ", ".join(filter(None, (found.retention, found.problem or "complete"))),
    )


@contextmanager
def progress(what: str, nbytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Yields a thread-safe function that takes the bytes read."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    lock = threading.Lock()
    with click.progressbar(length=nbytes, label=clean(what), file=sys.stderr) as bar:

        def seen(more: int) -> None:
            with lock:
                bar.update(more)

        yield seen
