import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pliant.torch.pairs import ModelArrays  # noqa: E402


def test_a_model_is_read_and_written_with_its_buffers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    arrays = ModelArrays(model).read()
    assert len(arrays) == 6  # weights and biases, the running mean and variance, and no counter of batches
    for array in arrays:
        array[...] += 1.0  # in the memory of the model
    assert float(model[1].running_mean[0]) == 1.0
    ModelArrays(model).write([np.zeros_like(each) for each in arrays])
    assert all(float(each.detach().abs().sum()) == 0.0 for each in model.parameters())


def test_bfloat16_is_averaged_in_single_precision() -> None:
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    arrays = ModelArrays(model).read()
    assert {each.dtype for each in arrays} == {np.dtype(np.float32)}
    ModelArrays(model).write([np.full_like(each, 0.5) for each in arrays])
    assert model.weight.dtype == torch.bfloat16
    assert float(model.weight.detach().float().mean()) == 0.5
