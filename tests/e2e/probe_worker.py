"""Run as a worker: writes down everything that could tell a forked worker from a spawned one, as one line of JSON."""

import atexit
import gc
import io
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

HANDLES = sorted(path.name for path in Path("/proc/self/fd").iterdir())


class Local:
    """Pickled by its name in __main__."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Local) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


def stream(each: Any) -> dict[str, object]:
    return {
        "kind": type(each).__name__,
        "buffer": type(each.buffer).__name__,
        "raw": type(getattr(each.buffer, "raw", each.buffer)).__name__,
        "line_buffering": each.line_buffering,
        "write_through": each.write_through,
        "seekable": each.seekable(),
        "tty": each.isatty(),
        "handle": each.fileno(),
        "name": each.name,
        "mode": each.mode,
        "encoding": each.encoding,
        "errors": each.errors,
    }


def signals() -> dict[str, str]:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    masks = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("Sig", "Shd"))}
    masks.pop("SigQ")
    masks["SigCgt"] = hex(int(masks["SigCgt"], 16) & ~(3 << 31))  # 32 and 33 are the C library's own, for its threads
    return {each.name: str(signal.getsignal(each)) for each in signal.Signals} | masks


def main_module() -> dict[str, object]:
    module = sys.modules["__main__"]
    of_python = {name: repr(value) for name, value in vars(module).items() if name.startswith("__")}
    loader = of_python.pop("__loader__")
    return {
        "first": list(vars(module))[:9],
        "same": vars(module) is globals(),
        "loader": loader.split(" at ")[0],
        **{name: value.split(" at ")[0] for name, value in of_python.items()},
    }


def scheduled() -> dict[str, object]:
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT" in name},
        "oom": Path("/proc/self/oom_score_adj").read_text(encoding="utf-8"),
    }


def randomness() -> dict[str, object]:
    found: dict[str, object] = {}
    if os.environ.get("PLIANT_PROBE_TORCH"):
        import numpy as np
        import torch

        found["numpy"] = np.random.get_state()[0]  # type: ignore[index]
        found["torch"] = [torch.get_num_threads(), torch.random.get_rng_state().shape[0]]
        found["settings"] = [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.cuda._initialized]
        found["interop"] = torch.get_num_interop_threads()
    return found


def frames() -> list[str]:
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


def interpreter() -> dict[str, object]:
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": list(sys.flags),
        "executable": [sys.executable, sys.prefix, sys.exec_prefix],
        "warnoptions": sys.warnoptions,
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "last": sorted(name for name in vars(sys) if name.startswith("last_")),
        "exception": [each is None for each in sys.exc_info()],
        "gc": [gc.isenabled(), gc.get_threshold()],
        "recursion": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "tracing": [sys.gettrace() is None, sys.getprofile() is None],
        "threads": [each.name for each in threading.enumerate()],
        "main thread": [
            threading.current_thread() is threading.main_thread(),
            threading.main_thread().native_id == os.getpid(),
            threading.main_thread().ident == threading.get_ident(),
        ],
        "locale": [locale.getlocale(), sys.getfilesystemencoding(), io.text_encoding(None)],
        "logging": [logging.getLogger().level, len(logging.getLogger().handlers)],
        "young": time.time() - logging._startTime < 30,  # type: ignore[attr-defined]
        "multiprocessing": [
            multiprocessing.current_process().name,
            multiprocessing.parent_process() is None,
            multiprocessing.get_start_method(allow_none=True),
        ],
    }


def process() -> dict[str, object]:
    mask = os.umask(0)
    os.umask(mask)
    return {
        "cwd": str(Path.cwd()),
        "umask": mask,
        "environ": sorted(os.environ.items()),
        "c environ": sorted(os.popen("env -0").read().split("\0")),  # noqa: S605
        "handles": HANDLES,
        "stdin": os.readlink("/proc/self/fd/0"),  # noqa: PTH115
        "leads its group": os.getpgid(0) == os.getpid(),
        "leads no session": os.getsid(0) == os.getsid(os.getppid()) != os.getpid(),
        "of the warden": b"pliant.agent.process.spawner" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes(),
        "comm": Path("/proc/self/comm").read_text(encoding="utf-8"),
        "dumpable": os.stat("/proc/self/mem").st_uid,  # noqa: PTH116
    }


def unlike() -> list[object]:
    """Return what must be another in every process."""
    found: list[object] = [random.random(), multiprocessing.current_process().authkey.hex(), os.getpid()]
    if "numpy" in sys.modules:
        import numpy as np

        found.append(np.random.rand())
    if "torch" in sys.modules and os.environ.get("PLIANT_PROBE_TORCH"):
        import torch

        found += [torch.initial_seed(), torch.rand(3).tolist()]
    return found


if __name__ == "__main__":
    atexit.register(print, "atexit")
    import pickle  # noqa: TID251  # the standard library's, as multiprocessing uses it for what is in __main__

    seen = {
        "frames": frames(),
        "main": main_module(),
        "interpreter": interpreter(),
        "process": process(),
        "streams": [stream(sys.stdout), stream(sys.stderr), stream(sys.stdin) | {"write_through": None}],
        "signals": signals(),
        "scheduled": scheduled(),
        "random": randomness(),
        "pickled": pickle.loads(pickle.dumps(Local(3))) == Local(3),  # noqa: S301
        "read": sys.stdin.read(),
    }
    print(json.dumps({"same": seen, "unlike": unlike()}))
