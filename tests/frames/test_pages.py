"""The reference pages of the adapters against the code, as far as their frameworks are installed."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from docs.test_model_modules_page import MODULES
from docs.test_torch_page import shown
from pliant.model_modules.work import WorkOptions, check
from tidy.files import ROOT


@pytest.mark.parametrize(
    ("name", "job", "run"),
    [
        ("jax", "JaxJob", "JaxRun"),
        ("keras", "KerasJob", "KerasRun"),
        ("tensorflow", "TensorflowJob", "TensorflowRun"),
    ],
)
def test_a_page_has_the_calls_of_its_adapter(name: str, job: str, run: str) -> None:
    pytest.importorskip(name, reason="run make frameworks")
    page = (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8")
    package = importlib.import_module(f"pliant.{name}")
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == set(package.__all__)
    calls = [
        shown("pliant", "join", package.join),
        shown("job", "train", getattr(package, job).train),
        shown("run", "step", getattr(package, run).step),
        shown("run", "evaluate", getattr(package, run).evaluate),
    ]
    assert [call for call in calls if f"`{call}`" not in page] == []
    table = page.partition("| parameter | meaning |")[2].partition("\n\n")[0]
    explained = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    assert explained == [each for each in inspect.signature(getattr(package, job).train).parameters if each != "self"]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # TensorFlow's
def test_the_model_module_in_keras_on_its_page_fits_together(tmp_path: Path) -> None:
    pytest.importorskip("keras", reason="run make frameworks")
    (tmp_path / "shown.py").write_text(MODULES[1])
    (tmp_path / "data.csv").write_text("ad,site,clicked\n" + "40,3,1\n20,1,0\n" * 9)
    options = WorkOptions("train", str(tmp_path / "shown.py"), str(tmp_path / "data.csv"))
    assert check(options)["records"] == 18
