"""Classes that the codec takes. It refuses others when it is made, not when the first message comes."""

from dataclasses import dataclass, make_dataclass
from enum import Enum, IntEnum
from typing import Any

import pytest

from pliant.errors import BadInput
from pliant.wire.codec import Codec, encode_state


class Plain(Enum):
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Lineage:
    step: int


@dataclass(frozen=True, slots=True)
class Gone:
    at: float


class Number(IntEnum):
    ONE = 1


@dataclass(frozen=True, slots=True, order=True)
class Sortable:
    x: int


def with_field(annotation: object, name: str = "x") -> type:
    return make_dataclass("Made", [(name, annotation)], frozen=True)


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (list[int], "messages cannot carry: ListType"),
        (set[int], "messages cannot carry: SetType"),
        (bytes, "messages cannot carry: BytesType"),
        (Any, "messages cannot carry: AnyType"),
        (complex, "Made.x has a type that messages cannot carry"),
        (tuple[list[int], ...], "messages cannot carry: ListType"),
        (dict[int, str], "messages cannot carry: DictType"),
        (dict[Plain, str], "without an order"),
        (frozenset[Plain], "without an order"),
        (frozenset[Lineage], "without an order"),
        (frozenset[tuple[str, Plain]], "without an order"),
        (frozenset[int | str], "without an order"),
        (Number, "not all strings"),
        (Lineage | Gone, "more than one dataclass"),
    ],
)
def test_a_field_that_has_no_one_form_is_refused_before_the_first_message(annotation: object, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        Codec([with_field(annotation)])


def test_a_set_of_sortable_dataclasses_is_fine() -> None:
    made = with_field(frozenset[Sortable])
    codec = Codec[Any]([made])
    assert codec.encode(made(frozenset({Sortable(2), Sortable(1)}))) == b'{"type":"Made","x":[{"x":1},{"x":2}]}'


def test_a_field_may_not_have_the_formats_own_names() -> None:
    with pytest.raises(TypeError, match="field 'type'"):
        Codec([with_field(str, "type")])
    made = with_field(str, "v")
    Codec([made])
    with pytest.raises(TypeError, match="field 'v'"):
        encode_state(made("x"))


def test_a_family_has_each_name_once_and_dataclasses_only() -> None:
    with pytest.raises(TypeError, match="Two classes named Made"):
        Codec([with_field(int), with_field(str)])
    with pytest.raises(TypeError, match="not a dataclass"):
        Codec([int])


def test_an_empty_family_knows_nothing() -> None:
    with pytest.raises(BadInput, match="not one of none"):
        Codec[Any]([]).decode(b'{"type":"Gone"}')


def test_a_class_that_refuses_a_value_says_why() -> None:
    @dataclass(frozen=True, slots=True)
    class Positive:
        x: int

        def __post_init__(self) -> None:
            if self.x <= 0:
                raise ValueError("x must be above 0")

    with pytest.raises(BadInput, match="x must be above 0"):
        Codec([Positive]).decode(b'{"type":"Positive","x":0}')
