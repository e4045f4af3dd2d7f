"""The catchers, run in a process of their own on a mutated copy of the tree: tests and simulated schedules.

Called by the crew (see `mutants.crew`) as `python -m mutants.catch PLAN RESULT`, in the copy's `tests` folder and with
the copy's `src` first on the path. The plan is a ladder of stages; the first complaint ends it. Time is measured in the
process's own CPU seconds, so that a busy machine makes no mutant look caught.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import process_time
from types import FrameType

import pytest

MEMORY_MAX = 4 * 2**30  # bytes of address space: a mutant that never stops collecting things must not fill the machine


@dataclass(frozen=True, slots=True)
class Stage:
    """Some tests, or some seeds of the simulator."""

    files: tuple[tuple[str, float], ...] = ()  # each with what one test in it may take, in seconds
    seeds: tuple[int, int] = (0, 0)  # from the first to before the second
    seed_limit_s: float = 0.0


@dataclass(slots=True)
class Result:
    """The outcome of a plan. `by` names the seed or the test that failed; empty: none did."""

    by: str = ""
    how: str = ""
    cpu_s: float = 0.0
    broken: str = ""  # the catchers themselves could not be run
    files_s: dict[str, float] = field(default_factory=dict)  # CPU seconds spent in each test file
    slowest_s: dict[str, float] = field(default_factory=dict)  # the slowest test of each
    slowest_seed_s: float = 0.0


class Watch:
    """Ends the process with a result when one test, or one seed, runs far too long: a hang is caught."""

    def __init__(self, result: Result, path: Path) -> None:
        self._result = result
        self._path = path
        self._at = ""
        signal.signal(signal.SIGVTALRM, self._over)

    def start(self, at: str, limit_s: float) -> None:
        self._at = at
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _over(self, signum: int, frame: FrameType | None) -> None:
        self._result.by = self._at
        self._result.how = "does not end"
        finish(self._result, self._path)
        os._exit(0)


def finish(result: Result, path: Path) -> None:
    result.cpu_s = process_time()
    path.write_text(json.dumps(asdict(result)), encoding="utf-8")


# ------------------------------------------------------------------------------------------------- tests


class Listener:
    """A plugin: which test failed first, and how long each file took."""

    def __init__(self, watch: Watch, limits_s: dict[str, float], result: Result) -> None:
        self._watch = watch
        self._limits_s = limits_s
        self._result = result

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        from hypothesis import HealthCheck, Phase, settings  # not before pytest has made ready for it

        # Finding a failing example is enough: no member reads a smaller one.
        settings.register_profile(
            "mutants",
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        result = self._result
        file = _short(item.nodeid).partition("::")[0]
        started_s = process_time()
        self._watch.start(f"tests/{_short(item.nodeid)}", self._limits_s[file])
        try:
            return (yield)
        finally:
            self._watch.stop()
            taken_s = process_time() - started_s
            result.files_s[file] = result.files_s.get(file, 0.0) + taken_s
            result.slowest_s[file] = max(result.slowest_s.get(file, 0.0), taken_s)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._result.by:
            self._result.by = f"tests/{_short(report.nodeid)}"
            self._result.how = _last_error(report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self._result.by:
            self._result.by = f"tests/{_short(report.nodeid)}"
            self._result.how = f"cannot be collected: {_last_error(report.longreprtext)}"


def _short(nodeid: str) -> str:
    return nodeid.removeprefix("tests/")


def _last_error(text: str) -> str:
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]
    return errors[0] if errors else text.strip().rpartition("\n")[2]


def run_tests(stage: Stage, watch: Watch, result: Result) -> None:
    root = Path.cwd().parent
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cov"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # a second run finds everything imported
    options += ["-o", "timeout=0", f"--rootdir={root}", f"--config-file={root / 'pyproject.toml'}"]
    options += ["--hypothesis-profile=mutants", *[str(root / "tests" / file) for file, _ in stage.files]]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(options, plugins=[Listener(watch, dict(stage.files), result)])
    if code != pytest.ExitCode.OK and not result.by:
        if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.INTERRUPTED):
            result.by = "tests"
            result.how = f"the tests broke down: {said.getvalue()[-300:]}"
        else:
            result.broken = f"pytest ended with {code!r}: {said.getvalue()[-2000:]}"


# --------------------------------------------------------------------------------------------- simulation


def run_seeds(stage: Stage, watch: Watch, result: Result) -> None:
    watch.start("import", stage.seed_limit_s)
    try:
        from pliant_sim.run import ScheduleKind, run_kind
    except Exception as error:  # why: whatever the mutant does on import, it is seen
        result.by, result.how = "import", f"{type(error).__name__}: {error}"
        return
    for seed in range(*stage.seeds):
        started_s = process_time()
        watch.start(f"seed {seed}", stage.seed_limit_s)
        try:
            complaints = next((found for kind in ScheduleKind if (found := run_kind(kind, seed).complaints)), ())
        except Exception as error:  # why: a mutant may raise anything
            complaints = (f"{type(error).__name__}: {error}",)
        finally:
            watch.stop()
        result.slowest_seed_s = max(result.slowest_seed_s, process_time() - started_s)
        if complaints:
            result.by, result.how = f"seed {seed}", complaints[0]
            return


# ------------------------------------------------------------------------------------------------ the ladder


def climb(stages: list[Stage], path: Path) -> Result:
    """Run the stages until something is caught."""
    result = Result()
    watch = Watch(result, path)
    for stage in stages:
        if stage.files:
            run_tests(stage, watch, result)
        else:
            run_seeds(stage, watch, result)
        if result.by or result.broken:
            break
    return result


def main() -> None:
    plan, path = Path(sys.argv[1]), Path(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    stages = [Stage(**stage) for stage in json.loads(plan.read_text(encoding="utf-8"))]
    finish(climb(stages, path), path)


if __name__ == "__main__":
    main()
