import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.client import Client
from pliant.credentials import parse_token, read_token
from pliant.errors import Unreachable
from pliant.wire.api import TokenLine
from unit.cli.program import PLIANT, Done, Running, coordinator, invoke, real

Pliant = Callable[..., Done]


def lines(pliant: Pliant) -> dict[str, dict[str, object]]:
    return {line["id"]: line for line in pliant("token", "list", "--json").json["tokens"]}


def test_a_token_is_alone_on_standard_output(pliant: Pliant) -> None:
    done = pliant("token", "create", "--scope", "join", "--job", "demo", "--days", "2", "--label", "gpu-1")
    made = parse_token(done.out.strip())
    assert done.code == 0
    assert made is not None
    line = lines(pliant)[made.id]
    assert (line["scope"], line["job"], line["label"], line["ended"]) == ("join", "demo", "gpu-1", False)
    assert line["ends_at"] == pytest.approx(float(str(line["made_at"])) + 2 * 86400)
    shown = pliant("token", "list").out
    assert f"{made.id}  join   demo" in shown
    assert made.secret not in shown + pliant("token", "list", "--json").out


def test_a_token_in_a_file_is_its_owner_s_and_is_not_printed(pliant: Pliant, tmp_path: Path) -> None:
    path = tmp_path / "reader"
    done = pliant("token", "create", "--scope", "read", "--out", str(path))
    token = read_token(path)
    assert done.out == f"Token {token.id} is in {path}.\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = pliant("token", "create", "--scope", "read", "--out", str(path), "--json").json
    assert (again["file"], again["line"]["id"]) == (str(path), read_token(path).id)
    assert "token" not in again
    assert pliant("jobs", "--token-file", str(path)).code == 0
    refused = pliant("jobs", "create", "x", "--workers", "2", "--token-file", str(path))
    assert refused.code == 6
    assert "this needs a token with scope admin; yours has scope read" in refused.err


def test_json_holds_the_token_when_nothing_else_does(pliant: Pliant) -> None:
    made = pliant("token", "create", "--scope", "read", "--ttl-s", "60", "--json").json
    assert made["token"].startswith(f"pliant_{made['line']['id']}_")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--scope", "join", "--ttl-s", "5", "--days", "1"), "--ttl-s and --days cannot be combined"),
        (("--scope", "public"), "'public' is not one of"),
        (("--scope", "join", "--ttl-s", "0"), "not in the range"),
        (("--scope", "join", "--job", "a b"), "This is not the name of a job"),
        (("--scope", "join", "--out", "/no/such/place/token"), "The folder /no/such/place does not exist"),
    ],
)
def test_a_token_that_cannot_be_is_bad_input(pliant: Pliant, args: tuple[str, ...], why: str) -> None:
    before = lines(pliant)
    done = pliant("token", "create", *args)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert lines(pliant) == before


def test_a_file_that_is_no_token_is_not_written_over(pliant: Pliant, tmp_path: Path) -> None:
    path = tmp_path / "thesis.tex"
    path.write_text("precious")
    done = pliant("token", "create", "--scope", "read", "--out", str(path))
    assert done.code == 2
    assert "exists and does not hold a token" in done.err
    assert path.read_text() == "precious"


def test_a_token_that_could_not_be_written_is_ended_again(
    pliant: Pliant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pliant.cli.coordinator.token.write_token", fails)
    done = pliant("token", "create", "--scope", "read", "--label", "unwritten", "--out", str(tmp_path / "t"))
    assert done.code == 2
    assert "No space left on device. It was revoked again." in done.err.replace("]", "")
    (line,) = (line for line in lines(pliant).values() if line["label"] == "unwritten")
    assert line["ended"]


def test_a_redirect_that_others_can_read_is_warned_of(running: Running, tmp_path: Path) -> None:
    path = tmp_path / "token"
    command = 'umask 022; "$0" token create --scope read > "$1"'
    done = subprocess.run(
        ["sh", "-c", command, PLIANT, str(path)], env=running.env(), capture_output=True, text=True, check=True
    )
    assert "other users can read the output file (mode 0644)" in done.stderr
    assert parse_token(path.read_text().strip()) is not None


def test_a_revoked_token_opens_nothing(pliant: Pliant, tmp_path: Path) -> None:
    path = tmp_path / "reader"
    pliant("token", "create", "--scope", "read", "--out", str(path))
    token = read_token(path)
    assert pliant("token", "revoke", token.id).out == f"Token {token.id} is revoked.\n"
    done = pliant("jobs", "--token-file", str(path))
    assert done.code == 6
    assert f"token {token.id} has expired" in done.err
    assert token.secret not in done.err
    assert f"{token.id}  read   all  " in pliant("token", "list").out
    assert pliant("token", "revoke", token.id, "--json").json["ended"] is True
    assert pliant("token", "revoke", "abc").code == 2


def test_one_is_not_locked_out_by_mistake(running: Running, pliant: Pliant) -> None:
    own = read_token(running.token_file).id
    done = pliant("token", "revoke", own)
    assert done.code == 2
    assert "Replace it with `pliant token rotate`" in done.err
    assert not lines(pliant)[own]["ended"]


def test_a_rotation_lets_the_old_token_go_on_for_a_while(running: Running, pliant: Pliant, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(running.token_file.read_bytes())
    old.chmod(0o600)
    done = pliant("token", "rotate", "--overlap-s", "600")
    new = read_token(running.token_file)
    assert done.code == 0
    assert new.id in done.out
    assert new.secret not in done.out
    assert read_token(old).id != new.id
    assert stat.S_IMODE(running.token_file.stat().st_mode) == 0o600
    assert pliant("jobs").code == pliant("jobs", "--token-file", str(old)).code == 0
    line = lines(pliant)[read_token(old).id]
    assert (line["ended"], line["ends_at"] is not None) == (False, True)
    assert lines(pliant)[new.id]["label"] == f"replaces {read_token(old).id}"


def test_a_rotation_without_overlap_ends_the_old_token_now(running: Running, pliant: Pliant, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(running.token_file.read_bytes())
    old.chmod(0o600)
    rotated = pliant("token", "rotate", "--overlap-s", "0", "--json").json
    assert rotated["old"]["ended"] is True
    assert "token" not in rotated
    assert pliant("jobs").code == 0
    assert pliant("jobs", "--token-file", str(old)).code == 6


@pytest.mark.parametrize("moment", ["before it was written", "before the old one ended"])
def test_a_rotation_that_was_interrupted_is_finished_by_the_next(
    running: Running, pliant: Pliant, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before = read_token(running.token_file).id
    with monkeypatch.context() as interrupted:

        def write(*_: object) -> None:
            raise KeyboardInterrupt

        def end(self: Client, token_id: str, after_s: float = 0.0) -> TokenLine:
            raise Unreachable("gone")

        if moment == "before it was written":
            interrupted.setattr("pliant.cli.coordinator.token.write_token", write)
        else:
            interrupted.setattr(Client, "expire_token", end)
        assert pliant("token", "rotate").code == (130 if moment == "before it was written" else 5)
        assert pliant("jobs").code == 0  # whatever the file holds is good
    assert pliant("token", "rotate", "--overlap-s", "0").code == 0
    assert pliant("jobs").code == 0
    now = read_token(running.token_file).id
    alive = {id_ for id_, line in lines(pliant).items() if not line["ended"] and line["scope"] == "admin"}
    assert now in alive
    assert before not in alive
    assert alive - {now} == {id_ for id_ in alive - {now} if lines(pliant)[id_]["ends_at"] is not None}


def test_a_rotated_token_is_the_coordinator_s_own_at_its_next_start(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    with coordinator(tmp_path, "--store", store) as first:
        assert (
            invoke(
                "token", "rotate", "--overlap-s", "0", "--coordinator", first.url, "--token-file", str(first.token_file)
            ).code
            == 0
        )
    with coordinator(tmp_path, "--store", store) as second:
        done = real(second.env(), "jobs")
        assert done.code == 0
        assert "There are no jobs." in done.err
