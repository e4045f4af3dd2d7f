import inspect
import pickle  # noqa: TID251  an exception that crosses a process boundary in the tests is pickled by pytest-xdist
import re

import pytest

from pliant import errors
from pliant.errors import PliantError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == errors.__name__
]


def drawn() -> list[tuple[int, str, int]]:
    """The lines of the tree in the module's docstring: depth, name, exit status."""
    assert errors.__doc__ is not None
    lines = re.findall(r"^    ( *)(\w+) +(\d+)   ", errors.__doc__, re.MULTILINE)
    return [(len(indent) // 2, name, int(status)) for indent, name, status in lines]


def real(kind: type[PliantError], depth: int = 0) -> list[tuple[int, str, int]]:
    """Of the classes here: a package may derive one of its own, which is caught as what it derives from."""
    here = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    below = [line for child in here for line in real(child, depth + 1)]
    return [(depth, kind.__name__, kind.exit_code), *below]


def test_the_tree_is_drawn_as_it_is() -> None:
    assert drawn() == real(PliantError)


def test_every_exception_is_in_the_tree_and_exported() -> None:
    assert sorted(kind.__name__ for kind in CLASSES) == sorted(errors.__all__)
    assert all(issubclass(kind, PliantError) for kind in CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_says_why_and_ends_a_command_with_a_failure(kind: type[PliantError]) -> None:
    error = kind("the disk is full")
    assert error.why == str(error) == "the disk is full"
    assert error.exit_code != 0
    assert kind.__doc__


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_the_way_to_another_process(kind: type[PliantError]) -> None:
    again = pickle.loads(pickle.dumps(kind("why")))  # noqa: S301  our own bytes
    assert type(again) is kind
    assert again.why == "why"
