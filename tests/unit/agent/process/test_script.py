import sys
from pathlib import Path

import pytest

from pliant.agent.process.script import FILE, MODULE, PROGRAM, Script, differing, per_worker


def test_a_plain_start_is_what_a_person_would_type() -> None:
    assert Script(FILE, "train.py", ("--lr", "1")).argv() == (sys.executable, "-u", "train.py", "--lr", "1")
    assert Script(MODULE, "my.train").argv() == (sys.executable, "-u", "-m", "my.train")
    assert Script(PROGRAM, "./run.sh", ("x",)).argv() == ("./run.sh", "x")


def why(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return Script(FILE, str(path)).why_not_forked("torch")


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch",
        "import os\nos.environ['A'] += 'x'\nimport torch",
        "import os\nos.environ.setdefault('A', 'b')\nimport torch",
        "import os\nos.environ.update(A='b')\nimport torch",
        "import os\nos.environ |= {'A': 'b'}\nimport torch",
        "import os\nos.environ.pop('A')\nimport torch",
        "import os\ndel os.environ['A']\nimport torch",
        "import os\nos.putenv('A', 'b')\nimport torch.distributed as dist",
        "import os\nos.unsetenv('A')\nfrom torch import nn",
        "import os as o\no.environ['A'] = 'b'\nimport torch",
        "from os import environ\nenviron['A'] = 'b'\nimport torch",
        "from os import environ as e, putenv as p\np('A', 'b')\nimport torch",
        "import os\nif True:\n    os.environ['A'] = 'b'\nimport torch",
        "import os\ntry:\n    pass\nfinally:\n    os.environ['A'] = 'b'\nimport torch",
        "import os\nwith open('x'):\n    os.environ['A'] = 'b'\nimport torch",
        "import os\nclass C:\n    os.environ['A'] = 'b'\nimport torch",
        "import os\nos.environ[name()] = 'b'\nimport torch",
        "import os\nimport transformers\nos.environ['A'] = 'b'",
        "import os\nx = [os.environ.setdefault(n, 'b') for n in 'AB']\nimport torch",
        "import os\na, os.environ['A'] = 1, 'b'\nimport torch",
        "import os\ndef f():\n    import torch\nos.environ['A'] = 'b'",
        "import os\ndef main():\n    os.environ['A'] = 'b'\n    import torch\nmain()",
        "from dotenv import load_dotenv\nload_dotenv()\nimport torch",
    ],
)
def test_a_script_that_changes_the_environment_before_it_imports_torch_is_not_forked(tmp_path: Path, text: str) -> None:
    assert why(tmp_path, text).startswith("train.py changes the environment before it imports torch (line ")


def test_the_line_is_named(tmp_path: Path) -> None:
    assert why(tmp_path, "import os\n\nos.environ['A'] = 'b'\nimport torch").endswith("(line 3)")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import torch\nimport os\nos.environ['A'] = 'b'",
        "import os, torch\nos.environ['A'] = 'b'",
        "from torch.nn import Linear\nimport os\nos.putenv('A', 'b')",
        "import os\nprint(os.environ['A'], os.environ.get('A'), os.getenv('A'))\nimport torch",
        "import os\ndef f():\n    os.environ['A'] = 'b'\nimport torch",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nimport torch",
        "import os\nos.environ.setdefault('MASTER_ADDR', 'localhost')\nimport torch",
        "import os\nos.putenv('NCCL_DEBUG', 'INFO')\nimport torch",
        "environ = {}\nenviron['A'] = 'b'\nimport torch",
        "import os\nif __name__ == '__main__':\n    import torch\n    os.environ['A'] = 'b'",
        "x = (",
        "x = 1\0",
    ],
)
def test_any_other_script_is(tmp_path: Path, text: str) -> None:
    assert why(tmp_path, text) == ""


def test_what_is_no_file_of_python_is_not_forked(tmp_path: Path) -> None:
    assert "is a program of its own" in Script(PROGRAM, "./run.sh").why_not_forked("torch")
    assert "a folder or an archive" in Script(FILE, str(tmp_path)).why_not_forked("torch")
    assert "TensorFlow starts threads" in Script(FILE, "train.py").why_not_forked("tf")
    assert "JAX starts threads" in Script(FILE, "train.py").why_not_forked("jax")


def test_a_file_or_module_that_is_not_there_is_told_by_whoever_runs_it(tmp_path: Path) -> None:
    assert Script(FILE, str(tmp_path / "none.py")).why_not_forked("torch") == ""
    for name in ("no_such_module", "no.such", "json.no", "json.decoder.no", "..", "", "sys", "json.tool"):
        assert Script(MODULE, name).why_not_forked("torch") == "", name


def test_a_module_is_found_without_running_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "elsewhere" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    early = "import os\nos.environ['A'] = 'b'\nimport torch"
    for name in ("train", "__main__"):
        (package / f"{name}.py").write_text(early, encoding="utf-8")
    assert "train.py changes the environment" in Script(MODULE, "elsewhere.inner.train").why_not_forked("torch")
    assert "__main__.py changes the environment" in Script(MODULE, "elsewhere.inner").why_not_forked("torch")
    assert Script(MODULE, "elsewhere").why_not_forked("torch") == ""
    assert "elsewhere" not in sys.modules


def test_workers_may_differ_in_what_tells_them_apart() -> None:
    ours = {"PATH": "/bin", "RANK": "0", "PLIANT_MEMBER": "a", "GONE": "x"}
    theirs = {"PATH": "/bin", "RANK": "1", "MASTER_PORT": "7", "TORCHELASTIC_RUN_ID": "j", "OMP_NUM_THREADS": "1"}
    assert differing(ours, theirs) == ["GONE", "OMP_NUM_THREADS"]
    assert per_worker("LOCAL_RANK")
    assert not per_worker("LD_PRELOAD")
