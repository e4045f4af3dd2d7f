"""The catchers that are tried on a mutant, in order: the likely and the cheap ones first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mutants.catch import Result, Stage
from mutants.edits import ROOT
from mutants.imports import reaches

FOLDERS = ("unit/core", "unit/coordinator", "property")
MORE = (
    "unit/stores/test_sightings.py",
    "unit/torch/data/test_exactly_once_resize.py",
    "unit/train/process/test_watchdog.py",
)
NOT_OURS = ("codec", "kube")  # encodings and pods are no matter of the protocol

SEEDS_PLANTED = 150
SEEDS_SOON = 50  # of those, before the tests are tried
SEEDS_MECHANICAL = 30
SEEDS_FIRST = 4  # before the tests of other modules are tried

# How much longer than in the unmutated tree a test or a seed may take before it counts as hung. CPU time, not time.
PATIENCE = 10.0
PATIENCE_MIN_S = 3.0
PATIENCE_MAX_S = 100.0  # while nothing is measured yet


def suite() -> tuple[str, ...]:
    """The tests that look at the core and the coordinator, by their names below `tests`."""
    tests = ROOT / "tests"
    found = [path for folder in FOLDERS for path in sorted((tests / folder).rglob("test_*.py"))]
    found += [tests / name for name in MORE]
    names = [path.relative_to(tests).as_posix() for path in found if path.exists()]
    return tuple(name for name in names if not any(word in name for word in NOT_OURS))


@dataclass(frozen=True, slots=True)
class Ladder:
    """The stages for a mutant, from what a run on the unmutated tree has shown."""

    files_s: dict[str, float]  # what one test may take, by file, the quickest file first
    seed_limit_s: float
    first_seed: int

    def planted(self) -> list[Stage]:
        """For a bug against the protocol: the simulator should find it soon; if not, a test or a late schedule."""
        return [self._seeds(0, SEEDS_SOON), self._tests(tuple(self.files_s)), self._seeds(SEEDS_SOON, SEEDS_PLANTED)]

    def mechanical(self, file: str) -> list[Stage]:
        """For a mutant of that file: its own tests, a few schedules, all tests that import it, more schedules."""
        own = tuple(name for name in self.files_s if is_about(name, file))
        own = tuple(sorted(own, key=lambda name: Path(file).stem not in name))
        others = tuple(name for name in self.files_s if name not in own and reaches(name, file))
        stages = [self._tests(own), self._seeds(0, SEEDS_FIRST), self._tests(others)]
        stages.append(self._seeds(SEEDS_FIRST, SEEDS_MECHANICAL))
        return [stage for stage in stages if stage.files or stage.seeds != (0, 0)]

    def _tests(self, files: tuple[str, ...]) -> Stage:
        return Stage(files=tuple((name, self.files_s[name]) for name in files))

    def _seeds(self, start: int, stop: int) -> Stage:
        seeds = (self.first_seed + start, self.first_seed + stop)
        return Stage(seeds=seeds, seed_limit_s=self.seed_limit_s)


def unmutated(files: tuple[str, ...], first_seed: int, parts: int) -> list[Stage]:
    """Everything that any ladder may use, in so many parts of about equal cost: the tests, and shares of the seeds."""
    cuts = [first_seed + SEEDS_PLANTED * part // parts for part in range(parts + 1)]
    seeds = [Stage(seeds=cut, seed_limit_s=PATIENCE_MAX_S) for cut in pairwise(cuts)]
    return [Stage(files=tuple((name, PATIENCE_MAX_S) for name in files)), *seeds]


def measured(results: list[Result], files: tuple[str, ...], first_seed: int) -> Ladder:
    """The ladder that fits what was measured on the unmutated tree."""
    taken_s = {name: spent_s for result in results for name, spent_s in result.files_s.items()}
    slowest_s = {name: spent_s for result in results for name, spent_s in result.slowest_s.items()}
    quickest_first = sorted(files, key=lambda name: (taken_s.get(name, 0.0), name))
    return Ladder(
        files_s={name: _limit_s(slowest_s.get(name, 0.0)) for name in quickest_first},
        seed_limit_s=_limit_s(max(result.slowest_seed_s for result in results)),
        first_seed=first_seed,
    )


def _limit_s(usual_s: float) -> float:
    return max(PATIENCE_MIN_S, PATIENCE * usual_s)


def is_about(test: str, file: str) -> bool:
    """Return whether a test file is named for that source file: `test_launches_roles.py` for `launches.py`.

    The tests of a member's machine and of the supervisor are named for what these do, which takes most of their files
    each time.
    """
    source = Path(file)
    if source.parent.name in ("member", "supervisor"):
        return Path(test).parent.name == source.parent.name
    return Path(test).stem.startswith(f"test_{source.stem}")
