"""Members of a world in processes of their own, for tests of what they do to one another.

with crew("a", "b", "c") as members:
    introduce(1, members)
    wire(1, members)
"""

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("member.py")
PATIENCE_S = 60.0  # for what takes a moment; long, because the machines we run on are shared


@dataclass
class Reply:
    """The future reply to one command."""

    done: threading.Event = field(default_factory=threading.Event)
    said: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0

    def wait(self) -> dict[str, Any]:
        assert self.done.wait(PATIENCE_S), "there was no answer"
        return self.said

    def answer(self) -> Any:
        said = self.wait()
        assert "answer" in said, said
        return said["answer"]

    def broken(self) -> dict[str, Any]:
        said = self.wait()
        assert "broken" in said, said
        return said


class Member:
    def __init__(self, name: str) -> None:
        self.name = name
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL", "GLOO_LOG_LEVEL": "FATAL"}
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._numbers = itertools.count()
        self._replies: dict[int, Reply] = {}
        self._hello = Reply()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def address(self) -> str:
        return str(self._hello.wait()["address"])

    def start(self, do: str, **what: object) -> Reply:
        number = next(self._numbers)
        reply = self._replies[number] = Reply()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": number, "do": do, **what}) + "\n")
        self.process.stdin.flush()
        return reply

    def reduce(self, generation: int, length: int = 10, times: int = 1, dtype: str = "float32") -> Reply:
        return self.start("reduce", generation=generation, length=length, times=times, dtype=dtype)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        elif number == signal.SIGKILL:
            self.process.wait()

    def leave(self) -> int:
        """Let it come to its end by itself; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("[Gloo]"):  # torch 2.9 prints its connections there
                continue
            said = json.loads(line)
            reply = self._replies.pop(said["id"]) if "id" in said else self._hello
            reply.said, reply.at = said, time.monotonic()
            reply.done.set()


@contextmanager
def crew(*names: str) -> Iterator[list[Member]]:
    members = [Member(name) for name in names]
    try:
        yield members
    finally:
        for member in members:
            member.end()


def introduce(generation: int, members: Sequence[Member], told: Sequence[Member] | None = None) -> None:
    """Return what the coordinator does: give all of them, or those who are `told`, the key and the addresses."""
    key = secrets.token_hex(32)
    addresses = {member.name: member.address for member in members}
    for reply in [m.start("know", generation=generation, key=key, addresses=addresses) for m in told or members]:
        reply.answer()


def start_wiring(generation: int, members: Sequence[Member], world: Sequence[Member] | None = None) -> list[Reply]:
    names = [member.name for member in world or members]
    return [member.start("wire", generation=generation, members=names) for member in members]


def wire(generation: int, members: Sequence[Member]) -> None:
    introduce(generation, members)
    for reply in start_wiring(generation, members):
        reply.answer()
