"""A state as bytes and back: what can travel, what cannot, and how it is cut into stripes."""

from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import BadInput
from pliant.train.state.flat import Leaf, flatten, leaf_sizes, restore, stripe_leaves


def as_leaf(value: object) -> Leaf | None:
    """For these tests an array of the standard library is a tensor."""
    if not isinstance(value, array):
        return None
    return Leaf(value.typecode, (len(value),), memoryview(value).cast("B"))


def from_leaf(dtype: str, shape: tuple[int, ...], content: memoryview) -> object:
    made = array(dtype)
    made.frombytes(content.tobytes())
    assert shape == (len(made),)
    return made


def there_and_back(value: object) -> Any:
    state = flatten(value, as_leaf)
    return restore(state.tree, [leaf.content for leaf in state.leaves], from_leaf)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        {0: {"step": 3}, 1: {"step": 4}},  # an optimizer's: keys are numbers
        2**80,
        -(2**63) - 1,
        2**63 - 1,
        complex(1, -2),
        float("inf"),
        deque([1, 2], 5),
        {1, 2, 3},
        Counter({30: 1, 80: 2}),
        ((), [], {}),
    ],
)
def test_what_state_dicts_hold_comes_back(value: object) -> None:
    back = there_and_back({"x": value})["x"]
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, deque):
        assert isinstance(back, deque)
        assert back.maxlen == 5


def test_true_stays_true_and_is_not_a_one() -> None:
    assert there_and_back([True, 1, 1.0]) == [True, 1, 1.0]
    assert [type(each) for each in there_and_back([True, 1, 1.0])] == [bool, int, float]


def test_mappings_keep_their_order() -> None:
    pairs = [("z", 1), ("a", 2), ("m", 3)]
    assert list(there_and_back(OrderedDict(pairs)).items()) == pairs
    assert there_and_back(defaultdict(list, {"a": [1]})) == {"a": [1]}


def test_numbers_of_numpy_are_numbers() -> None:
    assert there_and_back({"best": np.float64(0.5), "epoch": np.int32(7)}) == {"best": 0.5, "epoch": 7}


def test_tensors_travel_beside_the_tree() -> None:
    first, second = array("d", [1.5, 2.5]), array("i", [7])
    state = flatten({"a": first, "b": [second, 3]}, as_leaf)
    assert [leaf.nbytes for leaf in state.leaves] == [16, 4]
    assert state.nbytes == 20
    assert leaf_sizes(state.tree) == (16, 4)
    assert there_and_back({"a": first, "b": [second, 3]}) == {"a": first, "b": [second, 3]}


def test_leaves_are_live_memory() -> None:
    live = array("d", [1.0])
    state = flatten([live], as_leaf)
    live[0] = 9.0
    assert restore(state.tree, [leaf.content for leaf in state.leaves], from_leaf) == [array("d", [9.0])]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"ema": {"fn": print}}, "state['ema']['fn'] is a builtin_function_or_method"),
        ({"xs": [1, object()]}, "state['xs'][1] is a object"),
        ({"when": np.zeros(3)}, "state['when'] is a ndarray"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(value: object, place: str) -> None:
    with pytest.raises(BadInput, match="cannot be sent to another member") as found:
        flatten(value, as_leaf)
    assert place in found.value.why


@pytest.mark.parametrize("note", [["tensor", 5, "d", [1], 8], ["what", 1], {"a": 1}, ["dict", 3], ["integer", 5], 7])
def test_damaged_tree_is_refused(note: object) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        restore(msgspec.msgpack.encode(note), [memoryview(b"12345678")], from_leaf)


def test_tensor_of_another_size_than_announced_is_refused() -> None:
    state = flatten([array("d", [1.0])], as_leaf)
    with pytest.raises(BadInput, match="4 bytes, not 8"):
        restore(state.tree, [memoryview(b"1234")], from_leaf)


def test_tensors_out_of_order_are_refused() -> None:
    tree = msgspec.msgpack.encode(["list", [["tensor", 1, "d", [1], 8], ["tensor", 0, "d", [1], 8]]])
    with pytest.raises(BadInput, match="out of order"):
        leaf_sizes(tree)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 3))
def test_every_leaf_is_in_exactly_one_stripe(nbytes: list[int], count: int) -> None:
    found = [at for index in range(count) for at in stripe_leaves(nbytes, index, count)]
    assert found == list(range(len(nbytes)))


def test_stripes_hold_about_equally_much() -> None:
    nbytes = [100] * 30
    assert [sum(nbytes[at] for at in stripe_leaves(nbytes, index, 3)) for index in range(3)] == [1000, 1000, 1000]
    uneven = [1, 1, 1, 3000, 1, 1]
    assert sum(len(stripe_leaves(uneven, index, 3)) for index in range(3)) == 6
