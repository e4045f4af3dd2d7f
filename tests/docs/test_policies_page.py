"""Every block of Python on the page about policies runs, one after the other as a reader would paste them."""

import re
from pathlib import Path
from typing import Any

import pytest

from tidy.files import ROOT

torch = pytest.importorskip("torch")

PAGE = (ROOT / "docs" / "guides" / "policies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_CHECKPOINT_DIR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    x = torch.randn(96, 4)
    names: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "dataset": torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()),
    }
    noise, rates, changing, averaging, own = BLOCKS
    exec(noise, names)  # noqa: S102  # the page is ours
    assert re.search(r"noise scale \d+ samples, measured in 3 steps", capsys.readouterr().out)
    exec(rates, names)  # noqa: S102
    assert names["optimizer"].param_groups[0]["lr"] == pytest.approx(0.4)
    exec(changing, names)  # noqa: S102
    assert re.search(r"\d+ steps, the last with a batch of (16|32)", capsys.readouterr().out)
    exec(averaging, names)  # noqa: S102
    assert names["run"].complete
    exec(own, names)  # noqa: S102
    assert names["run"].complete
    assert names["noise"].measured == 6
