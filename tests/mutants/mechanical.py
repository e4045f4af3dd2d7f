"""Mutants made by a machine: every small change of a file that leaves it valid Python, and a draw among them.

Five kinds: a condition negated; a guard dropped; a number, bound or comparison off by one; branches swapped
(which for an `if` with an `else` is the same as negating it); a statement dropped. Left out are annotations,
decorators (caches only), patterns, docstrings and the insides of f-strings: they decide nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path

from mutants.edits import ROOT, SOURCE

NEGATED = "negated condition"
GUARD = "dropped guard"
OFF_BY_ONE = "off by one"
SWAPPED = "swapped branch"
DROPPED = "dropped statement"

Span = tuple[int, int]  # from this byte to before that one


@dataclass(frozen=True, slots=True)
class Mutant:
    """The bytes from `start` to before `stop` of `file` become `new`."""

    file: str  # below `src/pliant`
    line: int
    kind: str
    start: int
    stop: int
    old: str
    new: str
    source: str  # the line it begins on, without its indentation
    turn: int = 1  # the how manieth of those that otherwise look the same

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what stays the same when code around the line moves."""
        return self.file, self.source, self.kind, self.change

    @property
    def change(self) -> str:
        nth = f" (#{self.turn})" if self.turn > 1 else ""
        return f"{_one_line(self.old)} -> {_one_line(self.new)}{nth}"

    def apply(self, text: str) -> str:
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.stop :]).decode()

    def diff(self, text: str) -> tuple[str, str]:
        """The first line that differs, before and after."""
        pairs = zip(text.splitlines(), [*self.apply(text).splitlines(), ""], strict=False)
        before, after = next(((a, b) for a, b in pairs if a != b), ("", ""))
        return before.strip(), after.strip()


def _one_line(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= 60 else f"{short[:57]}..."


# ----------------------------------------------------------------------------------------- all there are


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in the order of the source."""
    data = text.encode()
    lines = text.splitlines()
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str, str], int] = {}
    for start, stop, kind, new in sorted(set(_Finder(text).visit_all(ast.parse(text)))):
        number = data.count(b"\n", 0, start) + 1
        old = data[start:stop].decode()
        mutant = Mutant(file, number, kind, start, stop, old, new, " ".join(lines[number - 1].split()))
        turn = seen[mutant.key] = seen.get(mutant.key, 0) + 1
        found.append(replace(mutant, turn=turn))
    return found


def is_valid(mutant: Mutant, text: str) -> bool:
    try:
        ast.parse(mutant.apply(text))
    except SyntaxError:
        return False
    return True


def core(root: Path = ROOT) -> dict[str, str]:
    """The core's files, by their names below `src/pliant`."""
    folder = root / SOURCE
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((folder / "core").rglob("*.py"))
    }


def draw(texts: dict[str, str], count: int, seed: int) -> list[Mutant]:
    """That many mutants, from each file in proportion to how many of its lines can be mutated.

    Each mutant's place in the draw depends on the seed and on itself alone, so that a change of the source moves no
    other mutant in or out, but for the few by which the files' shares change.
    """
    by_file = {file: mutants_of(file, text) for file, text in texts.items()}
    sizes = {file: len({mutant.line for mutant in mutants}) for file, mutants in by_file.items()}
    drawn: list[Mutant] = []
    for file, share in _shares(sizes, count).items():
        queue = sorted(by_file[file], key=lambda mutant: _ticket(seed, mutant))
        drawn += islice((mutant for mutant in queue if is_valid(mutant, texts[mutant.file])), share)
    return sorted(drawn, key=lambda mutant: (mutant.file, mutant.start, mutant.new))


def _shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Whole numbers that add up to `count`, none further than one from its exact share."""
    total = sum(sizes.values())
    shares = {file: size * count // total for file, size in sizes.items()}
    by_rest = sorted(sizes, key=lambda file: (-(sizes[file] * count % total), file))
    for file in by_rest[: count - sum(shares.values())]:
        shares[file] += 1
    return shares


def _ticket(seed: int, mutant: Mutant) -> str:
    return sha256(repr((seed, mutant.key)).encode()).hexdigest()


# ------------------------------------------------------------------------------------------- finding them

Found = Iterator[tuple[int, int, str, str]]
_ENDS = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_LOOSER = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
_TWIN = {"min": "max", "max": "min", "any": "all", "all": "any"}


class _Finder:
    """Walks a file's tree and names the places that can be changed."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def visit_all(self, node: ast.AST) -> Found:
        if isinstance(node, ast.JoinedStr | ast.pattern | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.expr | ast.stmt | ast.comprehension | ast.match_case):
            yield from self._at(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.visit_all(child)

    def _at(self, node: ast.AST) -> Found:
        match node:
            case ast.If():
                yield from self._if(node)
            case ast.IfExp(test=test):
                yield from self._negated(test, SWAPPED)
            case ast.While(test=test) | ast.Assert(test=test):
                yield from self._negated(test, NEGATED)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self._negated(test, NEGATED)
            case ast.match_case(guard=ast.expr() as guard):
                yield from self._negated(guard, NEGATED)
            case ast.Return(value=ast.Compare() | ast.UnaryOp(op=ast.Not()) as value):
                yield from self._negated(value, NEGATED)
            case ast.BoolOp():
                yield from self._bool(node)
            case ast.Compare():
                yield from self._compare(node)
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                for other in (value + 1, value - 1):
                    yield (*self._span(node), OFF_BY_ONE, str(other))
            case ast.Slice(lower=lower, upper=upper):
                yield from self._bounds(lower, upper)
            case ast.Call():
                yield from self._call(node)
            case ast.Assign(targets=[ast.Attribute()]) | ast.AugAssign() | ast.Expr(value=ast.Call()):
                if not self._text(node).startswith("assert_never("):  # mypy has proved that nothing gets there
                    yield (*self._span(node), DROPPED, "pass")
            case _:
                pass

    def _if(self, node: ast.If) -> Found:
        is_elif = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        yield from self._negated(node.test, SWAPPED if node.orelse and not is_elif else NEGATED)
        start, stop = self._span(node)
        if not node.orelse and isinstance(node.body[-1], _ENDS) and self._data[start:].startswith(b"if"):
            yield start, stop, GUARD, "pass"

    def _negated(self, test: ast.expr, kind: str) -> Found:
        if isinstance(test, ast.Constant) or self._text(test) == "TYPE_CHECKING":
            return
        start, stop = self._span(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield start, stop, kind, f"({self._text(test.operand)})"
        else:
            yield start, stop, kind, f"(not ({self._text(test)}))"

    def _bool(self, node: ast.BoolOp) -> Found:
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for value in node.values:
            yield from self._negated(value, NEGATED)
        for left, right in zip(node.values, node.values[1:], strict=False):
            start, stop = self._between(left, right, word)
            yield start, stop, SWAPPED, other

    def _compare(self, node: ast.Compare) -> Found:
        operands = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, operands, operands[1:], strict=False):
            if type(op) in _LOOSER:
                word, other = _LOOSER[type(op)]
                start, stop = self._between(left, right, word)
                yield start, stop, OFF_BY_ONE, other

    def _bounds(self, lower: ast.expr | None, upper: ast.expr | None) -> Found:
        for bound in (lower, upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield (*self._span(bound), OFF_BY_ONE, f"{self._text(bound)} + 1")

    def _call(self, node: ast.Call) -> Found:
        match node.func:
            case ast.Name(id=name) if name in _TWIN:
                yield (*self._span(node.func), SWAPPED, _TWIN[name])
            case ast.Name(id="range"):
                stop = node.args[min(1, len(node.args) - 1)]
                if not isinstance(stop, ast.Constant | ast.Starred):
                    yield (*self._span(stop), OFF_BY_ONE, f"{self._text(stop)} + 1")
            case _:
                pass

    # ------------------------------------------------------------------------------------------ places

    def _span(self, node: ast.AST) -> Span:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.AST) -> str:
        start, stop = self._span(node)
        return self._data[start:stop].decode()

    def _between(self, left: ast.expr, right: ast.expr, word: str) -> Span:
        """Return where the operator stands; only brackets and blanks are around it."""
        gap = self._data[self._span(left)[1] : self._span(right)[0]]
        start = self._span(left)[1] + gap.index(word.encode())
        return start, start + len(word)
