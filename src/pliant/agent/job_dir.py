"""A job's own folder, `PLIANT_HOME/jobs/NAME`: its store, where its coordinator listens, tokens, logs, checkpoints.

The process that runs a coordinator on the store holds the folder's lock: `pliant run` for its lifetime, and a command
that reads a stopped job, for as long as it reads. The lock ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pliant.credentials import NO_TLS_FILES, TlsFiles, check_ownership
from pliant.errors import BadInput, Refused
from pliant.private_files import replace_file

LOOK_S = 0.05
LOOKER = "look"
RUNNER = "run"


@dataclass(frozen=True, slots=True)
class EndpointFile:
    """The address of a job's own coordinator, and the file with its token."""

    url: str
    token_file: Path

    def tls(self, files: TlsFiles) -> TlsFiles:
        """Return the files for TLS with this coordinator: none if the agent of this machine started it without TLS."""
        return files if self.url.startswith("https://") else NO_TLS_FILES


@dataclass(frozen=True, slots=True)
class JobDir:
    """The paths in it. Nothing is created before `make` is called."""

    path: Path

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def store(self) -> Path:
        return self.path / "store.db"

    @property
    def token(self) -> Path:
        """The coordinator's own token, scope admin."""
        return self.path / "token"

    @property
    def join_token(self) -> Path:
        """The workers' token, which can only join this job."""
        return self.path / "join-token"

    @property
    def metrics_token(self) -> Path:
        """The token with which Prometheus reads `/metrics`, scope read."""
        return self.path / "metrics-token"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def logs_at(self) -> Path:
        """A file with the path of the logs, if the user chose another one."""
        return self.path / "logs-at"

    @property
    def errors(self) -> Path:
        """The folder for workers' error files, by torchelastic's convention."""
        return self.path / "errors"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def checkpoints_at(self) -> Path:
        """The same for checkpoints; a URL is allowed."""
        return self.path / "checkpoints-at"

    @property
    def command(self) -> Path:
        """The command line of the last start."""
        return self.path / "command.json"

    @property
    def endpoint(self) -> Path:
        return self.path / "endpoint.json"

    def make(self) -> None:
        """Create it, readable by its owner only."""
        try:
            for folder in (self.path.parents[1], self.path.parent, self.path, self.logs, self.errors, self.checkpoints):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"{self.path} cannot be made: {error.strerror}. Set PLIANT_HOME to a place you may write to."
            ) from error
        self.check_ownership()

    def check_ownership(self) -> None:
        """Raise BadInput if another user owns, or can write to, a folder or file that decides where tokens go."""
        check_ownership(self.path.parents[1], "PLIANT_HOME")
        check_ownership(self.path.parent, "The folder of jobs")
        check_ownership(self.path, "The job's folder")
        check_ownership(self.endpoint, "The address of the job's coordinator,")

    def write_endpoint(self, url: str, pid: int) -> None:
        """Write the coordinator's address atomically: a reader finds the old or the new one."""
        content = {"url": url, "token_file": str(self.token.absolute()), "pid": pid}
        replace_file(self.endpoint, f"{json.dumps(content)}\n".encode())

    def read_endpoint(self) -> EndpointFile | None:
        """Return what `write_endpoint` wrote; None if there is nothing. The token is always the folder's own."""
        self.check_ownership()
        try:
            url = json.loads(self.endpoint.read_text(encoding="utf-8"))["url"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadInput(
                f"{self.endpoint} does not say where the coordinator is: {error!r}. Name it with --coordinator."
            ) from error
        return EndpointFile(str(url), self.token)

    def coordinator_pid(self) -> int:
        """The process of the coordinator that is kept for this job; 0 if none is."""
        try:
            return int(json.loads(self.endpoint.read_text(encoding="utf-8"))["pid"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0

    def forget_endpoint(self) -> None:
        """Call when the coordinator is gone for good."""
        with suppress(OSError):  # a stale file is harmless, since no process holds the lock
            self.endpoint.unlink()

    # ------------------------------------------------------------------------------------------------- lock

    def is_run(self) -> bool:
        """Return whether a `pliant run` runs this job on this machine now."""
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(handle)[0] == RUNNER
        finally:
            os.close(handle)
        return False

    def runner_pid(self) -> int:
        """The process of the `pliant run` that keeps this job on this machine; 0 if there is none."""
        try:
            handle = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            who, pid, host = _holder(handle)
        finally:
            os.close(handle)
        return int(pid) if who == RUNNER and host == _host() and self.is_run() else 0

    @contextmanager
    def lock(self, kind: str, wait_s: float) -> Iterator[None]:
        """Hold it for a block. While another one looks, wait so long; where a `pliant run` holds it: Refused."""
        self.check_ownership()
        until = time.monotonic() + wait_s
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be used: {error.strerror}.") from error
        try:
            while not _is_ours(handle):
                who, pid, host = _holder(handle)
                if host != _host():
                    raise Refused(
                        f"{self.path} is in use on {host}, another machine: give each a PLIANT_HOME of its own, on a "
                        "disk of its own."
                    )
                if who == RUNNER or time.monotonic() >= until:
                    raise Refused(
                        f"{self.job} runs on this machine already, as process {pid}; `pliant status {self.job}` shows "
                        f"it. To change its number of workers, run `pliant resize {self.job} N`. To try several "
                        "machines on this one, run `pliant local`, or give each `pliant run` its own PLIANT_HOME and "
                        "PLIANT_AGENT."
                    )
                time.sleep(LOOK_S)
            self._write_holder(handle, kind)
            yield
        finally:
            os.close(handle)

    def _write_holder(self, handle: int, kind: str) -> None:
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{kind} {os.getpid()} {_host()}\n".encode(), 0)
        except OSError as error:
            raise BadInput(
                f"{self.path / 'lock'} cannot be written: {error.strerror}. Free space, or set PLIANT_HOME to "
                "a folder on another disk."
            ) from error


def point_to(chosen: str | Path | None, file: Path) -> None:
    """Write the place that the user chose into a file; None removes it."""
    if chosen is None:
        file.unlink(missing_ok=True)
    else:
        file.write_text(f"{chosen}\n", encoding="utf-8")


def _is_ours(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> tuple[str, str, str]:
    """Return the kind of the lock's holder, which it may not have written yet."""
    words = os.pread(handle, 400, 0).decode("utf-8", "replace").split()
    return (words[0], words[1], words[2]) if len(words) == 3 else ("", "unknown", _host())


def _host() -> str:
    return os.uname().nodename or "this machine"
