"""Command lines that `pliant run` refuses."""

from pathlib import Path

import pytest

from unit.cli.program import invoke


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PLIANT_COORDINATOR", "PLIANT_TOKEN_FILE", "PLIANT_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--job", "../x", "--workers", "1", "no.py"), "Invalid job name"),
        (("--job", "x", "--workers", "1"), "No script given"),
        (("--job", "x", "--workers", "two", "no.py"), "'two' is neither MIN:MAX"),
        (("--job", "x", "--workers", "1", "no.py", "--lr", "1"), "There is no script 'no.py'"),
        (("--job", "x", "--workers", "1", "--lr", "1", "no.py"), "No such option '--lr'"),
        (("--job", "x", "--workers", "1", "--grace-s", "-1", "no.py"), "not in the range"),
        (
            ("--job", "x", "--workers", "1", "--token-file", "t", "-m", "no"),
            "--token-file needs an existing coordinator",
        ),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is_started(home: Path, args: tuple[str, ...], why: str) -> None:
    done = invoke("run", *args)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert list(home.iterdir()) == []


def test_sizes_that_cannot_be_are_refused_and_leave_no_job(home: Path) -> None:
    (home / "x.py").touch()
    done = invoke("run", "--job", "x", "--workers", "4:2", str(home / "x.py"))
    assert done.code == 2
    assert "--workers must be MIN:MAX with 1 <= MIN <= MAX, not 4:2" in done.err
