"""Which checkpoints a person means: those of a job, or those in a place; and which of them can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pliant import settings
from pliant.agent.job_dir import Folder
from pliant.cli.connect import Flags, complete_jobs
from pliant.cli.output import clean
from pliant.core.model.names import bad_name
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pliant.core.model.checkpoint import Checkpoint
    from pliant.train.checkpoint import CheckpointFacts, Storage

NEWEST, KEPT = "newest", "kept"


@dataclass(frozen=True, slots=True)
class Source:
    """A place, and of a job's place what its coordinator counts: newest first, None if nobody said."""

    storage: Storage
    name: str | None = None  # the path was that of one checkpoint
    job: str | None = None
    counted: tuple[Checkpoint, ...] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint as it looks from outside. `wrong` says why it cannot be used; `counts` what its job makes of it."""

    name: str
    checkpoint: Checkpoint | None
    facts: CheckpointFacts | None = None
    wrong: str = ""
    counts: str = ""
    nbytes: int = 0  # what lies there
    finished: bool = True  # it has a manifest, here or in the coordinator's store

    @property
    def step(self) -> int | None:
        return None if self.checkpoint is None else self.checkpoint.lineage.step


def where_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument JOB|PLACE; it is called with `where`."""
    return click.argument("where", required=False, metavar="JOB|PLACE", shell_complete=complete_jobs)(command)


def find_source(where: str | None, flags: Flags) -> Source:
    """What is meant. BadInput if there is no such thing, with what could have been said."""
    text = where if where is not None else settings.read().job
    if text is None:
        raise click.UsageError("Which checkpoints? Name a job, a folder or a URL, or set PLIANT_JOB.")
    return _place(text) or _job(text, flags) or _folder(text) or _nothing(text)


def look(source: Source) -> list[Found]:
    """What is there, newest first; then what cannot be told. No more is read than manifests."""
    counted = {checkpoint.name: checkpoint for checkpoint in source.counted or ()}
    try:
        names = {*source.storage.checkpoint_names(), *counted}
        found = [_looked_at(source, name, counted) for name in names]
        found += [
            Found(name, None, wrong="not finished", nbytes=_size(source.storage.file_sizes(name)), finished=False)
            for name in source.storage.unfinished_names()
            if name not in names
        ]
    except OSError as error:
        raise BadInput(f"{source.storage.location} cannot be read: {error.strerror or error}.") from error
    if source.name is not None:
        found = [each for each in found if each.name == source.name]
    return sorted(found, key=_age)


def choose(source: Source, name: str | None) -> list[Found]:
    """The checkpoint of that name; or, if none is named, all that may be used, the best first."""
    found = look(source)
    if name is not None:
        for each in found:
            if each.name == name:
                return [each]
        there = ", ".join(each.name for each in found) or "none"
        raise BadInput(f"There is no checkpoint {clean(name)} in {source.storage.location}; there are: {there}.")
    if not found:
        raise BadInput(f"There is no checkpoint in {source.storage.location}.")
    if source.counted:  # what else lies there may belong to a history that is not this job's
        return [each for each in found if each.counts]
    return found


def _age(found: Found) -> tuple[Any, ...]:
    if found.checkpoint is None:
        return (1, found.name)
    generation, step = found.checkpoint.lineage.key()
    return (0, [NEWEST, KEPT, ""].index(found.counts), -generation, -step, found.name)


def _looked_at(source: Source, name: str, counted: Mapping[str, Checkpoint]) -> Found:
    from pliant.train.checkpoint import DamagedCheckpoint, read_manifest

    checkpoint, facts, wrong = counted.get(name), None, ""
    try:
        manifest = read_manifest(source.storage, name)
        checkpoint, facts = checkpoint or manifest.checkpoint, manifest.facts
    except DamagedCheckpoint as damage:
        wrong = "" if checkpoint is not None else damage.why  # the coordinator's manifest is as good
    files = source.storage.file_sizes(name)
    if checkpoint is not None:
        wrong = _misfit(checkpoint, files)
    counts = "" if name not in counted else NEWEST if name == next(iter(counted)) else KEPT
    return Found(name, checkpoint, facts, wrong, counts, _size(files))


def _misfit(checkpoint: Checkpoint, files: Mapping[str, int]) -> str:
    """What can be seen without reading: a file that is missing or has another size."""
    for piece in checkpoint.pieces:
        if piece.file not in files:
            return f"{checkpoint.name}/{piece.file} is damaged: it is not there."
        if files[piece.file] != piece.nbytes:
            return f"{checkpoint.name}/{piece.file} is damaged: it has {files[piece.file]} of {piece.nbytes} bytes."
    return ""


def _size(files: Mapping[str, int]) -> int:
    return sum(files.values())


# ------------------------------------------------------------------------------------------------ what is meant


def _place(text: str) -> Source | None:
    """What can only be a path or a URL."""
    from pliant.train.checkpoint import open_storage
    from pliant.train.checkpoint.storage import MANIFEST_FILE, is_url

    if is_url(text) and not text.startswith("file://"):
        return Source(open_storage(text))
    path = Path(text.removeprefix("file://")).expanduser()
    if "/" not in text and text not in (".", ".."):
        return None
    if not path.is_dir():
        raise BadInput(f"There is no folder {clean(text)}.")
    if (path / MANIFEST_FILE).is_file():
        return Source(open_storage(path.resolve().parent), path.resolve().name)
    return Source(open_storage(path))


def _job(text: str, flags: Flags) -> Source | None:
    from pliant.train.checkpoint import open_storage

    folder = Folder(settings.read().home / "jobs" / text)
    if bad_name(text) or not folder.path.is_dir():
        return None
    return Source(open_storage(_place_of(folder)), job=text, counted=_counted(text, flags))


def _place_of(folder: Folder) -> str:
    """Where the job of a folder keeps its checkpoints: in it, unless a file there says where else."""
    try:
        return folder.checkpoints_at.read_text(encoding="utf-8").strip() or str(folder.checkpoints)
    except FileNotFoundError:
        return str(folder.checkpoints)


def _counted(job: str, flags: Flags) -> tuple[Checkpoint, ...] | None:
    """The checkpoints in the coordinator's store, newest first."""
    try:
        with flags.connect(job) as client:
            status = client.job(job)
    except PliantError as error:
        click.echo(f"pliant: the coordinator did not say which ones count ({clean(error.why)})", err=True)
        return None
    newest: Sequence[Checkpoint] = () if status.checkpoint is None else (status.checkpoint,)
    earlier = sorted(status.older_checkpoints, key=lambda each: each.lineage.key(), reverse=True)
    return (*newest, *(each for each in earlier if each not in newest))


def _folder(text: str) -> Source | None:
    from pliant.train.checkpoint import open_storage

    return Source(open_storage(text)) if Path(text).is_dir() else None


def _nothing(text: str) -> Source:
    raise BadInput(
        f"There is no job {clean(text)} on this machine, nor a folder of that name here. A job that runs elsewhere "
        "keeps its checkpoints there, or in a place that all its machines reach: name that, as a path or a URL."
    )


def usable(found: Sequence[Found]) -> Iterator[Found]:
    """Those that nothing is wrong with, from outside; of the others it is said. One that was asked for must be so."""
    for each in found:
        if each.checkpoint is not None and not each.wrong:
            yield each
        elif len(found) == 1:
            raise BadInput(f"{each.name} cannot be used: {each.wrong}" + ("" if each.wrong.endswith(".") else "."))
        elif each.finished:
            click.echo(f"pliant: {clean(each.name)} is left out: {clean(each.wrong)}", err=True)
