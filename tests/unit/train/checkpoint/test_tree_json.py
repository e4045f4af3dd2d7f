"""A tree as JSON: every kind comes back as the very same bytes, and a person can read it."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import BadInput
from pliant.train.checkpoint.tree_json import json_to_tree, tensors_of, tree_to_json
from pliant.train.state.flat import flatten, leaf_sizes
from unit.train.checkpoint.states import as_leaf, strange, training


def described(value: object) -> Any:
    return json.loads(tree_to_json(flatten(value, as_leaf).tree))["state"]


def test_every_kind_comes_back_as_the_same_bytes() -> None:
    tree = flatten(strange(), as_leaf).tree
    assert json_to_tree(tree_to_json(tree)) == tree


def test_the_text_is_strict_json() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    json.loads(tree_to_json(flatten(strange(), as_leaf).tree), parse_constant=refuse)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.complex_numbers(),
    lambda below: (
        st.lists(below, max_size=4)
        | st.lists(below, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.text(max_size=2)), below)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_whatever_a_state_may_hold_comes_back_as_the_same_bytes(value: object) -> None:
    tree = flatten(value, as_leaf).tree
    assert json_to_tree(tree_to_json(tree)) == tree


def test_what_json_has_words_for_looks_as_anybody_expects() -> None:
    plain = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    assert described(plain) == plain


def test_a_training_state_reads_like_one() -> None:
    state = described_training()
    assert state["model"]["layer.0.weight"] == {
        "$tensor": "model.layer.0.weight",
        "dtype": "float32",
        "shape": [64],
        "nbytes": 256,
    }
    ((key, kept),) = state["optimizers"][0]["state"]["$dict"]
    assert (key, kept["exp_avg"]["$tensor"]) == (0, "optimizers.0.state.0.exp_avg")
    assert state["optimizers"][0]["param_groups"][0]["betas"] == {"$tuple": [0.9, 0.999]}


def described_training() -> Any:
    text = tree_to_json(training().tree)
    assert max(map(len, text.splitlines())) <= 120
    return json.loads(text)["state"]


def test_tensors_have_names_of_their_own_in_the_order_of_the_tree() -> None:
    state = flatten(strange(), as_leaf)
    tensors = tensors_of(state.tree)
    names = [tensor.name for tensor in tensors]
    assert len(set(names)) == len(names) == len(state.leaves)
    assert tuple(tensor.nbytes for tensor in tensors) == leaf_sizes(state.tree)
    assert names[:3] == ["nested.a.b", "nested.a.b~2", "nested.."]
    assert "__metadata__" not in names
    assert tensors_of(flatten(as_one(), as_leaf).tree)[0].name == "state"
    assert tensors_of(flatten({"__metadata__": as_one()}, as_leaf).tree)[0].name == "__metadata__~2"


def as_one() -> object:
    return strange()["tensors"][0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "its format is not"),
        ('{"format": "pliant state 2", "state": 1}', "its format is not"),
        ('{"format": "pliant state 1"}', "its format is not"),
        ('{"format": "pliant state 1", "state": {"$new": 1}}', r"unknown keys \$new"),
        ('{"format": "pliant state 1", "state": 18446744073709551616}', "too large"),
        ('{"format": "pliant state 1", "state": {"$float": "bits 00"}}', "no state"),
        ('{"format": "pliant state 1", "state": {"$float": "bits zz"}}', "no state"),
        ('{"format": "pliant state 1", "state": {"$complex": [1, 2]}}', "not a number"),
        ('{"format": "pliant state 1", "state": {"$bytes": "!"}}', "no state"),
        ('{"format": "pliant state 1", "state": {"$dict": [1]}}', "no state"),
        (
            '{"format": "pliant state 1", "state": {"$tensor": "x", "dtype": "f", "shape": [-1], "nbytes": 0}}',
            "not a size",
        ),
        ('{"format": "pliant state 1", "state": {"$tensor": "x", "dtype": "f", "shape": [], "nbytes": -1}}', "known"),
    ],
)
def test_what_is_no_description_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        json_to_tree(text)


def test_a_tree_of_another_version_is_not_written() -> None:
    import msgspec

    for tree in (["new", 1], ["list", [["tensor", 1, "float32", [], 4]]], ["complex", 1, 2]):
        with pytest.raises(BadInput, match="another version"):
            tree_to_json(msgspec.msgpack.encode(tree))


def test_a_nan_is_the_same_nan() -> None:
    assert described(math.nan) == {"$float": "nan"}
    assert described(-math.inf) == {"$float": "-inf"}
