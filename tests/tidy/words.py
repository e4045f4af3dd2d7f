"""One word per concept: the words we do not use, and what to say instead.

`docs/internals/glossary.md` defines the words we do use. Checked are the names a source file defines, its
comments and strings, and every page written for people.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

INSTEAD = {
    "master": "coordinator (decides), or rank 0 if that is what is meant",
    "rendezvous": "world: members join, a world forms",
    "round": "generation (the membership's number), step or attempt",
    "quorum": "world, or say which members are needed",
    "participant": "member",
    "replica": "member, holder (of the state) or copy",
    "heartbeat": "renew (of a lease)",
    "backend": "store, adapter, or the thing's own name",
    "manager": "a name that says what it does",
    "helper": "a name that says what it does",
    "utils": "a name that says what is in it",
    "util": "a name that says what is in it",
}

# Set phrases of the language or of other people's interfaces. They name something else than what we banned.
PHRASES = [
    r"context managers?",
    r"build[- ]backend",
    r"package managers?",
    r"round\(",
    r"round[- ](?:trips?|robin)",
    r"round(?:s|ed)? (?:up|down|to)",
    r"(?:all|the other way|year) round",
    r"importlib\.util",
    r"(?:torch|nn)\.utils",
    r"--(?:rdzv-backend|master-(?:addr|port))",
]


@dataclass(frozen=True)
class Allowance:
    """A file that may use banned words, and why."""

    path: str
    words: frozenset[str]
    why: str


ALLOWANCES = [
    Allowance("docs/internals/glossary.md", frozenset(INSTEAD), "it lists the words we do not use"),
    Allowance("src/pliant/kube/manifests/install.py", frozenset({"replica"}), "a field of Kubernetes is called so"),
    Allowance("docs/operating/kubernetes.md", frozenset({"replica"}), "an option of kubectl is called so"),
    Allowance("docs/start-kubernetes.md", frozenset({"replica"}), "an option of kubectl is called so"),
    Allowance("README.md", frozenset({"replica"}), "an option of kubectl is called so"),
]

_PHRASE = re.compile("|".join(PHRASES), re.IGNORECASE)
_WORD = re.compile(rf"\b({'|'.join(INSTEAD)})(?:s|'s)?\b", re.IGNORECASE)
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def in_prose(text: str) -> list[str]:
    """Banned words in running text, one finding for each, with its line."""
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        without_phrases = _PHRASE.sub("", line)
        findings += [_finding(number, hit.group(1)) for hit in _WORD.finditer(without_phrases)]
    return findings


def in_name(name: str) -> str | None:
    """The banned word a name is made with, if there is one: `QuorumSize` and `quorum_size` both hold one."""
    for part in _PART.findall(name):
        word = part.lower()
        if word in INSTEAD:
            return str(word)
        if word.removesuffix("s") in INSTEAD:
            return str(word.removesuffix("s"))
    return None


def in_source(text: str) -> list[str]:
    """Banned words in a Python file: in the names it defines, its comments and its strings."""
    findings = []
    for name, line in defined_names(ast.parse(text)):
        word = in_name(name)
        if word is not None:
            findings.append(f"{_finding(line, word)} (in the name {name!r})")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXT_TOKENS:
            found = in_prose(token.string)
            findings += [_shift(finding, token.start[0] - 1) for finding in found]
    return findings


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names a file brings into being, with their lines; names it only uses are their owners' business."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case _:
                pass


def allowed(path: str) -> frozenset[str]:
    """The banned words a file may use."""
    return frozenset().union(*(a.words for a in ALLOWANCES if a.path == path))


# An f-string is one token up to Python 3.11 and several from 3.12 on.
_TEXT_TOKENS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def _finding(line: int, word: str) -> str:
    word = word.lower()
    return f"line {line}: {word!r}: say {INSTEAD[word]}"


def _shift(finding: str, by: int) -> str:
    return re.sub(r"line (\d+)", lambda hit: f"line {int(hit.group(1)) + by}", finding, count=1)
