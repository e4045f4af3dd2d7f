"""An agent of a live job that is asked to leave: `pliant drain JOB --agent A --leave`."""

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Running, start, wait_for
from e2e.test_run_live import SCRIPT
from pliant.core.messages import Cancel
from unit.cli.program import PLIANT, environment, real

pytest.importorskip("torch")

JOB = "demo"


def run_agent(running: Running, home: Path, name: str, script: Path) -> "subprocess.Popen[str]":
    """Start `pliant run` with room for two workers, as another machine would."""
    env = environment(home) | {
        "PLIANT_AGENT": name,
        "PLIANT_COORDINATOR": running.url,
        "PLIANT_TOKEN_FILE": str(running.home / "token"),
        "OMP_NUM_THREADS": "1",
    }
    command = ["run", "--job", JOB, "--workers", "1:4", "--target", "2", "--nproc-per-node", "2", "--mode", "live"]
    return subprocess.Popen(
        [PLIANT, *command, str(script), "4000"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(300)
def test_an_agent_that_is_asked_to_leave_exits_with_0_and_its_workers_are_replaced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with start(home=tmp_path / "coordinator") as running, ExitStack() as until:
        client = running.client()

        def workers() -> dict[str, tuple[int, int]]:
            return {agent.id: (agent.wanted, agent.members) for agent in client.job(JOB).agents}

        agents = {}
        for name in ("a", "b"):
            agents[name] = run_agent(running, tmp_path / name, name, script)
            until.callback(agents[name].kill)
            wait_for(lambda: any(line.name == JOB for line in client.jobs()), "the job", 60)
        wait_for(lambda: workers() == {"a": (1, 1), "b": (1, 1)}, "a worker on each agent", 90)
        wait_for(lambda: client.job(JOB).job.step > 3, "some steps", 60)
        env: dict[str, Any] = environment(tmp_path / "user") | {"PLIANT_TOKEN_FILE": str(running.home / "token")}
        drain = ("drain", JOB, "--agent", "b", "--leave", "--why", "maintenance", "--coordinator", running.url)
        assert real(env, *drain).code == 0
        output, _ = agents["b"].communicate(timeout=60)
        assert agents["b"].returncode == 0, output
        assert "it was asked to leave (maintenance); the job goes on without it" in output
        wait_for(lambda: workers() == {"a": (2, 2)}, "its replacement", 60)
        assert not [line for line in output.splitlines() if "recomputed" in line]
        client.send(JOB, Cancel("enough"))
        agents["a"].communicate(timeout=60)
