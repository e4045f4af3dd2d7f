"""Find the checkpoints that an argument names: those of a job, or those in a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pliant import settings
from pliant.agent.job_dir import JobDir
from pliant.cli.connect import Flags, complete_jobs
from pliant.cli.local_jobs import job_dir, job_names
from pliant.cli.output import clean
from pliant.cli.suggest import did_you_mean
from pliant.core.model.names import bad_name
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pliant.core.model.checkpoint import Checkpoint
    from pliant.train.checkpoint import CheckpointFacts, Storage

NEWEST, KEPT = "newest", "kept"


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """A place, and for a job the checkpoints its coordinator has recorded, newest first; None if unknown."""

    storage: Storage
    name: str | None = None  # if the argument was the folder of one checkpoint
    job: str | None = None
    recorded: tuple[Checkpoint, ...] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint in a place.

    `problem` is why it cannot be used, or empty. `retention` is `newest` or `kept` if the job retention on it.
    """

    name: str
    checkpoint: Checkpoint | None
    facts: CheckpointFacts | None = None
    problem: str = ""
    retention: str = ""
    nbytes: int = 0  # size of its files
    finished: bool = True  # it has a manifest, in the place or in the coordinator's store

    @property
    def step(self) -> int | None:
        return None if self.checkpoint is None else self.checkpoint.lineage.step


def where_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument JOB|PLACE to a command, which is called with `where`."""
    return click.argument("where", required=False, metavar="JOB|PLACE", shell_complete=complete_jobs)(command)


def find_source(where: str | None, flags: Flags) -> CheckpointSource:
    """Return the source that the argument or PLIANT_JOB names. Raise BadInput if there is none."""
    text = where if where is not None else settings.read().job
    if text is None:
        raise click.UsageError("No checkpoints given. Pass a job, a folder or a URL, or set PLIANT_JOB.")
    return _source_at_path(text) or _source_of_job(text, flags) or _source_in_folder(text) or _raise_not_found(text)


def list_entries(source: CheckpointSource) -> list[CheckpointEntry]:
    """List the checkpoints, newest first, unreadable ones last. Reads manifests only."""
    recorded = {checkpoint.name: checkpoint for checkpoint in source.recorded or ()}
    try:
        names = {*source.storage.checkpoint_names(), *recorded}
        found = [_inspect(source, name, recorded) for name in names]
        found += [
            CheckpointEntry(
                name, None, problem="not finished", nbytes=_total_size(source.storage.file_sizes(name)), finished=False
            )
            for name in source.storage.unfinished_names()
            if name not in names
        ]
    except OSError as error:
        raise BadInput(f"{source.storage.location} cannot be read: {error.strerror or error}.") from error
    if source.name is not None:
        found = [each for each in found if each.name == source.name]
    return sorted(found, key=_sort_key)


def select_entries(source: CheckpointSource, name: str | None) -> list[CheckpointEntry]:
    """Return the checkpoint of that name; without a name, all that may be used, the best first."""
    found = list_entries(source)
    if name is not None:
        for each in found:
            if each.name == name:
                return [each]
        there = ", ".join(each.name for each in found) or "none"
        raise BadInput(f"There is no checkpoint {clean(name)} in {source.storage.location}. Available: {there}.")
    if not found:
        raise BadInput(f"There is no checkpoint in {source.storage.location}.")
    if source.recorded:  # others may belong to a history that was rolled back
        return [each for each in found if each.retention]
    return found


def _sort_key(found: CheckpointEntry) -> tuple[Any, ...]:
    if found.checkpoint is None:
        return (1, found.name)
    generation, step = found.checkpoint.lineage.key()
    return (0, [NEWEST, KEPT, ""].index(found.retention), -generation, -step, found.name)


def _inspect(source: CheckpointSource, name: str, recorded: Mapping[str, Checkpoint]) -> CheckpointEntry:
    from pliant.train.checkpoint import DamagedCheckpoint, read_manifest

    checkpoint, facts, problem = recorded.get(name), None, ""
    try:
        manifest = read_manifest(source.storage, name)
        checkpoint, facts = checkpoint or manifest.checkpoint, manifest.facts
    except DamagedCheckpoint as damage:
        problem = "" if checkpoint is not None else damage.why  # the coordinator's manifest is as good
    files = source.storage.file_sizes(name)
    if checkpoint is not None:
        problem = _size_problem(checkpoint, files)
    retention = "" if name not in recorded else NEWEST if name == next(iter(recorded)) else KEPT
    return CheckpointEntry(name, checkpoint, facts, problem, retention, _total_size(files))


def _size_problem(checkpoint: Checkpoint, files: Mapping[str, int]) -> str:
    """Return the first problem that file sizes show: a file is missing or has another size."""
    for piece in checkpoint.pieces:
        if piece.file not in files:
            return f"{checkpoint.name}/{piece.file} is damaged: the file is missing."
        if files[piece.file] != piece.nbytes:
            return f"{checkpoint.name}/{piece.file} is damaged: it has {files[piece.file]} of {piece.nbytes} bytes."
    return ""


def _total_size(files: Mapping[str, int]) -> int:
    return sum(files.values())


# ---------------------------------------------------------------------------------------- finding the source


def _source_at_path(text: str) -> CheckpointSource | None:
    """Return the source for an argument that can only be a path or a URL."""
    from pliant.train.checkpoint import open_storage
    from pliant.train.checkpoint.storage import MANIFEST_FILE, is_url

    if is_url(text) and not text.startswith("file://"):
        return CheckpointSource(open_storage(text))
    path = Path(text.removeprefix("file://")).expanduser()
    if "/" not in text and text not in (".", ".."):
        return None
    if not path.is_dir():
        raise BadInput(f"There is no folder {clean(text)}.")
    if (path / MANIFEST_FILE).is_file():
        return CheckpointSource(open_storage(path.resolve().parent), path.resolve().name)
    return CheckpointSource(open_storage(path))


def _source_of_job(text: str, flags: Flags) -> CheckpointSource | None:
    from pliant.train.checkpoint import open_storage

    folder = job_dir(text)
    if bad_name(text) or not folder.path.is_dir():
        return None
    return CheckpointSource(open_storage(_job_place(folder)), job=text, recorded=_recorded_checkpoints(text, flags))


def _job_place(folder: JobDir) -> str:
    """Return the place of a job's checkpoints: its folder, unless a file there names another place."""
    try:
        return folder.checkpoints_at.read_text(encoding="utf-8").strip() or str(folder.checkpoints)
    except FileNotFoundError:
        return str(folder.checkpoints)


def _recorded_checkpoints(job: str, flags: Flags) -> tuple[Checkpoint, ...] | None:
    """Return the checkpoints in the coordinator's store, newest first."""
    try:
        with flags.connect(job) as client:
            status = client.job(job)
    except PliantError as error:
        click.echo(f"pliant: the coordinator did not report which ones the job keeps ({clean(error.why)})", err=True)
        return None
    newest: Sequence[Checkpoint] = () if status.checkpoint is None else (status.checkpoint,)
    earlier = sorted(status.older_checkpoints, key=lambda each: each.lineage.key(), reverse=True)
    return (*newest, *(each for each in earlier if each not in newest))


def _source_in_folder(text: str) -> CheckpointSource | None:
    from pliant.train.checkpoint import open_storage

    return CheckpointSource(open_storage(text)) if Path(text).is_dir() else None


def _raise_not_found(text: str) -> CheckpointSource:
    raise BadInput(
        f"There is neither a job nor a folder {clean(text)} on this machine.{did_you_mean(text, job_names())} For a "
        "job on another machine, pass the place of its checkpoints as a path or a URL, or run the command there."
    )


def iter_usable(found: Sequence[CheckpointEntry]) -> Iterator[CheckpointEntry]:
    """Yield entries without a problem and report the others. A single entry must be usable."""
    for each in found:
        if each.checkpoint is not None and not each.problem:
            yield each
        elif len(found) == 1:
            raise BadInput(f"{each.name} cannot be used: {each.problem}" + ("" if each.problem.endswith(".") else "."))
        elif each.finished:
            click.echo(f"pliant: {clean(each.name)} is skipped: {clean(each.problem)}", err=True)
