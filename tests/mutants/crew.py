"""The crew: a few copies of the tree, each mutated again and again, and one process at a time on each of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import BinaryIO, TypeVar

from mutants.catch import Result, Stage
from mutants.edits import ROOT, path_of

WALL_MAX_S = 1800.0  # for one process, should it wait for something for ever; CPU time is bounded from inside
COPIED = ("src", "tools", "tests")

T = TypeVar("T")


class Interrupted(Exception):
    """The run was given up: by Ctrl-C, or because a catcher could not be run."""


class Tree:
    """One copy of the source and the tests. Never used by two processes at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(ROOT / "pyproject.toml", folder)

    def put(self, texts: dict[str, str]) -> dict[str, str]:
        """Write these files; returns what they were before, to be put back."""
        before = {}
        for file, text in texts.items():
            path = path_of(file, self.folder)
            before[file] = path.read_text(encoding="utf-8")
            path.write_text(text, encoding="utf-8")
            # Bytecode is found by size and second of the change: two mutants may well have both in common.
            for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                stale.unlink()
        return before


class Crew:
    """Runs plans, `workers` at a time. Leaving it ends every process that still runs, and removes the copies."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._trees: SimpleQueue[Tree] = SimpleQueue()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._given_up = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Crew:
        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="pliant-mutants-")))
        self._pool = ThreadPoolExecutor(self._workers)
        self.copy = folder / "0"  # as it is now, until the first mutant is tried
        for number in range(self._workers):
            self._trees.put(Tree(folder / str(number)))
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._given_up = True
            for process in self._running:
                _end(process)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    def run(self, texts: dict[str, str], stages: Sequence[Stage]) -> Result:
        """Climb the ladder on a copy with these files changed."""
        tree = self._trees.get()
        before = tree.put(texts)
        try:
            return self._climb(tree.folder, stages)
        finally:
            tree.put(before)
            self._trees.put(tree)

    def run_all(self, tasks: Iterable[T], run: Callable[[T], Result], done: Callable[[T, Result], None]) -> None:
        """Run every task, and say of each what came of it, as it comes."""
        futures = {self._pool.submit(run, task): task for task in tasks}
        for future in as_completed(futures):
            result = future.result()
            if result.broken:
                raise Interrupted(result.broken)
            done(futures[future], result)

    def _climb(self, folder: Path, stages: Sequence[Stage]) -> Result:
        plan, answer, said = folder / "plan.json", folder / "result.json", folder / "said.txt"
        plan.write_text(json.dumps([asdict(stage) for stage in stages]), encoding="utf-8")
        answer.unlink(missing_ok=True)
        with said.open("wb") as output:
            process = self._start([sys.executable, "-m", "mutants.catch", str(plan), str(answer)], folder, output)
            try:
                process.wait(WALL_MAX_S)
            except subprocess.TimeoutExpired:
                return Result(by="the clock", how=f"did not end within {WALL_MAX_S:.0f} s")
            finally:
                with self._lock:
                    self._running.discard(process)
                    _end(process)
        if self._given_up:
            raise Interrupted("given up")
        if answer.exists():
            return Result(**json.loads(answer.read_text(encoding="utf-8")))
        tail = said.read_text(encoding="utf-8", errors="replace")[-500:]
        return Result(by="the process", how=f"ended with {process.returncode} and no result: {tail}")

    def _start(self, command: list[str], folder: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
        # Without what a coverage run would hand down: the copies are no part of what it measures.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        environment |= {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder / 'tools'}", "PYTHONHASHSEED": "0"}
        with self._lock:
            if self._given_up:
                raise Interrupted("given up")
            process = subprocess.Popen(
                command,
                cwd=folder / "tests",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that Ctrl-C reaches us alone, and we end the whole group
            )
            self._running.add(process)
            return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it started. Its group is its own, so no other member is hit."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
