"""The blocks of the page about data run as they are."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tidy.files import ROOT

torch = pytest.importorskip("torch")

PAGE = (ROOT / "docs" / "guides" / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## ([^\n]+)$|^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TITLED = {title: block for (title, _), (_, block) in pairwise(BLOCKS) if title and block}


class Sentences(torch.utils.data.Dataset):  # type: ignore[name-defined, misc]  # torch may be absent
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.randn(1 + index % 3, 4), torch.arange(1 + index % 3) % 2


def records(folder: Path) -> tuple[list[Path], list[int]]:
    """Two files of 5 and 7 records of four numbers."""
    files, sizes = [folder / "a", folder / "b"], [5, 7]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(torch.randn(size, 4).numpy().tobytes())
    return files, sizes


def test_the_page_has_these_blocks() -> None:
    assert list(TITLED) == ["Samplers", "Shards", "Sequences of different length"]


@pytest.mark.parametrize("title", TITLED)
def test_a_block_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pliant.torch as pliant

    for name in ("PLIANT_COORDINATOR", "PLIANT_CHECKPOINT_DIR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    files, sizes = records(tmp_path)
    model = torch.nn.Linear(4, 2)
    with pliant.join() as job:
        names: dict[str, Any] = {
            "torch": torch,
            "F": torch.nn.functional,
            "WeightedRandomSampler": torch.utils.data.WeightedRandomSampler,
            "pad_sequence": torch.nn.utils.rnn.pad_sequence,
            "job": job,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "dataset": Sentences() if title.startswith("Sequences") else torch.randn(20, 4),
            "weights": [1.0] * 20,
            "files": files,
            "sizes": sizes,
            "RECORD_BYTES": 16,
        }
        exec(TITLED[title], names)  # noqa: S102  # the page is ours
        run = names["run"]
        for x in run:
            model(x).mean().backward()
            run.step()
    assert run.complete
