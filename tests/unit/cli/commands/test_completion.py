import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.cli.program import PLIANT, Done, Running, environment, invoke

Pliant = Callable[..., Done]


def completed(env: dict[str, str], *words: str) -> list[str]:
    """Return what bash would be offered for the last of these words."""
    asked = {"_PLIANT_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([PLIANT], env={**env, **asked}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_us(shell: str) -> None:
    done = invoke("completion", shell)
    assert done.code == 0
    assert f"_PLIANT_COMPLETE={shell}_complete" in done.out


def test_the_script_is_one_that_bash_can_read() -> None:
    script = invoke("completion", "bash").out
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shell_we_do_not_know_is_bad_input() -> None:
    assert invoke("completion", "csh").code == 2


def test_commands_options_and_jobs_are_completed(running: Running, pliant: Pliant) -> None:
    for name in ("tide", "tidy", "untidy"):
        pliant("jobs", "create", name, "--workers", "2")
    env = running.env()
    assert completed(env, "pliant", "co") == ["completion", "coordinator"]
    assert completed(env, "pliant", "events", "--fo") == ["--follow"]
    assert completed(env, "pliant", "status", "tid") == ["tide", "tidy"]
    elsewhere = environment(running.home, PLIANT_COORDINATOR="http://127.0.0.1:9")
    assert completed(elsewhere, "pliant", "status", "--coordinator", running.url, "u") == ["untidy"]


def test_without_a_coordinator_or_a_token_nothing_is_offered_and_nothing_said(running: Running, tmp_path: Path) -> None:
    assert completed(environment(tmp_path, PLIANT_COORDINATOR=running.url), "pliant", "status", "t") == []
    assert completed(environment(running.home, PLIANT_COORDINATOR="http://127.0.0.1:9"), "pliant", "status", "t") == []
