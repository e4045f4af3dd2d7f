"""The rules of docs/internals/writing.md that a machine can check."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

PAGE_LINES_MAX = 200
README_LINES_MAX = 110

_OPENINGS = "What|Who|Whoever|Whom|Whose|Whether|How|Where|Which|Why|When"
_QUESTION = re.compile(rf"(?:{_OPENINGS})\b|One that\b")
_PRONOUN = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|whomever)\b", re.IGNORECASE)
# At the beginning of a sentence, of a docstring, of a comment or of a list item.
_ONE_THAT = re.compile(r"(?:^\s*|[.:;!?] +|\"\"\"|#:? *|[-*|] +)One that\b", re.MULTILINE)
_CODE = re.compile(r"\bH\d{1,2}\b")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a Python file, with the line of what each describes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and (docstring := ast.get_docstring(node)) is not None:
            yield (1 if isinstance(node, ast.Module) else node.lineno), docstring


def question_docstrings(text: str) -> list[str]:
    """Find docstrings that open with a question word instead of an imperative or a noun phrase."""
    return [
        f"line {line}: begin with an imperative or a noun phrase, not with {docstring.split(maxsplit=1)[0]!r}"
        for line, docstring in docstrings(text)
        if _QUESTION.match(docstring)
    ]


def pronouns(text: str) -> list[str]:
    """Find subjects that name no part of the system: nobody, whoever, "One that"."""
    found = [
        f"line {number}: {hit.group(1).lower()!r}: name the member, the agent, the coordinator, the user"
        for number, line in enumerate(text.splitlines(), 1)
        for hit in _PRONOUN.finditer(line)
    ]
    return found + [
        f"line {text.count(chr(10), 0, hit.end()) + 1}: 'One that': name the subject"
        for hit in _ONE_THAT.finditer(text)
    ]


def private_codes(text: str) -> list[str]:
    """Find codes such as the number of a counterexample, which only protocol.md and the tests may use."""
    return [
        f"line {number}: {hit.group()}: give the reason instead, or cite a rule of docs/internals/protocol.md"
        for number, line in enumerate(text.splitlines(), 1)
        for hit in _CODE.finditer(line)
    ]


def too_long(text: str, limit: int) -> list[str]:
    """Report a page past its limit."""
    lines = len(text.splitlines())
    return [] if lines <= limit else [f"{lines} lines, at most {limit}"]


def page_too_long(text: str) -> list[str]:
    """Report a page of the documentation that is longer than a reader takes in at once."""
    return too_long(text, PAGE_LINES_MAX)


def readme_too_long(text: str) -> list[str]:
    """Report a README that tells more than what the project is and how to begin."""
    return too_long(text, README_LINES_MAX)


def reexports(text: str) -> list[str]:
    """Find `from x import Y as Y`: a second home for a name."""
    return [
        f"line {node.lineno}: import {alias.name} from where it is defined"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]


def class_names(text: str) -> list[str]:
    """List the classes that a file defines, nested ones included."""
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def collisions(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return each class name that occurs more than once, with the files that define it."""
    homes = defaultdict(list)
    for path, text in texts.items():
        for name in class_names(text):
            homes[name].append(path)
    return {name: paths for name, paths in sorted(homes.items()) if len(paths) > 1}
