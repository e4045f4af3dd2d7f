"""Turn a fork of a template into the worker that `python -u SCRIPT` would be.

A script must not notice the difference. So it runs in a new module `__main__`, without a frame of Pliant below it.
`become` prepares everything, sets `sys.excepthook` to a C function of Python, and raises `Begin`. Every frame of Pliant
ends, and the interpreter, which finds an uncaught exception, calls that function. It is the one that `python SCRIPT`
calls, so the interpreter itself handles errors, `sys.exit`, Ctrl-C and the end of the process.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import importlib
import importlib.machinery
import os
import runpy
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pliant import settings
from pliant.agent.process.script import FILE, Script
from pliant.parent_death import die_with_parent

MARK = "pliant:"  # a process forked from a worker, and never turned into another program, shows this and its name

LISTEN_S = 0.5
LISTEN_LOOK_S = 0.003

_MAP_PRIVATE = 2


class Begin(BaseException):  # a BaseException: no handler of errors may catch it
    """Raised when a worker is ready to run its script."""


@dataclass(frozen=True, slots=True)
class ForkedWorker:
    """The name, script and environment of a worker to fork."""

    name: str
    script: Script
    environ: Mapping[str, str]  # all of it


def become(worker: ForkedWorker, output: Sequence[int], go: int, parent: int) -> None:
    """Call in the new process, as its only thread; raises `Begin`, which must not be caught.

    The script runs once something can be read from `go`. If `go` is closed instead, the process exits.
    """
    os.dup2(output[0], 1)
    os.dup2(output[-1], 2)
    settings.replace_environment(worker.environ)
    _mark(worker.name)
    _as_if_new()
    _take_command_line(worker.script)
    hook = _file(worker.script.name) if worker.script.kind == FILE else _module(worker.script.name)
    begin = os.read(go, 1)
    if not begin:  # the spawner abandoned this worker
        os._exit(1)
    die_with_parent(parent)
    for each in open_handles():
        if each > 2 and each != hook.handle:
            with suppress(OSError):  # the handle that listed them
                os.close(each)
    _let_rank_0_listen(worker.environ)
    sys.modules["__main__"] = _main_module()
    gc.enable()
    sys.excepthook = hook.call
    raise Begin


def _let_rank_0_listen(environ: Mapping[str, str]) -> None:
    """Wait up to half a second until rank 0 listens.

    Forked workers are ready at the same moment, and torch retries a refused connection only after half a second.
    """
    if environ.get("RANK", "0") == "0" or not environ.get("MASTER_PORT", "").isdecimal():
        return
    until = time.monotonic() + LISTEN_S
    while time.monotonic() < until:
        try:
            where = (environ.get("MASTER_ADDR", ""), int(environ["MASTER_PORT"]))
            socket.create_connection(where, timeout=LISTEN_S).close()
        except ConnectionRefusedError:
            time.sleep(LISTEN_LOOK_S)
        except OSError:
            return
        else:
            return


def open_handles() -> list[int]:
    """Return the file descriptors of this process."""
    return [int(each.name) for each in Path("/proc/self/fd").iterdir()]


def _mark(name: str) -> None:
    """Map a file with the worker's name: visible in /proc, inherited by forks, gone in other programs.

    /proc shows the environment of the template, not that of this process.
    """
    handle = os.memfd_create(MARK + name[:200])
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap(None, 1, 0, _MAP_PRIVATE, handle, 0)
    os.close(handle)


def _as_if_new() -> None:
    """Repeat what a process draws or looks up once at its start. `random` does so by itself."""
    importlib.invalidate_caches()
    modules: dict[str, Any] = dict(sys.modules)
    if (threading := modules.get("threading")) is not None:
        threading.main_thread()._set_native_id()
    if (numpy := modules.get("numpy.random.mtrand")) is not None:
        numpy.seed()
    if (torch := modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (processes := modules.get("multiprocessing.process")) is not None:
        processes.current_process().authkey = os.urandom(32)
    if (logging := modules.get("logging")) is not None and isinstance(logging._startTime, float):
        logging._startTime = time.time()


def _take_command_line(script: Script) -> None:
    if script.kind == FILE:
        sys.argv = [script.name, *script.args]
        first = os.path.dirname(os.path.realpath(script.name))  # noqa: PTH120  # as Python does, to the letter
    else:
        sys.argv = ["-m", *script.args]
        first = os.getcwd()  # noqa: PTH109
    sys.orig_argv = [*script.argv()]
    if not sys.flags.safe_path:
        sys.path.insert(0, first)


def _main_module() -> ModuleType:
    module = ModuleType("__main__")
    module.__loader__ = importlib.machinery.BuiltinImporter  # until there is a better one
    module.__annotations__ = {}
    vars(module)["__builtins__"] = builtins
    return module


# --------------------------------------------------------------------------------------------------- run it


@dataclass(frozen=True, slots=True)
class _Hook:
    """The function that the interpreter calls, and the file it needs open."""

    call: Callable[..., Any]
    handle: int = -1


class _Given:
    """A fixed argument of a C function, in place of the one it is called with."""

    def __init__(self, value: object) -> None:
        self._value = value

    def from_param(self, _: object) -> object:
        _forget()
        return self._value


def _forget() -> None:
    """Remove the traces of `Begin` from `sys`."""
    sys.excepthook = sys.__excepthook__
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def _file(name: str) -> _Hook:
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    path = os.fsencode(_absolute(name))
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stream = libc.fdopen(handle, b"rb")
    run: Any = ctypes.PyDLL(None)["PyRun_SimpleFileExFlags"]
    run.restype = ctypes.c_int
    given = (ctypes.c_void_p(stream), ctypes.c_char_p(path), ctypes.c_int(1), ctypes.c_void_p(None))
    run.argtypes = [_Given(value) for value in given]
    run.errcheck = _file_ended
    return _Hook(functools.partial(run, None), handle)  # the interpreter adds the three arguments of a hook


def _file_ended(failed: int, _function: object, _arguments: object) -> None:
    if failed and vars(sys).get("last_type") is KeyboardInterrupt:
        return  # the interpreter ends by the signal itself
    raise SystemExit(int(bool(failed)))


def _absolute(name: str) -> str:
    """Return an absolute path as Python makes it, without normalising it."""
    return name if name.startswith("/") else f"{os.getcwd()}/{name}"  # noqa: PTH109


def _module(name: str) -> _Hook:
    def run(*_: object) -> None:
        _forget()
        try:
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` calls
        except SystemExit:
            raise
        except BaseException as error:  # why: whatever a script raises is shown as Python shows it
            _show(error)
            if type(error) is KeyboardInterrupt:
                _end_by_interrupt()
                return
            raise SystemExit(1) from None
        raise SystemExit(0)

    return _Hook(run)


def _show(error: BaseException) -> None:
    """Handle an uncaught exception as the interpreter does."""
    below = error.__traceback__.tb_next if error.__traceback__ else None  # without the frame of this module
    error.__traceback__ = below
    vars(sys).update(last_type=type(error), last_value=error, last_traceback=below)
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = sys.excepthook
    sys.audit("sys.excepthook", hook, type(error), error, below)
    try:
        hook(type(error), error, below)
    except SystemExit:
        raise
    except BaseException as second:  # why: the script's own hook may raise anything
        inside = second.__traceback__.tb_next if second.__traceback__ else None
        second.__context__ = None
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second.with_traceback(inside), inside)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, below)
    with suppress(OSError, ValueError):
        sys.stdout.flush()


def _end_by_interrupt() -> None:
    """Make the interpreter end by the signal, as it does for an uncaught Ctrl-C."""
    sys.excepthook = lambda *_: None
    ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")
