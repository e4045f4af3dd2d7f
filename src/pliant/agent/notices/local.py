"""Notices outside of known clouds: a file that appears, or a command that succeeds."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pliant.agent.notices.base import Notice, Trouble, written_notice
from pliant.errors import BadInput

READ_MAX = 4096
COMMAND_S = 10.0  # time limit of a command
CANNOT = (126, 127)  # exit codes of a shell or env that cannot start a program


def _without_waiting(path: str, flags: int) -> int:
    """Open without blocking on a named pipe that has no writer."""
    return os.open(path, flags | os.O_NONBLOCK)


class FileWatcher:
    """`file:PATH`: the file's existence is the notice."""

    pause_s = 1.0

    def __init__(self, path: str) -> None:
        if not path:
            raise BadInput("file: needs the path of a file, file:/run/going-away for instance.")
        self._path = Path(path)
        self.name = f"file:{path}"

    def look(self, remark: Callable[[str], None]) -> Notice | None:  # noqa: ARG002  # this source has no remarks
        otherwise = f"{self._path} is there"
        try:
            with open(self._path, "rb", buffering=0, opener=_without_waiting) as file:
                return written_notice((file.read(READ_MAX) or b"").decode("utf-8", "replace"), otherwise)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IsADirectoryError:
            return Notice(None, otherwise)
        except OSError as error:
            if isinstance(error, PermissionError) and os.access(self._path.parent, os.X_OK):
                return Notice(None, otherwise)  # it exists, and its content is not readable
            raise Trouble(f"{self._path} cannot be looked at: {error.strerror}.") from error


class CommandWatcher:
    """`command:CMD`: exit status 0 is the notice, and the output its reason. Run without a shell."""

    pause_s = 5.0

    def __init__(self, command: str, limit_s: float = COMMAND_S) -> None:
        try:
            self._argv = shlex.split(command)
        except ValueError as error:
            raise BadInput(f"command:{command} is no command line: {error}.") from error
        if not self._argv:
            raise BadInput("command: needs a command, command:/usr/local/bin/is-going for instance.")
        self._limit_s = limit_s
        self.name = f"command:{command}"

    def look(self, remark: Callable[[str], None]) -> Notice | None:  # noqa: ARG002  # this source has no remarks
        reading, writing = os.pipe()
        try:
            try:
                child = subprocess.Popen(
                    self._argv, stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.DEVNULL, process_group=0
                )
            except OSError as error:
                raise Trouble(f"{self._argv[0]} cannot be started: {error.strerror}.") from error
            finally:
                os.close(writing)
            code = self._ended(child)
            os.set_blocking(reading, False)
            with suppress(BlockingIOError):  # a process that it started keeps the pipe open
                return self._notice_from(code, os.read(reading, READ_MAX))
            return self._notice_from(code, b"")
        finally:
            os.close(reading)

    def _ended(self, child: subprocess.Popen[bytes]) -> int:
        pidfd = os.pidfd_open(child.pid)
        try:
            ended = select.poll()  # unlike select.select it takes descriptors of 1024 and more
            ended.register(pidfd, select.POLLIN)
            in_time = ended.poll(self._limit_s * 1000)
        finally:
            os.close(pidfd)
            # With its children, and before it is reaped, so that the pid is not reused yet.
            os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        if not in_time:
            raise Trouble(f"{self.name} has not ended after {self._limit_s:g} s and was killed.")
        return code

    def _notice_from(self, code: int, printed: bytes) -> Notice | None:
        if code in CANNOT:
            raise Trouble(f"{self.name} ended with {code}: it could not be run, or could not run something.")
        if code < 0:
            raise Trouble(f"{self.name} was ended by signal {-code}.")
        if code:
            return None
        return written_notice(printed.decode("utf-8", "replace"), f"{self.name} says so")
