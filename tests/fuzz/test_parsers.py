"""Every parser on kept and new damaged inputs: only its declared errors, no hang, no growth, no change of state."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz import everything, live
from fuzz.kept import KEPT
from fuzz.parser import Parser, run

CASES = 200


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("parser", everything.PARSERS, ids=[parser.name for parser in everything.PARSERS])
def test_a_damaged_input_is_refused_as_declared(parser: Parser) -> None:
    found = run(parser, CASES, 0, KEPT.get(parser.name, ()))
    assert found.wrong == []
    assert found.accepted or parser.always_ends, "none of the inputs was valid, so little is reached"


def test_damaged_requests_are_answered_or_cut_off_and_change_nothing(tmp_path: Path) -> None:
    found = live.run(tmp_path, CASES, 0)
    assert found.wrong == []
    assert found.accepted


def test_each_parser_has_a_name_of_its_own_and_each_kept_case_a_parser() -> None:
    names = [parser.name for parser in everything.PARSERS]
    assert len({*names}) == len(names)
    assert KEPT.keys() <= {*names}


def test_a_parser_that_hangs_raises_changes_or_grows_is_found() -> None:
    kept: list[bytes] = []
    level = [0]

    def change(_: bytes) -> None:
        level[0] += 1
        raise ValueError

    def grow(data: bytes) -> None:
        kept.append(bytes(1 << 22) + data)

    corpus = [b"1"]
    wrong = {
        "raises": Parser("raises", lambda data: int(data.decode("latin-1")), lambda: corpus),
        "changes": Parser("changes", change, lambda: corpus, (ValueError,), lambda: level[0]),
        "grows": Parser("grows", grow, lambda: corpus),
    }
    assert all(run(parser, 50, 0).wrong for parser in wrong.values())
    assert not run(
        Parser("refuses", lambda data: int(data.decode("latin-1")), lambda: corpus, (ValueError,)), 50, 0
    ).wrong
