"""One schedule from one seed: start everything, let faults happen, let them end, and look whether the job does."""

from __future__ import annotations

import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.model.names import AgentId
from pliant.credentials import read_token
from pliant.errors import PliantError
from pliant.stores.sqlite import SqliteStore
from pliant.wire.api import EVENTS
from schedules.faults import Fault, heal, schedule, strike
from schedules.scene import Scene, setting_for

START_S = 30.0  # until the first generation is entered
FAULTS_S = 12.0
PATIENCE_S = 60.0  # after the faults, in which the job must end
STREAM_S = 10.0
STOP_S = 15.0
PORTS = range(15000, 32000)  # below the range the system draws from, so that no connection starts from one of them
QUIET_PACE = 0.1


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one schedule."""

    seed: int
    complaints: tuple[str, ...]
    fired: dict[FaultKind, int]
    seen: dict[str, int]
    generations: int
    steps: int
    members: int
    events: int
    views: int
    acknowledged: int
    seconds: float


def run_seed(seed: int, folder: Path, faults: tuple[Fault, ...] | None = None) -> Result:
    """Call on the main thread of a process. What is left in the folder tells the story."""
    began = monotonic()
    folder.mkdir(parents=True)
    scene = Scene(setting_for(seed), folder, _free_port(seed))
    chosen = schedule(seed, FAULTS_S) if faults is None else faults
    try:
        _run(scene, chosen)
    finally:
        scene.end()
    checks = scene.checks
    return Result(
        seed=seed,
        complaints=tuple(checks.complaints),
        fired=dict(scene.fired),
        seen=checks.seen(),
        generations=checks.generations,
        steps=checks.job.durable.step if checks.job else 0,
        members=len(scene.workers),
        events=checks.revision,
        views=checks.views,
        acknowledged=len(checks.acked),
        seconds=monotonic() - began,
    )


def _run(scene: Scene, faults: tuple[Fault, ...]) -> None:
    scene.start_coordinator()
    for index in range(scene.setting.agents):
        scene.start_agent(AgentId(f"a{index}"))
    checks = scene.checks
    if not scene.run(START_S, lambda: scene.running or bool(checks.complaints)):
        checks.complain("liveness: the job did not start")
    began = scene.now
    for fault in faults:
        scene.after(fault.at_s, strike, scene, fault)
    scene.run(began + FAULTS_S, lambda: scene.ended)
    if checks.complaints:
        return
    heal(scene)
    scene.pace = QUIET_PACE
    scene.hurry()
    scene.run(scene.now + PATIENCE_S, lambda: scene.ended)
    if not checks.complaints:
        _afterwards(scene)


def _afterwards(scene: Scene) -> None:
    """Read the rest of the stream, stop the coordinator, and compare with what lies in its store."""
    checks = scene.checks
    if not scene.ended:
        up = ", ".join(mirror.id for mirror in scene.workers_up) or "stranger"
        checks.complain(f"liveness: {PATIENCE_S:g} s after the faults {up} is still there")
    try:
        last = scene.client.job(scene.job).job.revision
    except PliantError as error:
        checks.complain(f"liveness: the coordinator does not answer: {error.why}")
        return
    if not scene.run(scene.now + STREAM_S, lambda: checks.revision >= last):
        checks.complain(f"P5: the stream stays at revision {checks.revision}, the job is at {last}")
    coordinator = scene.coordinator
    assert coordinator is not None
    scene.coordinator = None
    coordinator.send_signal(signal.SIGTERM)
    try:
        code = coordinator.wait(STOP_S)
    except subprocess.TimeoutExpired:
        coordinator.kill()
        coordinator.wait()
        code = -9
    if code:
        checks.complain(f"the coordinator ended with {code}")
    logged = (scene.folder / "coordinator.log").read_text(errors="replace").splitlines()
    if wrong := [line for line in logged if " ERROR " in line or "Traceback" in line]:
        checks.complain(f"the coordinator's log has {len(wrong)} errors: {wrong[0]}")
    secret = read_token(scene.folder / "token").secret
    for path in (*scene.folder.glob("*.log"), scene.folder / "story"):
        if secret in path.read_text(errors="replace"):
            checks.complain(f"a secret is in {path.name}")
    with SqliteStore(scene.folder / "store.db") as store:
        scene.store = store
        checks.settle([EVENTS.decode(entry.data) for entry in store.events(scene.job, 0, 1_000_000)])
        checks.finished_after(scene.grid.total_steps)


def _free_port(seed: int) -> int:
    draw = Random()
    for _ in range(100):
        port = draw.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port is free for schedule {seed}")
