"""The template: a process that has imported the modules of workers, and is forked into workers without an import.

It is a child of the spawner (`spawner`) and has no threads, because a process with threads must not be forked. Its
workers are children of the spawner, as all others are: the template forks twice, the process in between ends, and the
system gives orphans to the spawner. A worker runs no code of its script before the spawner has recorded it.

Messages, one JSON object each:

    {"ready": ""}                                               out; or the reason why it cannot be used, before it ends
    {"fork": NAME, "kind", "script", "args", "change", "remove"}  in, with a pipe to wait on and one or two for output
    {"pid": N}                                                  out
    {"cannot": WHY}                                             out
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.machinery
import json
import linecache
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pliant import settings
from pliant.agent.process.script import FILE, Script, differing
from pliant.agent.process.template_child import ForkedWorker, become, open_handles

# What a training step imports: the first DistributedDataParallel and the first optimizer import torch's compiler.
TORCH = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.nn.parallel.distributed",
    "torch.utils.data.distributed",
)

MESSAGE_MAX = 1 << 18
FORK_S = 10.0  # limit of a fork, which takes some milliseconds
SETTLE_S = 2.0  # for threads that are ending
END_S = 1.0  # for a template that has closed its socket to exit
OUTPUT_MAX = 4096
WARMING = "the template is still importing"

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")

# Not with -P, which workers do not have. The folder it is started in is removed from the path instead.
_START = """
import sys
bare = frozenset(sys.modules)
if not sys.flags.safe_path:
    del sys.path[0]
from pliant.agent.process.template import main
main(bare)
"""


# ----------------------------------------------------------------------------------------- the spawner's side


class CannotFork(Exception):
    """The reason why a worker cannot be forked."""


class Template:
    """The spawner's handle of a template. Poll `line` and `output`, and call `on_readable` when one is readable."""

    def __init__(self, modules: Sequence[str], env: dict[str, str], preexec: Callable[[], None]) -> None:
        self.env = env
        self.warming = True
        self.why = WARMING  # why it cannot be used; empty if it can
        self._output = b""
        self.line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX * 2)
        self.output, writing = os.pipe()  # a pipe, as workers have: Python chooses its buffering by the kind
        os.set_blocking(self.output, False)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, str(its.fileno()), *modules],
                env=env,
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
                preexec_fn=preexec,  # noqa: PLW1509  # there are no threads
            )
        except OSError:
            self.line.close()
            os.close(self.output)
            raise
        finally:
            its.close()
            os.close(writing)

    @property
    def ready(self) -> bool:
        return not self.why

    def on_readable(self, handle: int) -> None:
        """Read from a handle that is readable, and update `warming` and `why`."""
        if handle == self.output:
            if not self._drain():
                self._ended()
            return
        try:
            data = self.line.recv(MESSAGE_MAX)
        except OSError:
            data = b""
        if not data:
            self._ended()
        elif "ready" in (message := json.loads(data)):
            self.warming = False
            self.why = message["ready"]

    def fork(self, name: str, script: Script, env: dict[str, str], output: Sequence[int]) -> tuple[int, int]:
        """Fork a worker. Return its pid, and a pipe: the worker begins when something is written to it.

        Raises CannotFork with the reason if there is no worker.
        """
        if not self.ready:
            raise CannotFork(self.why)
        if names := differing(self.env, env):
            raise CannotFork(f"its {', '.join(names)} is not what the template was started with")
        going, go = os.pipe()
        order = {
            "fork": name,
            "kind": script.kind,
            "script": script.name,
            "args": script.args,
            "change": {key: value for key, value in env.items() if self.env.get(key) != value},
            "remove": [key for key in self.env if key not in env],
        }
        try:
            socket.send_fds(self.line, [json.dumps(order).encode()], [going, *output])
            answered = select.poll()  # unlike select.select it takes descriptors of 1024 and more
            answered.register(self.line, select.POLLIN)
            if not answered.poll(FORK_S * 1000):
                self.why = f"the template did not answer in {FORK_S:g} s"
                data = json.dumps({"cannot": self.why}).encode()
            else:
                data = self.line.recv(MESSAGE_MAX)
        except OSError:
            data = b""
        finally:
            os.close(going)
        if not data:
            self._ended()
        message = json.loads(data) if data else {"cannot": self.why}
        if "cannot" in message:
            os.close(go)
            raise CannotFork(message["cannot"])
        return int(message["pid"]), go

    def end(self) -> None:
        """Kill it, and close its socket and its pipe."""
        self.process.kill()
        self.process.wait()
        self.line.close()
        os.close(self.output)

    def _drain(self) -> bool:
        """Read what its imports print, which is shown only if it fails. Return False at the end of the output."""
        try:
            while data := os.read(self.output, MESSAGE_MAX):
                self._output = (self._output + data)[-OUTPUT_MAX:]
        except BlockingIOError:
            return True
        return False

    def _ended(self) -> None:
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._drain()
        last = self._output.decode("utf-8", "replace").strip().rpartition("\n")[2]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.warming = False
        self.why = f"the template ended with {how}" + (f": {last}" if last else "")


# ---------------------------------------------------------------------------------------- the process itself


def main(bare: frozenset[str]) -> None:
    """Run the template. The arguments are the number of its socket, and the modules. In a worker it does not return."""
    handle, *modules = sys.argv[1:]
    line = socket.socket(fileno=int(handle))
    spawner = os.getppid()
    gc.disable()
    environ = settings.child_environment({})  # before an import can change it
    why = _import(modules) or _unfit(line.fileno())
    _send(line, {"ready": why})
    if why:
        return
    linecache.clearcache()
    gc.freeze()  # the collector of a worker does not touch shared objects, so their memory stays shared
    while True:
        data, handles, _, _ = socket.recv_fds(line, MESSAGE_MAX, 3)
        if not data:
            return
        order = json.loads(data)
        script = Script(order["kind"], order["script"], tuple(order["args"]))
        try:
            if why := _cannot_run(script, bare):
                _send(line, {"cannot": why})
            else:
                kept = {name: value for name, value in environ.items() if name not in order["remove"]}
                _fork(line, ForkedWorker(order["fork"], script, kept | order["change"]), handles, spawner)
        finally:
            for each in handles:
                with suppress(OSError):  # in a new worker, which has closed them
                    os.close(each)


def _fork(line: socket.socket, worker: ForkedWorker, handles: list[int], spawner: int) -> None:
    reading, writing = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        _send(line, {"cannot": f"the template cannot be forked: {error.strerror}"})
        return
    if not between:
        _fork_again(writing)
        line.detach()
        become(worker, handles[1:], handles[0], spawner)
    os.close(writing)
    os.waitpid(between, 0)  # from now on its child is the spawner's
    number = os.read(reading, 20)  # empty if the fork failed
    os.close(reading)
    _send(line, {"pid": int(number)} if number else {"cannot": "the template cannot be forked twice"})


def _fork_again(writing: int) -> None:
    """Fork again, and return in the worker only. Send its pid once it has a group of its own, which a kill reaches."""
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        os.write(writing, b"%d" % os.getpid())
        os.close(writing)
    except OSError:
        os._exit(1)


def _send(line: socket.socket, message: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError):
        line.sendall(json.dumps(message).encode())


def _import(modules: Sequence[str]) -> str:
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # why: a module may raise anything; workers then import it
            return f"{module} cannot be imported: {type(error).__name__}: {error}"
    return ""


def _unfit(line: int) -> str:
    """Return why a fork would differ from a new process after these imports; empty if it would not."""
    ctypes.CDLL(None).fflush(None)  # otherwise every worker would write the buffered output again
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    trial = os.fork()  # libraries with fork handlers, such as OpenBLAS, end their threads now and start new ones later
    if not trial:
        os._exit(0)
    os.waitpid(trial, 0)
    until = time.monotonic() + SETTLE_S
    while (threads := len(list(Path("/proc/self/task").iterdir()))) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    if threads > 1:
        return f"what it imported started {threads - 1} threads, and a process with threads cannot be forked"
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "what it imported uses the GPU, which a fork cannot go on with"
    for each in open_handles():
        target = ""
        with suppress(OSError):  # the handle that listed them
            target = os.readlink(f"/proc/self/fd/{each}")  # noqa: PTH115  # Path would tidy it up
        if target.startswith(_DEVICES):
            return f"what it imported uses the GPU ({target}), which a fork cannot go on with"
        if target and each > 2 and each != line:
            return f"what it imported keeps {target} open, which workers would share"
    return ""


def _cannot_run(script: Script, bare: frozenset[str]) -> str:
    path = Path(script.name)
    if script.kind == FILE and not path.is_file():
        return f"{script.name} is not a file"
    if sys.flags.safe_path:
        return ""
    folder = path.resolve().parent if script.kind == FILE else Path.cwd()
    loaded = {name.partition(".")[0] for name in sys.modules.keys() - bare} - {*bare, *sys.builtin_module_names}
    suffixes = tuple(importlib.machinery.all_suffixes())
    try:
        found = [each for each in folder.iterdir() if each.name.partition(".")[0] in loaded]
    except OSError:
        return ""
    for each in found:
        if each.name.endswith(suffixes) if each.is_file() else (each / "__init__.py").exists():
            return f"{each} goes before a module of that name, which the template has imported"
    return ""
