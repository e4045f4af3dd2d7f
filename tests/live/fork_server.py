"""A process that has imported a framework and forks members on demand: an import costs seconds, a fork milliseconds.

Its argument names the module of the scenes, which has imported the framework, and whose `warm_up` imports the rest.

It reads one JSON object a line from standard input, `{"scene", "plan", "env", "log"}`, and says on standard output
which process it started, `{"pid"}`, and in time how that ended, `{"pid", "code"}`, negative for a signal.
"""

import importlib
import json
import os
import select
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from live.reports import say
from pliant.client import Client
from pliant.credentials import make_token


def be_member(scenes: Any, order: dict[str, Any]) -> int:
    """In the child: run the scene as a script would be run, and give the exit status."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, number)
    os.environ.update(order["env"])
    try:
        getattr(scenes, order["scene"])(scenes.Plan(**order["plan"]))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:  # why: the test reads the traceback in the log, as a person would
        traceback.print_exc()
        return 1
    return 0


def fork(scenes: Any, order: dict[str, Any]) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = be_member(scenes, order)
            threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter does at its end
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    say(pid=pid)


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        say(pid=pid, code=os.waitstatus_to_exitcode(status))


def main() -> None:
    scenes = importlib.import_module(sys.argv[1])
    scenes.warm_up()
    Client(("http://127.0.0.1:9",), make_token(), patience_s=0.0).close()  # it imports some things when it is used
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    stdin = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  # nothing may be read ahead: select would not see it
    say(ready=True)
    while True:
        ready, _, _ = select.select([0, read], [], [])
        if read in ready:
            os.read(read, 4096)
            reap()
        if 0 in ready:
            line = stdin.readline()
            if not line:
                return
            fork(scenes, json.loads(line))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
