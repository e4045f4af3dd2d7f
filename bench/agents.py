"""A job under `pliant run` whose agents come and go, for benchmarks with real processes."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pliant.client import Client
from pliant.credentials import read_token
from pliant.wire.api import JobStatus

PLIANT = str(Path(sys.executable).with_name("pliant"))
JOB = "bench"
STAMP = struct.Struct("dd")  # what a worker writes: a time of the system's clock, and a number
PATIENCE_S = 300.0
LOOK_S = 0.05


class Agents:
    """The agents of a job. The first one has the coordinator. Each worker writes stamps into a file of its own."""

    def __init__(self, base: Path, script: Path, *arguments: str) -> None:
        self._base, self._stamps = base, base / "stamps"
        self._stamps.mkdir(parents=True)
        self._script = (str(script), str(self._stamps), *arguments)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._place: tuple[str, ...] = ()

    def begin(self, *options: str, **env: str) -> None:
        """Start the first agent."""
        self._start("first", options, env)
        endpoint = self._base / "first" / "jobs" / JOB / "endpoint.json"
        until("the coordinator", endpoint.exists)
        found = json.loads(endpoint.read_text())
        self._place = ("--coordinator", found["url"], "--token-file", found["token_file"])
        self._client = Client([found["url"]], read_token(Path(found["token_file"])))

    def add(self, agent: str, *options: str, **env: str) -> None:
        self._start(agent, (*options, *self._place), env)

    def _start(self, agent: str, options: tuple[str, ...], more: dict[str, str]) -> None:
        home = str(self._base / agent)
        env = {**os.environ, "PLIANT_HOME": home, "PLIANT_AGENT": agent, "OMP_NUM_THREADS": "1", **more}
        with (self._base / f"{agent}.log").open("wb") as log:
            command = [PLIANT, "run", "--job", JOB, *options, *self._script]
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes[agent] = process

    def drain(self, agent: str) -> None:
        self._processes[agent].send_signal(signal.SIGTERM)

    def status(self) -> JobStatus | None:
        """Return the job's status; None before it exists."""
        return self._client.job(JOB) if any(job.name == JOB for job in self._client.jobs()) else None

    def stamps(self) -> list[list[tuple[float, float]]]:
        """Return the stamps of each worker that wrote any."""
        found = []
        for file in sorted(self._stamps.iterdir()):
            content = file.read_bytes()
            found.append(list(STAMP.iter_unpack(content[: len(content) // STAMP.size * STAMP.size])))
        return [each for each in found if each]

    def close(self) -> None:
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self._processes.values():
            process.wait(PATIENCE_S)


def until(what: str, true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"timed out after {PATIENCE_S:g} s waiting for {what}")
        time.sleep(LOOK_S)
