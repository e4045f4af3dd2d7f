import configparser

import pytest

from tidy.files import ROOT, name_of, walk
from tidy.purity import IMPURE_MODULES, impurities, shared_draws


def test_the_core_is_pure() -> None:
    found = [
        f"{name_of(path)}: {finding}"
        for path in walk(ROOT / "src/pliant/core", (".py",))
        for finding in impurities(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_the_import_contract_forbids_at_least_what_this_check_forbids() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter", encoding="utf-8")
    forbidden = config["importlinter:contract:core-is-pure"]["forbidden_modules"].split()
    assert set(IMPURE_MODULES) - set(forbidden) == set()


@pytest.mark.parametrize(
    "text",
    [
        *(f"import {module}\n" for module in IMPURE_MODULES),
        "import time as t\n",
        "import os.path\n",
        "from time import monotonic\n",
        "def f():\n    import random\n",
        "import numpy\n",
        "from numpy.typing import NDArray\n",
        "import pliant.stores\n",
        "from pliant import stores\n",
        "from pliant.wire.codec import encode\n",
        "from pliant import core_of_something\n",
        "print(1)\n",
        "open('x')\n",
        "x = hash('a')\n",
        "x = sorted(y, key=lambda a: id(a))\n",
        "def f():\n    global x\n    x = 1\n",
        "async def f(): ...\n",
    ],
)
def test_an_impurity_is_found(text: str) -> None:
    assert len(impurities(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import hashlib\nfrom collections.abc import Iterator\n",
        "from pliant.core.model.job import Job\nfrom pliant.core import grid\n",
        "from pliant.errors import BadInput\n",
        "from pliant import errors\nimport pliant.core\n",
        "self.print(1)\nstore.open()\n",
        "def __hash__(self): return 1\n",
    ],
)
def test_pure_code_is_left_alone(text: str) -> None:
    assert impurities(text) == []


def test_pliant_draws_from_generators_of_its_own() -> None:
    """It runs in the user's process, beside code that expects its own numbers after a seed."""
    found = [
        f"{name_of(path)}: {finding}"
        for path in walk(ROOT / "src/pliant", (".py",))
        for finding in shared_draws(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "x = random.uniform(0, 1)\n",
        "def f():\n    return random.sample(y, 3)\n",
        "from random import choice\n",
        "x = np.random.rand(3)\n",
        "x = numpy.random.default_rng()\n",
    ],
)
def test_a_draw_from_a_shared_generator_is_found(text: str) -> None:
    assert len(shared_draws(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "random.seed(5)\nrandom.setstate(random.getstate())\n",
        "x = random.Random().uniform(0, 1)\n",
        "chance = np.random.Generator(np.random.PCG64(5))\nchance.random()\n",
        "from random import Random\n",
    ],
)
def test_a_generator_of_its_own_is_allowed(text: str) -> None:
    assert shared_draws(text) == []
