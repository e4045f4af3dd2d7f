"""A trainer that needs no framework: `python -m pliant_local.trainer --steps 100 --step-s 0.05 [--checkpoint DIR]`.

It is a training script without Pliant. It reads torchrun's variables, and every step needs all peers: each sends a
number to rank 0 over TCP and receives the sum. A dead or unreachable peer stops it like a real training. The last step
is kept in a file, and a later launch continues from there.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant import settings
from pliant.errors import PliantError
from pliant.settings import TorchrunSettings

LINE_MAX = 1 << 12
PAUSE_S = 0.05
HELLO_S = 5.0  # for a peer's first message
FILE = "step.json"


class TrainerPeerLost(PliantError):
    """A peer does not answer, or sends something unexpected."""


class RankConnection:
    """A connection to a peer: one JSON object on each line."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._socket = connection
        self._peer = peer
        self._rest = b""

    def say(self, **said: object) -> None:
        try:
            self._socket.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            raise TrainerPeerLost(f"{self._peer} is lost: {error}") from error

    def hear(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            try:
                data = self._socket.recv(4096)
            except OSError as error:
                raise TrainerPeerLost(f"{self._peer} is lost: {error}") from error
            if not data:
                raise TrainerPeerLost(f"{self._peer} is lost: it closed the connection")
            self._rest += data
            if len(self._rest) > LINE_MAX:
                raise TrainerPeerLost(f"{self._peer} sent an invalid message")
        line, self._rest = self._rest.split(b"\n", 1)
        try:
            said = json.loads(line)
        except ValueError as error:
            raise TrainerPeerLost(f"{self._peer} sent an invalid message") from error
        if not isinstance(said, dict):
            raise TrainerPeerLost(f"{self._peer} sent an invalid message")
        return said

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Star:
    """The peers of one launch: rank 0 has a connection to each of the others."""

    said: TorchrunSettings
    lines: tuple[RankConnection, ...]
    first: int  # the step that rank 0 continues from

    def sum(self, step: int, value: int) -> int:
        """Return the sum of all ranks' numbers. Raises TrainerPeerLost if one is missing for this step."""
        if self.said.rank != 0:
            (line,) = self.lines
            line.say(step=step, value=value)
            return _number(line.hear(), step, "sum")
        total = value + sum(_number(line.hear(), step, "value") for line in self.lines)
        for line in self.lines:
            line.say(step=step, sum=total)
        return total

    def close(self) -> None:
        for line in self.lines:
            line.close()


def _number(said: dict[str, Any], step: int, key: str) -> int:
    if said.get("step") != step or not isinstance(said.get(key), int):
        raise TrainerPeerLost(f"a peer is not at step {step}: {said}")
    return int(said[key])


def meet(said: TorchrunSettings, first: int, wait_s: float) -> Star:
    """Connect all ranks of this launch. `first` is the step that rank 0 continues from, and sends to the others."""
    prefix = f"{said.run_id}/{said.address}:{said.port}/{said.world_size}"
    until = time.monotonic() + wait_s
    if said.rank != 0:
        line = RankConnection(_connected(said, until, wait_s), "rank 0")
        line.say(prefix=prefix, rank=said.rank)
        answer = line.hear()
        if answer.get("prefix") != prefix:
            raise TrainerPeerLost(f"at {said.address}:{said.port} is another program: {answer}")
        return Star(said, (line,), int(answer["first"]))
    if said.world_size == 1:
        return Star(said, (), first)
    lines: dict[int, RankConnection] = {}
    with socket.create_server((said.address, said.port), backlog=said.world_size) as door:
        while len(lines) < said.world_size - 1:
            door.settimeout(max(PAUSE_S, until - time.monotonic()))
            try:
                connection, where = door.accept()
            except TimeoutError:
                raise TrainerPeerLost(f"only {len(lines) + 1} of {said.world_size} came within {wait_s:g} s") from None
            connection.settimeout(HELLO_S)
            rank = _welcome(RankConnection(connection, f"{where[0]}:{where[1]}"), prefix, said.world_size, lines)
            if rank is None:
                connection.close()
                _say(f"refused a connection from {where[0]}:{where[1]}")
            else:
                connection.settimeout(wait_s)
    for line in lines.values():
        line.say(prefix=prefix, first=first)
    return Star(said, tuple(lines[rank] for rank in sorted(lines)), first)


def _welcome(line: RankConnection, prefix: str, size: int, known: dict[int, RankConnection]) -> int | None:
    """Return the rank of a new peer; None if it does not belong to this launch."""
    try:
        hello = line.hear()
    except TrainerPeerLost:
        return None
    rank = hello.get("rank")
    if hello.get("prefix") != prefix or not isinstance(rank, int) or not 0 < rank < size or rank in known:
        return None
    known[rank] = line
    return rank


def _connected(said: TorchrunSettings, until: float, wait_s: float) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection(
                (said.address, said.port), timeout=max(PAUSE_S, until - time.monotonic())
            )
        except OSError as error:
            if time.monotonic() >= until:
                raise TrainerPeerLost(f"rank 0 at {said.address}:{said.port} cannot be reached: {error}") from error
            time.sleep(PAUSE_S)
            continue
        if connection.getsockname() == connection.getpeername():
            connection.close()  # on loopback a socket can connect to itself while rank 0 does not listen yet
            time.sleep(PAUSE_S)
            continue
        connection.settimeout(wait_s)
        return connection


def read_step(folder: Path | None) -> int:
    """Return the number of finished steps; 0 without a file."""
    if folder is None:
        return 0
    try:
        return int(json.loads((folder / FILE).read_text(encoding="utf-8"))["step"])
    except FileNotFoundError:
        return 0


def write_step(folder: Path, step: int) -> None:
    """Write the number of finished steps atomically."""
    new = folder / f".{FILE}.{secrets.token_hex(4)}"
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"step": step}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / FILE)
    finally:
        with suppress(OSError):
            new.unlink()


@dataclass(frozen=True, slots=True)
class Pace:
    """The duration of a step; 0 once the file `hurry` exists."""

    step_s: float
    hurry: Path | None = None

    def wait(self) -> None:
        if self.hurry is None or not self.hurry.exists():
            time.sleep(self.step_s)


def train(said: TorchrunSettings, steps: int, pace: Pace, folder: Path | None, wait_s: float) -> None:
    """Run the remaining steps with the other ranks."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    star = meet(said, read_step(folder), wait_s)
    try:
        for step in range(star.first + 1, steps + 1):
            pace.wait()
            total = star.sum(step, step * (said.rank + 1))
            if total != step * said.world_size * (said.world_size + 1) // 2:
                raise TrainerPeerLost(f"the sum of step {step} is {total}: a rank is missing")
            if said.rank == 0 and folder is not None:
                write_step(folder, step)
            _say(f"step {step} rank {said.rank} world {said.world_size}")
    finally:
        star.close()


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # a training script reports its progress


def main() -> int:
    """Run the trainer."""
    parser = argparse.ArgumentParser(prog="python -m pliant_local.trainer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="total number of steps")
    parser.add_argument("--step-s", type=float, default=0.05, help="duration of a step")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="where the last step is kept")
    parser.add_argument("--hurry", type=Path, metavar="FILE", help="once this file exists, steps take no time")
    parser.add_argument("--wait-s", type=float, default=30.0, help="how long to wait for a peer")
    given = parser.parse_args()
    try:
        train(settings.read_torchrun(), given.steps, Pace(given.step_s, given.hurry), given.checkpoint, given.wait_s)
    except PliantError as error:
        _say(f"trainer: {error.why}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
