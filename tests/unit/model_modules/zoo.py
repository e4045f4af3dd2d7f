"""Model modules for tests, written from their functions."""

from pathlib import Path

WHOLE = {
    "header": "import torch\nfrom torch import nn\nfrom pliant.ps import SGD, Table\n",
    "custom_model": "def custom_model():\n    torch.manual_seed(0)\n    return nn.Linear(1, 1)\n",
    "loss": "def loss(labels, outputs):\n    return (outputs - labels) ** 2\n",
    "optimizer": "def optimizer():\n    return SGD(0.1)\n",
    "feed": """
def feed(records, mode):
    features = torch.tensor([[record % 100 / 100] for record in records])
    return features if mode == "predict" else (features, features * 3 + 1)
""",
    "custom_data_reader": "def custom_data_reader(source):\n    return range(int(source))\n",
}


def written(folder: Path, name: str = "line", without: str = "", **functions: str) -> str:
    """Write a module of a line y = 3 x + 1 with other functions, or without one, and return its path."""
    parts = {each: text for each, text in (WHOLE | functions).items() if each != without}
    path = folder / f"{name}.py"
    path.write_text("\n".join(parts.values()))
    return str(path)
