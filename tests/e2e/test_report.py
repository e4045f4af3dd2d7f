"""`pliant report` against what can be seen of the workers from outside."""

import os
import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from e2e.test_run_live import SCRIPT, goes_on
from pliant.errors import PliantError
from unit.cli.program import environment, real

pytest.importorskip("torch")

LOOK_S = 0.05
SHORT = 0.01  # of all worker-seconds: what outside and inside may differ by


@dataclass
class Watched:
    """Looks at the workers of a job from outside: when each process began, and when it ended."""

    run: Launched
    began: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> "Watched":
        self._over = threading.Event()
        self._pidfds: dict[str, int] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        for pidfd in self._pidfds.values():
            os.close(pidfd)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            if (self.run.folder / "endpoint.json").exists():
                for name, pid in self.run.members().items():
                    if name not in self._pidfds and pid:
                        self._see(name, pid)
            for name, pidfd in self._pidfds.items():
                if name not in self.ended and select.select([pidfd], [], [], 0)[0]:
                    self.ended[name] = time.time()

    def _see(self, name: str, pid: int) -> None:
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
            self._pidfds[name], self.began[name] = pidfd, time.time() - age_s


def beyond_checkpoint(run: Launched) -> int:
    """Return how many durable steps there are that no checkpoint has; -1 while there is no checkpoint."""
    with suppress(OSError, PliantError), run.client() as client:
        found = client.job(run.job)
        return found.job.step - found.checkpoint.lineage.step if found.checkpoint is not None else -1
    return -1


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_worker_second_of_a_job_with_a_kill_a_resize_and_a_rollback_is_accounted_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    env = environment(tmp_path)
    options = ("--mode", "live", "--workers", "1:3", "--target", "2", "--checkpoint-every", "100")
    with Launched(tmp_path, *options, str(script), "1000000", OMP_NUM_THREADS="1") as run, Watched(run) as watched:
        first = run.has_members(2)
        goes_on(run)
        assert real(env, "resize", "demo", "3").code == 0
        run.has_members(3)
        goes_on(run)
        kill(first[min(first)])
        wait_for(lambda: min(first) not in run.members() and len(run.members()) == 3, "its replacement", 90)
        goes_on(run)
        wait_for(lambda: beyond_checkpoint(run) >= 5, "steps after a checkpoint", 90)
        before = run.members()
        for pid in before.values():
            kill(pid)
        wait_for(lambda: len(run.members()) == 3 and not before.keys() & run.members().keys(), "new ones", 90)
        goes_on(run)
        running = real(env, "report", "demo", "--json").json
        assert running["goodput"] > 0.0
        assert real(env, "cancel", "demo").code == 0
        run.process.wait(60)
        wait_for(lambda: len(watched.ended) == len(watched.began), "every member's end")
    found = real(env, "report", "demo", "--json").json
    audit = real(env, "audit", "demo", "--json").json
    for worker in found["workers"]:
        assert min(worker["seconds"].values()) >= 0.0
        assert sum(worker["seconds"].values()) == pytest.approx(worker["ended"] - worker["began"], abs=1e-6)
    assert sum(found["seconds"].values()) == pytest.approx(found["worker_seconds"])
    lived = sum(min(watched.ended[name], found["until"]) - began for name, began in watched.began.items())
    assert {worker["worker"] for worker in found["workers"]} == set(watched.began)
    assert found["worker_seconds"] == pytest.approx(lived, rel=SHORT)
    assert found["rollbacks"] == 1
    assert found["checkpoints"] >= 1
    assert found["rolled_back_steps"] == audit["rolled_back"] >= found["recomputed_steps"] > 0
    assert found["recomputed_samples"] == 32 * found["recomputed_steps"]
    assert found["seconds"]["recomputing"] > 0.0
    assert found["changes"]["planned"]["count"] >= 1
    assert found["changes"]["unplanned"]["count"] >= 2
    assert all(found["seconds"][word] > 0.0 for word in ("training", "starting", "switching", "transfer"))
    told = real(env, "report", "demo").out
    assert "demo: cancelled; " in told
    assert max(map(len, told.splitlines())) <= 80
