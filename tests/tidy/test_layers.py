"""The contracts in .importlinter refuse what they are there to refuse, shown on small packages."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidy.files import ROOT

SOUND = {
    "errors": "",
    "core/__init__": "",
    "core/model": "import hashlib\nfrom pliant import errors\n",
    "wire/__init__": "import msgspec\nfrom pliant.core import model\n",
    "stores/__init__": "from pliant import wire\n",
    "train/__init__": "",
    "train/order": "import numpy\nfrom pliant.core import model\n",
    "coordinator/__init__": "import time\nfrom pliant import stores\n",
    "cli/__init__": "",
    "cli/main": "import click, rich\nfrom pliant import coordinator, train\n",
}

LAYERS = "Imports go one way, downwards"
PURE = "The core sees no clock, no chance, no outside world and no other package"
TORCH = "torch is imported in pliant.torch alone"
NUMPY = "numpy is imported in train, ps, records, the adapters and for pair averaging"
TOOLS = "Nothing that users install imports the developer's tools"
TERMINAL = "click and rich are imported in pliant.cli alone"


def broken_contracts(folder: Path, modules: dict[str, str]) -> list[str]:
    """Make a package of these modules, hold it against the real contracts, and return those it breaks."""
    tools = {"../pliant_sim/__init__": "", "../pliant_local/__init__": ""}
    for name, text in {"__init__": "", **tools, **modules}.items():
        path = folder / "pliant" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(ROOT / ".importlinter", folder)
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache", "--no-logo"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("Contracts:") for line in lines), done.stdout + done.stderr
    return [line.partition(" BROKEN")[0] for line in lines if " BROKEN" in line]


def test_a_sound_package_breaks_nothing(tmp_path: Path) -> None:
    assert broken_contracts(tmp_path, SOUND) == []


def test_the_layers_that_exist_later_have_their_places(tmp_path: Path) -> None:
    later = {
        "clock": "import time\n",
        "settings": "import os\n",
        "agent/__init__": "from pliant import clock, settings\n",
        "torch/__init__": "import numpy, torch\nfrom pliant import train\n",
    }
    assert broken_contracts(tmp_path, SOUND | later) == []


@pytest.mark.parametrize(
    ("planted", "contracts"),
    [
        ({"core/model": "from pliant import wire\n"}, [LAYERS, PURE]),  # wire brings msgspec along
        ({"errors": "from pliant.core import model\n"}, [LAYERS]),
        ({"coordinator/loop": "from pliant import cli\n"}, [LAYERS]),
        ({"train/order": "from pliant import stores\n"}, [LAYERS]),
        ({"extra/__init__": ""}, [LAYERS]),
        ({"torch/__init__": "", "jax/__init__": "from pliant import torch\n"}, [LAYERS]),
        ({"core/model": "import time\n"}, [PURE]),
        ({"core/model": "from random import Random\n"}, [PURE]),
        ({"core/model": "def f():\n    import os.path\n"}, [PURE]),
        ({"errors": "import logging\n", "core/model": "from pliant import errors\n"}, [PURE]),
        ({"train/order": "import torch\n"}, [TORCH]),
        ({"stores/disk": "import numpy.typing\n"}, [NUMPY]),
        ({"stores/disk": "import pliant_sim\n"}, [TOOLS]),
        ({"chaos/__init__": "", "chaos/report": "from rich import print\n"}, [TERMINAL]),
    ],
    ids=str,
)
def test_a_planted_import_is_refused(tmp_path: Path, planted: dict[str, str], contracts: list[str]) -> None:
    assert broken_contracts(tmp_path, SOUND | planted) == contracts
