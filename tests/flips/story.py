"""One training whose bits are flipped, as `pliant run` tells it: its events, what its workers say, its audit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pliant.core.messages import Event
from pliant.wire.api import EVENTS
from unit.cli.program import PLIANT, environment

SCRIPT = Path(__file__).with_name("training.py")
PATIENCE_S = 300.0

E = TypeVar("E")


@dataclass(frozen=True)
class Plan:
    """The training, the bits to flip, and the checks of members."""

    epochs: int = 6
    flips: str = ""  # weights or gradient
    steps: Sequence[int] = ()
    verify: int = 0
    verify_slots: float = 0.0
    width: int = 32

    def environment(self, folder: Path) -> dict[str, str]:
        return {
            "FLIPS_FOLDER": str(folder),
            "FLIPS": self.flips,
            "FLIPS_STEPS": json.dumps(list(self.steps)),
            "FLIPS_EPOCHS": str(self.epochs),
            "FLIPS_VERIFY": str(self.verify),
            "FLIPS_VERIFY_SLOTS": str(self.verify_slots),
            "FLIPS_WIDTH": str(self.width),
            "OMP_NUM_THREADS": "1",
        }


@dataclass
class Story:
    """The outcome of one training."""

    code: int
    events: list[Event] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)  # what the workers that came to the end said
    flipped: dict[int, str] = field(default_factory=dict)  # by step, whose bit
    audit: dict[str, Any] = field(default_factory=dict)
    output: str = ""

    @property
    def shas(self) -> set[str]:
        return {end["sha"] for end in self.ends}

    @property
    def step_ms(self) -> float:
        return float(max((end["step_ms"] for end in self.ends), default=0.0))

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def alone(plan: Plan, folder: Path) -> Story:
    """One worker, no coordinator, nothing flipped."""
    folder.mkdir(parents=True)
    command = [sys.executable, str(SCRIPT)]
    done = _run(command, environment(folder / "home", **plan.environment(folder)))
    return Story(done.returncode, ends=[json.loads(line) for line in done.stdout.splitlines()], output=done.stderr)


def together(plan: Plan, folder: Path, workers: str) -> Story:
    """So many workers, by `pliant run`."""
    folder.mkdir(parents=True)
    known = environment(folder / "home", **plan.environment(folder))
    options = ("--job", "flips", "--workers", workers, "--max-restarts", "1000", "--json")
    done = _run([PLIANT, "run", "--mode", "live", *options, str(SCRIPT)], known)
    story = Story(done.returncode, output=done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if "event" in said:
            story.events.append(EVENTS.decode(json.dumps(said["event"]).encode()))
        elif said.get("line", "").startswith('{"sha"'):
            story.ends.append(json.loads(said["line"]))
    story.flipped = {int(path.name.partition("-")[2]): path.read_text() for path in folder.glob("flip-*")}
    story.audit = json.loads(_run([PLIANT, "audit", "flips", "--json"], known).stdout or "{}")
    return story


def _run(command: list[str], known: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
