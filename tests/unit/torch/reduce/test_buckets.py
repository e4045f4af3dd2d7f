"""The division of parameters into buckets."""

import pytest
import torch
from torch import nn

from pliant.torch.reduce import buckets as buckets_module
from pliant.torch.reduce.buckets import make_buckets

CPU = torch.device("cpu")


def params(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in shapes]


def test_a_norm_that_is_registered_after_its_layers_delays_no_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets_module, "BUCKET_BYTES", 1)
    block = [(8, 8), (8,), (8, 8), (8,), (8,)]  # two layers with biases, and the norm before them
    found = make_buckets(params(*block, *block), CPU)
    assert [each.params for each in found] == [[7], [5], [2], [0], [9], [8], [6], [4], [3], [1]]


def test_a_small_rest_joins_the_bucket_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets_module, "BUCKET_BYTES", 400)
    places, tokens, layer, norm = (2, 5), (40, 10), (10, 10), (2,)
    found = make_buckets(params(places, tokens, layer, norm), CPU)
    assert [each.params for each in found] == [[2], [1, 0, 3]]
    assert [each.numel for each in found] == [100, 412]
    assert [tuple(view.shape) for view in found[-1].views(torch.zeros(412))] == [tokens, places, norm]


def test_over_nccl_buckets_are_large_and_the_last_one_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "NCCL_FIRST_BYTES", 1)
    monkeypatch.setattr(buckets_module, "NCCL_BUCKET_BYTES", 1200)
    monkeypatch.setattr(buckets_module, "NCCL_LAST_BYTES", 500)
    found = make_buckets(params(*[(10, 10), (10,)] * 10), CPU, over_nccl=True)
    assert [len(each.params) for each in found] == [1, 3, 3, 2, 11]  # the last one has a layer, and all biases
    assert sorted(index for each in found for index in each.params) == list(range(20))


def test_over_nccl_a_model_smaller_than_the_last_bucket_is_one() -> None:
    found = make_buckets(params((8, 8), (8,), (8, 8), (8,)), CPU, over_nccl=True)
    assert [each.params for each in found] == [[2, 0, 3, 1]]


def test_the_last_bucket_has_single_precision_and_may_be_empty() -> None:
    found = make_buckets([nn.Parameter(torch.zeros(3, dtype=torch.float64))], CPU)
    assert [(each.dtype, each.params) for each in found] == [(torch.float64, [0]), (torch.float32, [])]
