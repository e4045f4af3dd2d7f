"""A script as people have it for torchrun, through a kill and an added agent; and what the harness would not let pass.

The other scripts need packages that the project does not: `make scripts` runs all of them.
"""

import dataclasses
from pathlib import Path

import pytest

from scripts.cases import CASES, FOLDER, Case
from scripts.story import Story
from scripts.watched import SERVES, STEP, Broken

pytestmark = pytest.mark.timeout(600)  # each starts half a dozen processes, and waits for them one after another

COUNTING = """
import itertools, os, pathlib, sys, threading
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
saved = pathlib.Path("saved")
first = int(saved.read_text()) if saved.exists() and "forget" not in sys.argv else 0
for step in itertools.count(first + 1):
    pace = float(pathlib.Path(os.environ["PACE_FILE"]).read_text())
    print(f"step {step} rank {rank} world {world} pid {os.getpid()}", flush=True)
    if rank == 0 and step % 5 == 0:
        saved.with_suffix(".new").write_text(str(step))
        saved.with_suffix(".new").replace(saved)
    if not pace:
        break
    threading.Event().wait(min(pace, 0.1))
sys.exit(3 if "fail" in sys.argv else 0)
"""


def counting(folder: Path, *args: str) -> Case:
    """A script that trains nothing, and so starts at once."""
    (folder / "counting.py").write_text(COUNTING)
    return Case("counting", (), args, folder=folder)


@pytest.mark.long
def test_a_script_for_torchrun_survives_a_kill_and_an_added_agent(tmp_path: Path) -> None:
    (ddp,) = (case for case in CASES if case.name == "ddp")
    story = Story(dataclasses.replace(ddp, second=1, machines=False), tmp_path / "ddp", seed=0)
    found = story.run()
    assert found["exit_codes"] == {"first": 0, "second": 0}
    assert found["generations"] == 3
    assert (tmp_path / "ddp" / "work" / "snapshot.pt").exists()


@pytest.mark.long
def test_a_script_that_goes_on_is_all_right(tmp_path: Path) -> None:
    story = Story(counting(tmp_path), tmp_path / "story", seed=0)
    found = story.run()
    assert (found["exit_codes"], found["generations"]) == ({"first": 0, "second": 0}, 3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "said"),
    [(("forget",), "the script began again at step 1"), (("fail",), "exit codes {'first': 1, 'second': 1}")],
    ids=["forgets", "fails"],
)
def test_a_script_that_does_not_is_found(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    with pytest.raises(Broken, match=said.replace("{", "\\{")):
        Story(counting(tmp_path, *args), tmp_path / "story", seed=0).run()


def test_every_script_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {case.name for case in CASES} | {"pace"}


def test_no_script_knows_of_pliant() -> None:
    assert [path.name for path in FOLDER.glob("*.py") if "pliant" in path.read_text().lower()] == []


def test_what_scripts_say_is_understood() -> None:
    hit = STEP.search("[vm-7-g12.0] step 34 rank 1 world 2 pid 567 loss 0.1")
    assert hit is not None
    assert hit.groups() == ("vm-7", "12", "34", "1", "2", "567")
    hit = SERVES.search("[first-g1.3.1] worker 1 serves pid 99")
    assert hit is not None
    assert hit.groups() == ("first", "1", "1", "99")
    assert STEP.search("[pliant] generation 2 launched") is None


def test_the_sizes_are_the_two_agents() -> None:
    worlds = {case.name: case.worlds for case in CASES}
    assert worlds["ddp"] == (2, 4)
    assert worlds["tf_ps"] == (2, 3)  # a chief and a parameter server are no workers
    (ps,) = (case for case in CASES if case.name == "tf_ps")
    assert ps.options(4) == ("--workers", "4:5", "--nproc-per-node", "4", "--env", "tf", "--role", "chief:1,ps:1")
    (ddp,) = (case for case in CASES if case.name == "ddp")
    assert ddp.options(2) == ("--nnodes", "1:2", "--nproc-per-node", "2")
