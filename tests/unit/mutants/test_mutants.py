"""The program that plants bugs (`make mutants`): its edits fit the source, its mutants are what they say."""

import ast
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import pytest

from mutants import harmless, ladder, mechanical, report
from mutants.bugs import Planted
from mutants.catch import Result, Stage
from mutants.crew import Crew, Interrupted
from mutants.edits import ROOT, Edit, Misplaced, mutated, path_of
from mutants.imports import reaches
from mutants.mechanical import Mutant
from mutants.planted import PLANTED

SMALL = '''
"""A few lines with something for every kind of mutant."""

LIMIT = 3


def f(a: int, xs: list[int]) -> int:
    if a < LIMIT:
        return 0
    if not xs and a:
        a = 1
    elif a == 2:
        a += 2
    else:
        xs.append(a)
    b = a if a > 1 else -a
    while b >= 1 or xs:
        b -= 1
    assert b is not None
    match a:
        case 1 if b:
            pass
    return max(x for x in xs[: b + 1] if x) + sum(range(a))  # ä


class C:
    def g(self) -> bool:
        self.x = 1
        return self.x == 1
'''


def text_of(file: str) -> str:
    return path_of(file, ROOT).read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------------------- planted bugs


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_the_source_as_it_is_now(bug: Planted) -> None:
    for file, text in mutated(bug.edits, ROOT).items():
        assert text != text_of(file)
        ast.parse(text)


def test_a_planted_bug_uses_no_name_that_is_not_there(tmp_path: Path) -> None:
    """Else it would be caught for a reason that has nothing to do with the protocol."""
    for number, bug in enumerate(PLANTED):
        for file, text in mutated(bug.edits, ROOT).items():
            (tmp_path / f"{number}_{file.replace('/', '_')}").write_text(text, encoding="utf-8")
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,E9", str(tmp_path)]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_planted_bugs_are_told_apart_and_say_what_they_break() -> None:
    assert [name for name, count in Counter(bug.name for bug in PLANTED).items() if count > 1] == []
    assert all(bug.rule and bug.what.endswith(".") for bug in PLANTED)


def test_the_protocol_s_fifteen_counterexamples_are_all_planted() -> None:
    cited = {word.strip(",") for bug in PLANTED for word in bug.rule.split()}
    assert {f"H{number}" for number in range(1, 16)} - cited == set()
    assert len(PLANTED) >= 25


@pytest.mark.parametrize("text", ["nothing of the kind", "twice twice"])
def test_an_edit_that_does_not_fit_says_where(text: str) -> None:
    with pytest.raises(Misplaced, match=r"core/job/decide\.py must contain this text exactly once"):
        Edit("core/job/decide.py", "twice", "once").apply(text)


def test_several_edits_of_one_file_add_up() -> None:
    first = text_of("core/data/grid.py").splitlines()[0]
    edits = (Edit("core/data/grid.py", first, "# once"), Edit("core/data/grid.py", "# once", '"""Twice.'))
    assert mutated(edits, ROOT)["core/data/grid.py"].startswith('"""Twice.\n')


# ------------------------------------------------------------------------------------------ mechanical mutants


def test_a_mutant_is_valid_python_and_differs_in_one_place() -> None:
    mutants = mechanical.mutants_of("small.py", SMALL)
    assert {mutant.kind for mutant in mutants} == {
        mechanical.NEGATED,
        mechanical.GUARD,
        mechanical.OFF_BY_ONE,
        mechanical.SWAPPED,
        mechanical.DROPPED,
    }
    for mutant in mutants:
        text = mutant.apply(SMALL)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(SMALL)), mutant
        data = SMALL.encode()
        assert text.encode()[: mutant.start] == data[: mutant.start]
        assert text.encode().endswith(data[mutant.stop :])
        assert data[mutant.start : mutant.stop].decode() == mutant.old != mutant.new


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (mechanical.GUARD, "if a < LIMIT: return 0 -> pass"),
        (mechanical.NEGATED, "a < LIMIT -> (not (a < LIMIT))"),
        (mechanical.OFF_BY_ONE, "< -> <="),
        (mechanical.OFF_BY_ONE, "3 -> 4"),
        (mechanical.OFF_BY_ONE, "3 -> 2"),
        (mechanical.OFF_BY_ONE, "b + 1 -> b + 1 + 1"),
        (mechanical.OFF_BY_ONE, "a -> a + 1"),
        (mechanical.NEGATED, "not xs -> (xs)"),
        (mechanical.NEGATED, "x -> (not (x))"),
        (mechanical.NEGATED, "b is not None -> (not (b is not None))"),
        (mechanical.NEGATED, "self.x == 1 -> (not (self.x == 1))"),
        (mechanical.SWAPPED, "and -> or"),
        (mechanical.SWAPPED, "a == 2 -> (not (a == 2))"),
        (mechanical.SWAPPED, "a > 1 -> (not (a > 1))"),
        (mechanical.SWAPPED, "max -> min"),
        (mechanical.DROPPED, "xs.append(a) -> pass"),
        (mechanical.DROPPED, "self.x = 1 -> pass"),
        (mechanical.DROPPED, "b -= 1 -> pass"),
    ],
)
def test_every_kind_of_change_is_among_them(kind: str, change: str) -> None:
    assert [m for m in mechanical.mutants_of("small.py", SMALL) if (m.kind, m.change) == (kind, change)]


def test_mutants_that_look_alike_are_numbered() -> None:
    mutants = mechanical.mutants_of("small.py", "x = [1, 1]\n")
    assert [mutant.change for mutant in mutants] == ["1 -> 0", "1 -> 2", "1 -> 0 (#2)", "1 -> 2 (#2)"]


@pytest.mark.parametrize(
    "text",
    [
        "from typing import Literal\nx: Literal[1]\n",
        "@cache(maxsize=3)\ndef f(x: Literal[2]) -> Literal[1]: ...\n",
        "match x:\n    case 1: ...\n",
        "f'{1 if x else 2}'\n",
        "while True: ...\n",
        "if TYPE_CHECKING:\n    import x\n",
        "assert_never(x)\n",
    ],
)
def test_what_decides_nothing_is_left_alone(text: str) -> None:
    assert mechanical.mutants_of("small.py", text) == []


@cache
def drawn(seed: int) -> list[Mutant]:
    return mechanical.draw(mechanical.core(), 100, seed)


@pytest.mark.long
def test_the_draw_is_fixed_by_its_seed_and_fair_to_the_files() -> None:
    assert len(set(drawn(0))) == 100
    assert drawn(0) == mechanical.draw(mechanical.core(), 100, 0)
    assert drawn(0) != drawn(1)
    mutants = {file: mechanical.mutants_of(file, text) for file, text in mechanical.core().items()}
    lines = {file: len({mutant.line for mutant in found}) for file, found in mutants.items()}
    share = Counter(mutant.file for mutant in drawn(0))
    for file, count in lines.items():
        assert abs(share[file] - 100 * count / sum(lines.values())) <= 1
    assert all(mechanical.is_valid(mutant, text_of(mutant.file)) for mutant in drawn(0))


def test_a_change_elsewhere_moves_no_mutant_in_or_out_of_the_draw() -> None:
    def keys(text: str) -> set[tuple[str, str, str, str]]:
        return {mutant.key for mutant in mechanical.draw({"core/member/control_words.py": text}, 20, 0)}

    text = text_of("core/member/control_words.py")
    assert keys(f"# one line more\n{text}") == keys(text)


def test_what_is_no_python_any_more_is_not_drawn() -> None:
    mutant = replace(mechanical.mutants_of("small.py", "x = 1\n")[0], new="(")
    assert not mechanical.is_valid(mutant, "x = 1\n")


def test_the_diff_of_a_mutant_is_its_line() -> None:
    mutant = next(m for m in mechanical.mutants_of("small.py", SMALL) if m.change == "3 -> 4")
    assert mutant.diff(SMALL) == ("LIMIT = 3", "LIMIT = 4")
    matcher = SequenceMatcher(a=SMALL.splitlines(), b=mutant.apply(SMALL).splitlines())
    assert [block[0] for block in matcher.get_opcodes() if block[0] != "equal"] == ["replace"]


# ----------------------------------------------------------------------------------------------- harmless ones


def test_every_reason_is_about_a_mutant_that_exists_and_says_something() -> None:
    texts = mechanical.core()
    keys = {mutant.key for file, text in texts.items() for mutant in mechanical.mutants_of(file, text)}
    for entry in harmless.read():
        for change in entry.changes:
            assert (entry.file, entry.line, entry.kind, change) in keys, (
                f"no mutant of {entry.file} is like that any more: {entry.line!r}, {entry.kind}, {change!r}"
            )
        assert len(entry.why) > 20


def test_a_reason_is_found_for_its_mutant_only() -> None:
    mutants = mechanical.mutants_of("small.py", SMALL)
    limit = [mutant for mutant in mutants if mutant.source == "LIMIT = 3"]
    known = (harmless.Harmless("small.py", "LIMIT = 3", mechanical.OFF_BY_ONE, ("3 -> 4",), "not counted"),)
    assert {mutant.change: harmless.reason(known, mutant) for mutant in limit} == {
        "3 -> 4": "not counted",
        "3 -> 2": "",
    }


# ------------------------------------------------------------------------------------------------- catching


@pytest.mark.long
def test_the_ladder_tries_a_file_s_own_tests_first_and_only_tests_that_import_it() -> None:
    own = "unit/core/supervisor/test_live.py"
    steps = ladder.measured([Result(slowest_s={own: 1.0}, slowest_seed_s=0.1)], ladder.suite(), 0)
    stages = steps.mechanical("core/supervisor/live.py")
    assert stages[0].files[0] == (own, ladder.PATIENCE)
    assert all(name.startswith("unit/core/supervisor/test_") for name, _ in stages[0].files)
    tried = [name for stage in stages for name, _ in stage.files]
    assert "unit/core/data/test_sample_order.py" not in tried
    assert stages[-1].seeds[1] == ladder.SEEDS_MECHANICAL
    assert steps.seed_limit_s == ladder.PATIENCE_MIN_S


def test_the_seeds_of_the_unmutated_run_are_those_of_every_ladder() -> None:
    stages = ladder.unmutated(("unit/x.py",), 7000, 3)
    seeds = [seed for stage in stages for seed in range(*stage.seeds)]
    assert seeds == list(range(7000, 7000 + ladder.SEEDS_PLANTED))
    assert ladder.SEEDS_MECHANICAL <= ladder.SEEDS_PLANTED


def test_imports_are_followed_through_other_modules() -> None:
    assert reaches("unit/core/job/test_reports.py", "core/data/ledger.py")
    assert not reaches("unit/core/data/test_sample_order.py", "core/job/decide.py")


def test_a_survivor_without_a_reason_is_printed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(m for m in mechanical.mutants_of("small.py", SMALL) if m.change == "3 -> 4")
    bug = PLANTED[0]
    report.show({bug: Result(by="seed 3", how="P2: gone")}, {mutant: Result()}, ())
    said = capsys.readouterr().out
    assert "seed 3" in said
    assert "SURVIVES" in said
    assert "NO REASON GIVEN" in said


@pytest.mark.parametrize(
    ("planted_by", "caught", "ok"), [("seed 1", 90, True), ("seed 1", 89, False), ("", 100, False)]
)
def test_what_is_promised_decides_the_end(planted_by: str, caught: int, ok: bool) -> None:
    tried = {mutant: Result(by="seed 2" if index < caught else "") for index, mutant in enumerate(drawn(0))}
    found = report.summary({PLANTED[0]: Result(by=planted_by)}, tried, (), 0.9)
    assert found["ok"] is ok
    assert (found["planted"], found["mechanical"], found["mechanical_caught"]) == (1, 100, caught)
    survivors = found["survivors"]
    assert isinstance(survivors, list)
    assert len(survivors) == 100 - caught + (not planted_by)


def mutant_of(file: str, change: str) -> Mutant:
    return next(mutant for mutant in mechanical.mutants_of(file, text_of(file)) if mutant.change == change)


@pytest.mark.long
def test_a_copy_is_mutated_and_caught_and_the_tree_left_alone() -> None:
    before = text_of("core/data/grid.py")
    guard = mutant_of("core/data/grid.py", "not order -> (order)")
    with Crew(1) as crew:
        stage = Stage(files=(("unit/core/data/test_grid.py", 60.0),))
        caught = crew.run({"core/data/grid.py": guard.apply(before)}, [stage])
        hung = crew.run({"core/__init__.py": "while True: ...\n"}, [Stage(seeds=(0, 1), seed_limit_s=1.0)])
        clean = crew.run({}, [stage])
        wrong = crew.run({}, [Stage(files=(("unit/no_such_test.py", 60.0),))])
    assert caught.by.startswith("tests/unit/core/data/test_grid.py::")
    assert (hung.by, hung.how) == ("import", "does not end")
    assert (clean.by, clean.broken) == ("", "")
    assert clean.files_s.keys() == {"unit/core/data/test_grid.py"}
    assert "pytest ended" in wrong.broken
    assert text_of("core/data/grid.py") == before


def test_a_crew_that_was_left_starts_nothing_more() -> None:
    with Crew(1) as crew:
        pass
    with pytest.raises((Interrupted, FileNotFoundError)):
        crew.run({}, [Stage(seeds=(0, 1), seed_limit_s=1.0)])
