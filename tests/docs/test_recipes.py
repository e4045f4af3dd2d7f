"""Every block of the recipes runs as it is."""

import re
from pathlib import Path
from typing import Any

import pytest

from tidy.files import ROOT

torch = pytest.importorskip("torch")

PAGE = (ROOT / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
TITLES = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
SHARED, *BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_recipe_has_a_block() -> None:
    assert len(BLOCKS) == len(TITLES)


@pytest.mark.parametrize("block", BLOCKS, ids=TITLES)
def test_a_recipe_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_CHECKPOINT_DIR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    points = torch.utils.data.TensorDataset(torch.randn(96, 4), torch.randint(0, 2, (96,)))
    names: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": points,
        "held_out": torch.utils.data.Subset(points, range(20)),
    }
    exec(SHARED + block, names)  # noqa: S102  # the page is ours
    assert names["run"].complete
