import pytest

from pliant.cli.suggest import closest, did_you_mean, listed
from unit.cli.program import invoke


def test_an_abbreviation_goes_before_words_that_are_spelt_alike() -> None:
    names = ["--nproc-per-node", "--notice", "--preload", "--role"]
    assert closest("--nproc", names) == ["--nproc-per-node"]
    assert closest("--nprocs", names) == ["--nproc-per-node"]
    assert closest("--prelaod", names) == ["--preload"]
    assert closest("--", names) == []


def test_a_suggestion_is_a_question_and_nothing_where_no_name_is_close() -> None:
    assert did_you_mean("statsu", ["status", "run"]) == " Did you mean 'status'?"
    assert did_you_mean("re", ["replay", "report", "run"]) == " Did you mean 'replay' or 'report'?"
    assert did_you_mean("xyz", ["status", "run"]) == ""


def test_of_many_names_the_first_are_listed_and_the_others_counted() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(n) for n in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more (see `pliant jobs`)"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("statsu",), "Error: No such command 'statsu'. Did you mean 'status'?\n"),
        (("xyzzy",), "Error: No such command 'xyzzy'. `pliant --help` lists all commands.\n"),
        (("run", "--nproc", "4", "x.py"), "Error: No such option '--nproc'. Did you mean '--nproc-per-node'?\n"),
        (("run", "--nproc_per", "4"), "Error: No such option '--nproc-per'. Did you mean '--nproc-per-node'?\n"),
        (("run", "--worker", "4"), "Error: No such option '--worker'. Did you mean '--workers'?\n"),
        (("status", "--jsn"), "Error: No such option '--jsn'. Did you mean '--json'?\n"),
        (("jobs", "delte", "x"), "Error: No such command 'delte'. Did you mean 'delete'?\n"),
    ],
)
def test_misspelt_commands_and_options_are_answered_with_a_suggestion(args: tuple[str, ...], error: str) -> None:
    done = invoke(*args)
    assert done.code == 2
    assert done.err.endswith(error)
