"""The hash of tensors: any flipped bit shows, and nothing but bits, order and company does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pliant.torch.state import tensor_hash
from pliant.torch.state.tensor_hash import tensors_hash

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]


def drawn(count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    octets = torch.randint(256, (count * dtype.itemsize,), generator=torch.Generator().manual_seed(seed))
    raw = octets.to(torch.uint8)
    return (raw & 1).view(dtype) if dtype is torch.bool else raw.view(dtype)


def octets_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_every_single_flipped_bit_shows(count: int, dtype: torch.dtype) -> None:
    tensor = drawn(count, dtype)
    before = tensors_hash([tensor])
    found = {before}
    octets = octets_of(tensor)
    for at in range(len(octets)):
        for bit in range(8):
            octets[at] ^= 1 << bit
            found.add(tensors_hash([tensor]))
            octets[at] ^= 1 << bit
    assert len(found) == 1 + 8 * len(octets)
    assert tensors_hash([tensor]) == before


@pytest.mark.parametrize("beyond", [-1, 0, 1, 5])
def test_bits_show_on_both_sides_of_a_chunks_end(beyond: int) -> None:
    count = 2 * tensor_hash._CHUNK + beyond
    tensor = drawn(2 * count + 1, torch.float32)  # an odd number of halves of what is read at once
    before = tensors_hash([tensor])
    octets = octets_of(tensor)
    edge = 8 * tensor_hash._CHUNK
    for at in (0, edge - 1, edge, edge + 7, 2 * edge - 9, len(octets) - 1):
        for bit in (0, 7):
            octets[at] ^= 1 << bit
            assert tensors_hash([tensor]) != before, (at, bit)
            octets[at] ^= 1 << bit


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [2, 9, 3000])
def test_changed_signs_do_not_cancel_out(count: int, dtype: torch.dtype) -> None:
    tensor = torch.arange(1, count + 1).to(dtype)
    before = tensors_hash([tensor])
    assert tensors_hash([-tensor]) != before
    found = {before}
    for one in range(min(count, 9)):
        for other in range(one):
            twice = tensor.clone()
            twice[[one, other]] *= -1
            found.add(tensors_hash([twice]))
    pairs = min(count, 9) * (min(count, 9) - 1) // 2
    assert len(found) == 1 + pairs


def test_round_numbers_that_changed_places_show() -> None:
    """Their last bits are all zero, and only their first ones differ."""
    chance = torch.Generator().manual_seed(4)
    tensor = torch.randint(-3, 4, (2000,), generator=chance).to(torch.float64)
    before = tensors_hash([tensor])
    for at in range(1, 2000):
        if tensor[at] != tensor[at - 1]:
            swapped = tensor.clone()
            swapped[[at - 1, at]] = tensor[[at, at - 1]]
            assert tensors_hash([swapped]) != before


@given(st.integers(0, 40), st.integers(0, 2**32), st.sampled_from(DTYPES))
def test_equal_bits_give_equal_hashes(count: int, seed: int, dtype: torch.dtype) -> None:
    assert tensors_hash([drawn(count, dtype, seed)]) == tensors_hash([drawn(count, dtype, seed)])


@given(st.integers(1, 200), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=2, max_size=6))
def test_several_flipped_bits_show(count: int, flips: list[tuple[int, int]]) -> None:
    tensor = drawn(count, torch.float32)
    before, copy = tensors_hash([tensor]), tensor.clone()
    for at, bit in flips:
        octets_of(tensor)[at % (4 * count)] ^= 1 << bit
    unchanged = torch.equal(octets_of(tensor), octets_of(copy))
    assert (tensors_hash([tensor]) == before) == unchanged


def test_the_order_of_tensors_and_of_numbers_matters() -> None:
    one, other = drawn(9, torch.float32, 1), drawn(9, torch.float32, 2)
    assert tensors_hash([one, other]) != tensors_hash([other, one])
    assert tensors_hash([one]) != tensors_hash([one.flip(0)])
    far = drawn(2 * tensor_hash._CHUNK, torch.int64)
    swapped = torch.cat([far[tensor_hash._CHUNK :], far[: tensor_hash._CHUNK]])
    assert tensors_hash([far]) != tensors_hash([swapped])


def test_the_sign_of_a_zero_matters() -> None:
    assert tensors_hash([torch.tensor([0.0])]) != tensors_hash([torch.tensor([-0.0])])


def test_what_is_besides_matters() -> None:
    assert tensors_hash([torch.ones(3)], b"a") != tensors_hash([torch.ones(3)], b"b")
    assert tensors_hash([], b"a") != tensors_hash([], b"b")
    assert tensors_hash([]) == tensors_hash([])


def test_how_a_tensor_lies_in_memory_does_not_matter() -> None:
    square = drawn(35, torch.float32).view(5, 7)
    assert tensors_hash([square.t()]) == tensors_hash([square.t().contiguous()])
    for start in range(1, 9):
        part = drawn(40, torch.int16)[start : start + 11]
        assert tensors_hash([part]) == tensors_hash([part.clone()])


def test_a_parameter_with_a_gradient_and_a_number_without_dimensions_can_be_hashed() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.sum().backward()  # type: ignore[no-untyped-call]
    assert tensors_hash([param]) == tensors_hash([torch.ones(3)])
    assert tensors_hash([torch.tensor(2.0)]) != tensors_hash([torch.tensor(3.0)])


def test_a_hash_is_a_number_of_64_bits() -> None:
    found = [tensors_hash([drawn(5, torch.float32, seed)]) for seed in range(200)]
    assert len(set(found)) == 200
    assert all(0 <= each < 2**64 for each in found)
    assert max(found) > 2**63
