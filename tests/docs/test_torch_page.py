"""The page about pliant.torch has every public name with its parameters and defaults, and no other."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pliant.torch
from pliant.train.live.run import LiveRun
from tidy.files import ROOT

PLAIN = (
    "join",
    "device",
    "Left",
    "NoiseScale",
    "BatchSize",
    "batch_by_noise",
    "scaled_rate",
    "warmed_up_rate",
)  # called alone
SIGNATURE = re.compile(r"^`((?:pliant|job|run)\.\w+\(.*\))`$", re.MULTILINE)


def told(page: str) -> set[str]:
    """The signatures a page shows, each on a line of its own."""
    return set(SIGNATURE.findall(page))


def shown(prefix: str, name: str, fn: Callable[..., Any]) -> str:
    """A signature as the page writes it: names and defaults, without types and without self."""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(fn).parameters.values()
        if parameter.name != "self"
    ]
    return f"{prefix}.{name}{inspect.Signature(bare)}"


def public(cls: type) -> dict[str, Any]:
    """Return the public methods and properties of a class and of those of ours that it extends."""
    ours = [each for each in reversed(cls.__mro__) if each.__module__.startswith("pliant.")]
    return {name: value for each in ours for name, value in vars(each).items() if not name.startswith("_")}


def there() -> set[str]:
    """Every call that a user can make."""
    found = {shown("pliant", name, getattr(pliant.torch, name)) for name in PLAIN}
    for prefix, cls in (("job", pliant.torch.TrainingJob), ("run", pliant.torch.Run)):
        found |= {shown(prefix, name, value) for name, value in public(cls).items() if inspect.isfunction(value)}
    return found


def test_every_call_is_on_the_page_with_its_parameters() -> None:
    page = (ROOT / "docs/reference/torch.md").read_text(encoding="utf-8")
    assert told(page) == there()


def test_every_public_name_and_attribute_has_its_place() -> None:
    page = (ROOT / "docs/reference/torch.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == set(pliant.torch.__all__)
    properties = {name for name, value in public(pliant.torch.Run).items() if isinstance(value, property)}
    set_in_init = set(re.findall(r"self\.([a-z]\w*) =", inspect.getsource(LiveRun.__init__)))
    rows = re.findall(r"^\| (`run\..*?) \|", page, re.MULTILINE)
    assert set(re.findall(r"`run\.(\w+)`", " ".join(rows))) == properties | set_in_init


def test_every_parameter_of_train_is_explained() -> None:
    page = (ROOT / "docs/reference/torch.md").read_text(encoding="utf-8")
    table = page.partition("| parameter | meaning |")[2].partition("\n\n")[0]
    explained = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    assert explained == [
        name for name in inspect.signature(pliant.torch.TrainingJob.train).parameters if name != "self"
    ]


def test_a_page_that_says_something_else_is_found() -> None:
    assert told("`run.step()`\n`other.step()`\nsee `run.step()` for it\n") == {"run.step()"}
    assert shown("run", "f", lambda self, a, *, b=1, **c: None) == "run.f(a, *, b=1, **c)"
