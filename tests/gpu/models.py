"""The models of `make gpu`, their data and optimizers, on a GPU. On a CPU they are tiny, to try the scripts."""

from __future__ import annotations

import resource
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

NAMES = ("10M", "100M", "gpt", "1B")
WIDTHS = {"cuda": {"10M": 1024, "100M": 3200, "1B": 8192}, "cpu": {"10M": 32, "100M": 64, "1B": 256}}
DEPTHS = {"10M": 10, "100M": 10, "1B": 15}
GPT_SHAPES = {"cuda": (32000, 1024, 24, 256), "cpu": (64, 32, 2, 16)}  # vocabulary, width, layers, length


class GPT(nn.Module):
    """A decoder of transformer layers, of about 350 M parameters on a GPU."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        found: Tensor = self.head(self.layers(self.tokens(x) + self.places[: x.shape[1]], mask, is_causal=True))
        return found


def build(name: str, device: torch.device) -> nn.Module:
    """Return the model, with the same weights in every process."""
    torch.manual_seed(0)
    if name == "gpt":
        return GPT(*GPT_SHAPES[device.type]).to(device)
    width = WIDTHS[device.type][name]
    layers = [layer for _ in range(DEPTHS[name]) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers).to(device)


def mlp_parameters(name: str, kind: str) -> int:
    """Return the number of parameters of a model other than gpt, on a device of this kind."""
    width = WIDTHS[kind][name]
    return DEPTHS[name] * width * (width + 1)


class Points(Dataset[Any]):
    """Samples that stay on the device. Read in order, a batch is a view, which costs neither side anything."""

    def __init__(self, name: str, count: int, device: torch.device) -> None:
        if name == "gpt":
            vocabulary, _, _, length = GPT_SHAPES[device.type]
            self.x = torch.randint(0, vocabulary, (count, length + 1), device=device)
        else:
            self.x = torch.randn(count, WIDTHS[device.type][name], device=device)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        return self.x[index]

    def __getitems__(self, indices: list[int]) -> Tensor:
        first, last = indices[0], indices[-1]
        if indices == list(range(first, last + 1)):
            return self.x[first : last + 1]
        return self.x[torch.tensor(indices, device=self.x.device)]


def one_tensor(samples: Any) -> Any:
    """Return a batch that the data set made itself as it is, and stack single samples."""
    return samples if isinstance(samples, Tensor) else torch.stack(samples)


def loss_of(name: str, model: nn.Module, x: Tensor) -> Tensor:
    if name == "gpt":
        with torch.autocast(x.device.type, torch.bfloat16):
            scores = model(x[:, :-1])
        return cross_entropy(scores.flatten(0, 1).float(), x[:, 1:].flatten())
    found: Tensor = (model(x) - x).square().mean()
    return found


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "gpt":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)


# --------------------------------------------------------------------------------------------------- the device


def use(kind: str) -> torch.device:
    """Return the device of this process. All workers share the first GPU if there are fewer GPUs than workers."""
    if kind == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    return device


def wait_for_device(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_mb(device: torch.device) -> float:
    """Return the most memory that the tensors of this process had on the GPU; on a CPU, of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
