"""The jobs that `pliant run` started on this machine: find them, read them without a token, and delete them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pliant import settings
from pliant.agent.job_dir import LOOKER, JobDir
from pliant.cli.suggest import did_you_mean, listed
from pliant.core.messages.rejection import Code
from pliant.core.model.names import bad_name
from pliant.credentials import check_ownership
from pliant.errors import BadInput, PliantError, Refused

if TYPE_CHECKING:
    from pliant.wire.api import JobLine

LOOKERS_S = 20.0  # how long to wait for other commands that read a stopped job
ANSWER_S = 3.0
DELETED = ".deleted"  # suffix of a folder that is about to be removed


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job in this machine's folders. `line` is None if it cannot be read; `problem` is the reason."""

    name: str
    runs: bool  # a `pliant run` runs it on this machine now
    line: JobLine | None
    problem: str = ""

    @property
    def state(self) -> str:
        """The state of the job, or `stopped` if it could go on and no process runs it."""
        if self.line is None:
            return "unknown"
        return self.line.state.value if self.runs or self.line.state.ended else "stopped"


def job_dir(name: str) -> JobDir:
    """Return the folder that a job of this name has, or would have, on this machine."""
    return JobDir(settings.read().home / "jobs" / name)


def job_names() -> list[str]:
    """Return the names of the jobs with a folder on this machine, sorted."""
    home = settings.read().home
    check_ownership(home, "PLIANT_HOME")
    folder = home / "jobs"
    check_ownership(folder, "The folder of jobs")
    try:
        return sorted(path.name for path in folder.iterdir() if not bad_name(path.name) and path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"{folder} cannot be read: {error.strerror}.") from error


def no_job(name: str, names: list[str], where: str = "here") -> Refused:
    """Return the error for a job that does not exist, with the jobs that do and a suggestion."""
    there = f"jobs {where}: {listed(names)}." if names else f"there are no jobs {where}."
    return Refused(f"no job {name!r}; {there}{did_you_mean(name, names)}", Code.NO_JOB)


def read_jobs() -> list[JobEntry]:
    """Read every job of this machine."""
    return [read_job(job_dir(name)) for name in job_names()]


def read_job(folder: JobDir) -> JobEntry:
    """Read a job: from its coordinator while it runs, else from its store."""
    runs = folder.is_run()
    try:
        if runs and (line := _line_from_coordinator(folder)):
            return JobEntry(folder.job, runs, line)
        if not runs and folder.store.exists():
            with folder.lock(LOOKER, LOOKERS_S):
                return JobEntry(folder.job, runs, _line_from_store(folder))
    except PliantError as error:
        return JobEntry(folder.job, runs, None, error.why)
    why = "it runs" if runs else "it ran"
    return JobEntry(folder.job, runs, None, f"{why} with the coordinator of another machine or user")


def _line_from_coordinator(folder: JobDir) -> JobLine | None:
    """Ask the coordinator of a running job; None if this machine does not host it."""
    from pliant.client import Client
    from pliant.credentials import TlsFiles, read_token

    place = folder.read_endpoint()
    if place is None:
        return None
    found = settings.read()
    tls = place.tls(TlsFiles(found.ca_file, found.cert_file, found.key_file))
    with Client([place.url], read_token(place.token_file), patience_s=ANSWER_S, tls=tls) as client:
        return client.job(folder.job).job


def _line_from_store(folder: JobDir) -> JobLine:
    """Read a stopped job. `since` of a job that has not ended is the time of its last event."""
    from dataclasses import replace

    from pliant.coordinator.api.job_status import job_line
    from pliant.coordinator.service.loaded_jobs import stored_job
    from pliant.stores.sqlite import SqliteStore
    from pliant.wire.api import EVENTS

    with SqliteStore(folder.store) as store:
        stored = store.read(folder.job)
        if stored is None:
            raise Refused("the job was never created: `pliant run` ended before that", Code.NO_JOB)
        (last,) = store.events(folder.job, stored.revision - 1, 1)
        job = stored_job(stored)
    line = job_line(job, stored.revision)
    known = line.since if line.state.ended else 0.0
    return replace(line, since=known or EVENTS.decode(last.data).at)


# ------------------------------------------------------------------------------------------------- deleting


@dataclass(frozen=True, slots=True)
class DeletedJob:
    """A job that was deleted: the bytes that it took, and the files of it outside its folder, which stay.

    The bytes of a job of a coordinator are unknown.
    """

    job: str
    nbytes: int | None
    kept: tuple[str, ...]


def delete_job(name: str) -> DeletedJob:
    """Delete the folder of a job: its history, logs, and the checkpoints in it. A running job is refused."""
    folder = job_dir(name)
    if name not in job_names():
        raise no_job(name, job_names())
    if folder.is_run():
        raise Refused(
            f"Job {name} runs on this machine (process {folder.runner_pid()}). Stop it first, with Ctrl-C or "
            f"`pliant cancel {name}`."
        )
    if folder.path.is_symlink():
        raise BadInput(f"{folder.path} is a symbolic link. Remove the link and the folder that it names by hand.")
    try:
        with folder.lock(LOOKER, LOOKERS_S):
            kept = _places_outside(folder)
            nbytes = sum(path.lstat().st_size for path in folder.path.rglob("*"))
            doomed = folder.path.with_name(f".{name}{DELETED}")
            shutil.rmtree(doomed, ignore_errors=True)  # of an earlier deletion that was interrupted
            folder.path.rename(doomed)
            shutil.rmtree(doomed)
    except OSError as error:
        raise BadInput(f"{folder.path} cannot be deleted: {error.strerror or error}.") from error
    return DeletedJob(name, nbytes, kept)


def _places_outside(folder: JobDir) -> tuple[str, ...]:
    """Return the folders of logs and checkpoints that the user chose."""
    return tuple(
        text
        for file in (folder.checkpoints_at, folder.logs_at)
        if file.exists() and (text := file.read_text(encoding="utf-8").strip())
    )


def remove_interrupted_deletions() -> None:
    """Remove what deletions left that were interrupted."""
    for path in Path(settings.read().home / "jobs").glob(f".*{DELETED}"):
        shutil.rmtree(path, ignore_errors=True)
