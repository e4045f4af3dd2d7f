"""The reference pages of the adapters against the code, as far as their frameworks are installed."""

import importlib
import inspect
import re

import pytest

from docs.test_torch_page import shown
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
