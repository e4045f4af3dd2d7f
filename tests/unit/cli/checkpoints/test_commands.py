"""`pliant checkpoints`, `verify` and `export` on places: what is there, what is damaged, and what people get wrong."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from pliant.cli.checkpoints import commands as module
from pliant.core.data.ledger import Lineage
from pliant.train.checkpoint import open_storage, write_manifest
from pliant.train.checkpoint.tree_json import json_to_tree
from pliant.train.state.flat import flatten
from unit.cli.program import Done, invoke
from unit.train.checkpoint.states import FACTS, Blob, as_leaf, numbers, publish, strange, training, write


@pytest.fixture
def pliant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Commands of a member that has no job."""
    for name in ("PLIANT_JOB", "PLIANT_COORDINATOR", "PLIANT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return invoke


@pytest.fixture
def where(tmp_path: Path) -> str:
    """A place with two checkpoints, the newer one of a higher generation, and one that was not finished."""
    place = open_storage(tmp_path / "place")
    publish(place, "older", training(seed=1), 1, Lineage(2, 50, 7))
    publish(place, "newer", training(seed=2), 2, Lineage(3, 40, 8))
    write(place, "half", training())
    return str(tmp_path / "place")


def flip(where: str, name: str, ending: str = ".safetensors") -> Path:
    path = next(each for each in sorted((Path(where) / name).iterdir()) if each.name.endswith(ending))
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    return path


# ------------------------------------------------------------------------------------------------ checkpoints


def test_a_place_is_listed_newest_first(pliant: Callable[..., Done], where: str) -> None:
    done = pliant("checkpoints", where)
    assert (done.code, done.err) == (0, "")
    heads, *lines = done.out.splitlines()
    assert heads.split() == ["NAME", "STEP", "SIZE", "AGE", "MEMBERS", "STATE"]
    assert [line.split()[0] for line in lines] == ["newer", "older", "half"]
    assert lines[0].split()[1] == "40"
    assert [line.rpartition("  ")[2] for line in lines] == ["complete", "complete", "not finished"]


def test_a_program_gets_all_of_it(pliant: Callable[..., Done], where: str) -> None:
    said = pliant("checkpoints", where, "--json").json
    newer = said["checkpoints"][0]
    assert (said["storage"], said["job"]) == (where, None)
    assert newer["files"] == ["0-of-2-m-0.safetensors", "state.json", "1-of-2-m-1.safetensors"]
    assert newer["nbytes"] == sum(each.stat().st_size for each in (Path(where) / "newer").iterdir())
    assert (newer["at"], newer["cursor"], newer["generation"]) == (FACTS.at, {"epoch": 1, "position": 128}, 3)
    assert [each["ok"] for each in said["checkpoints"]] == [True, True, False]


def test_what_is_damaged_is_listed_with_what_is_wrong(pliant: Callable[..., Done], where: str) -> None:
    (Path(where) / "newer" / "state.json").unlink()
    flip(where, "older", "manifest.json")
    out = pliant("checkpoints", where).out
    assert "newer/state.json is damaged: the file is missing." in out
    assert "older/manifest.json is damaged: it is incomplete" in out
    piece = Path(where) / "newer" / "0-of-2-m-0.safetensors"
    (Path(where) / "newer" / "state.json").write_text("x")
    assert "newer/state.json is damaged: it has 1 of" in pliant("checkpoints", where).out
    os.truncate(piece, 9)
    assert "0-of-2-m-0.safetensors is damaged: it has 9 of" in pliant("checkpoints", where).out


def test_an_empty_place_says_so(pliant: Callable[..., Done], tmp_path: Path) -> None:
    for command in (("checkpoints",), ("checkpoints", "--json")):
        done = pliant(*command, str(tmp_path))
        assert done.code == 0
        assert "no checkpoints in" in done.err or done.json["checkpoints"] == []
    for other in (("verify",), ("export", "--out", "x")):
        done = pliant(*other, str(tmp_path))
        assert (done.code, done.out) == (2, "")
        assert "There is no checkpoint in" in done.err


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("./none", "There is no folder ./none"),
        ("/no/such/folder", "There is no folder /no/such/folder"),
        ("demo", "There is neither a job nor a folder demo on this machine"),
        ("a b", "There is neither a job nor a folder a b on this machine"),
        ("nonsense://x", "nonsense://x cannot be used: Protocol not known"),
    ],
)
def test_a_wrong_path_is_told_with_what_could_have_been_said(
    pliant: Callable[..., Done], said: str, answer: str
) -> None:
    for command in (("checkpoints",), ("verify",), ("export", "--out", "x")):
        done = pliant(*command, said)
        assert (done.code, done.out) == (2, "")
        assert answer in done.err


def test_nothing_named_is_asked_for(pliant: Callable[..., Done]) -> None:
    assert "Pass a job, a folder or a URL" in pliant("checkpoints").err


def test_a_folder_may_be_named_without_a_slash_and_a_checkpoint_by_its_own(
    pliant: Callable[..., Done], where: str
) -> None:
    assert len(pliant("checkpoints", "place", "--json").json["checkpoints"]) == 3
    assert len(pliant("checkpoints", f"file://{where}", "--json").json["checkpoints"]) == 3
    assert [each["name"] for each in pliant("checkpoints", f"{where}/older", "--json").json["checkpoints"]] == ["older"]
    assert pliant("verify", f"{where}/older").out.startswith("older, step 50")


def test_a_url_will_do(pliant: Callable[..., Done]) -> None:
    publish(open_storage("memory://cli/place"), "one", training())
    assert pliant("checkpoints", "memory://cli/place", "--json").json["checkpoints"][0]["name"] == "one"
    assert pliant("verify", "memory://cli/place").code == 0


# ------------------------------------------------------------------------------------------------ verify


def test_what_is_whole_is_verified(pliant: Callable[..., Done], where: str) -> None:
    done = pliant("verify", where)
    assert (done.code, done.err) == (0, "")
    assert [line.rpartition(": ")[2] for line in done.out.splitlines()] == ["intact", "intact"]
    said = pliant("verify", where, "older", "--json").json
    assert (said["ok"], [each["name"] for each in said["checkpoints"]]) == (True, ["older"])


def test_a_flipped_bit_is_found_and_the_file_is_named(pliant: Callable[..., Done], where: str) -> None:
    path = flip(where, "older")
    done = pliant("verify", where)
    assert done.code == 1
    assert done.out.splitlines()[1].endswith(": damaged")
    assert done.out.splitlines()[2] == f"  {path.name}: its SHA-256 differs from the manifest's"
    said = pliant("verify", where, "--json")
    assert (said.code, said.json["ok"]) == (1, False)
    assert [each["problems"] for each in said.json["checkpoints"]] == [
        [],
        [{"file": path.name, "problem": "its SHA-256 differs from the manifest's"}],
    ]
    assert pliant("verify", where, "newer").code == 0


def test_a_manifest_that_is_not_whole_is_damage(pliant: Callable[..., Done], where: str) -> None:
    flip(where, "older", "manifest.json")
    done = pliant("verify", where, "older")
    assert done.code == 1
    assert "manifest.json: older/manifest.json is damaged" in done.out


def test_one_that_was_not_finished_fails_if_it_is_asked_for(pliant: Callable[..., Done], where: str) -> None:
    assert pliant("verify", where, "half").code == 1
    done = pliant("verify", where, "none")
    assert done.code == 2
    assert "There is no checkpoint none in" in done.err
    assert "Available: newer, older, half" in done.err


def test_a_place_with_nothing_finished_has_nothing_to_verify(pliant: Callable[..., Done], tmp_path: Path) -> None:
    write(open_storage(tmp_path / "p"), "half", training())
    done = pliant("verify", "./p")
    assert (done.code, done.out) == (0, "")
    assert "no finished checkpoint" in done.err


# ------------------------------------------------------------------------------------------------ export


def test_a_model_is_exported_under_its_own_names(pliant: Callable[..., Done], where: str) -> None:
    done = pliant("export", where, "--out", "there")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("newer, step 40:")
    with safe_open("there/model.safetensors", "numpy") as model:
        assert sorted(model.keys()) == ["layer.0.bias", "layer.0.weight"]
        assert model.get_tensor("layer.0.bias").tobytes() == numbers(3, 3).content
        assert model.metadata() == {"format": "pt", "checkpoint": "newer", "step": "40", "job": "demo"}
    with safe_open("there/rest.safetensors", "numpy") as rest:
        assert sorted(rest.keys()) == ["optimizers.0.state.0.exp_avg", "optimizers.0.state.0.step"]
        assert rest.get_tensor("optimizers.0.state.0.exp_avg").tobytes() == numbers(64, 4).content
    text = Path("there/rest.json").read_text()
    assert json.loads(text)["step"] == "40"
    assert "model" not in json.loads(text)["state"]
    assert json_to_tree(text)
    again = pliant("export", where, "--out", "there")
    assert again.code == 2
    assert "there/model.safetensors exists already" in again.err


def test_the_model_alone_is_one_file(pliant: Callable[..., Done], where: str) -> None:
    done = pliant("export", where, "older", "--out", "deep/m.safetensors", "--json")
    assert done.json == {
        "name": "older",
        "step": 50,
        "files": {"deep/m.safetensors": Path("deep/m.safetensors").stat().st_size},
    }
    assert [each.name for each in Path("deep").iterdir()] == ["m.safetensors"]
    assert "exists already" in pliant("export", where, "--out", "deep/m.safetensors").err


def test_types_are_put_in_order_of_their_width(pliant: Callable[..., Done], tmp_path: Path) -> None:
    """As the library that made the format does it: then every tensor lies where a processor likes it."""
    model = {"flag": Blob("bool", (3,), b"\1\0\1"), "count": Blob("int64", (), bytes(8)), "w": numbers(3)}
    publish(open_storage(tmp_path / "p"), "one", flatten({"model": model}, as_leaf))
    pliant("export", "./p", "--out", "m.safetensors")
    content = Path("m.safetensors").read_bytes()
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert {name: row["data_offsets"][0] for name, row in head.items() if name != "__metadata__"} == {
        "count": 0,
        "w": 8,
        "flag": 20,
    }
    assert not Path("rest.json").exists()


def test_everything_else_in_a_state_is_exported_too(pliant: Callable[..., Done], tmp_path: Path) -> None:
    publish(open_storage(tmp_path / "p"), "one", flatten({**strange(), "model": {"w": numbers(2)}}, as_leaf))
    assert pliant("export", "./p", "--out", "there").code == 0
    rest = flatten(strange(), as_leaf)
    assert json_to_tree(Path("there/rest.json").read_text()) == rest.tree
    with safe_open("there/rest.safetensors", "numpy") as opened:
        assert len([*opened.keys()]) == len(rest.leaves)


def test_if_the_newest_is_damaged_the_one_before_is_taken_and_it_is_said(
    pliant: Callable[..., Done], where: str
) -> None:
    path = flip(where, "newer")
    done = pliant("export", where, "--out", "a")
    assert done.code == 0
    assert f"newer/{path.name} is damaged" in done.err
    assert done.out.startswith("older, step 50:")
    named = pliant("export", where, "newer", "--out", "b")
    assert (named.code, Path("b").exists()) == (2, False)
    assert f"newer/{path.name} is damaged" in named.err
    path.unlink()
    seen = pliant("export", where, "--out", "c")
    assert (seen.code, seen.out.splitlines()[0]) == (0, "older, step 50:")
    assert "newer is skipped" in seen.err
    assert "cannot be used" in pliant("export", where, "newer", "--out", "d").err
    assert "half cannot be used: not finished." in pliant("export", where, "half", "--out", "d").err
    flip(where, "older")
    last = pliant("export", where, "--out", "e")
    assert (last.code, last.out) == (2, "")
    assert "None of the checkpoints in" in last.err


def test_what_cannot_be_written_is_said(pliant: Callable[..., Done], where: str) -> None:
    pytest.importorskip("torch")
    Path("file").write_text("x")
    for out in ("file/model.safetensors", "file/x", "file/x.pt"):
        done = pliant("export", where, "--out", out)
        assert done.code == 2
        assert f"{out} cannot be written" in done.err
    assert "Pass --format torch" in pliant("export", where, "--out", "x.pt", "--format", "safetensors").err


def test_a_state_without_a_model_cannot_be_exported(pliant: Callable[..., Done], tmp_path: Path) -> None:
    publish(open_storage(tmp_path / "p"), "one", flatten({"a": numbers(1)}, as_leaf))
    done = pliant("export", "./p", "--out", "x")
    assert done.code == 2
    assert "one contains no model" in done.err


# ------------------------------------------------------------------------------------------------ shown


def test_an_age_is_counted_from_now(pliant: Callable[..., Done], tmp_path: Path) -> None:
    place = open_storage(tmp_path / "p")
    checkpoint = publish(place, "one", training())
    write_manifest(place, replace(checkpoint, name="two"), replace(FACTS, at=time.time() - 600))
    assert " 10 min " in pliant("checkpoints", "./p").out


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with module.progress("Reading x", 100) as seen:
            seen(60)
            seen(40)
        monkeypatch.undo()
    shown = ""
    with suppress(OSError):  # why: the other end of the terminal is closed; what was written arrives in pieces
        while piece := os.read(ours, 10_000).decode():
            shown += piece
    os.close(ours)
    assert "Reading x" in shown
    assert "100%" in shown
