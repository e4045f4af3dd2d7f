"""The shape of a source file: how long it is, what it catches, what it says about itself."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePath

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
FOLDER_MODULES_MAX = 12

# A path of the machine on which a file was written.
_MACHINE_PATH = re.compile(r"(?<![\w.~$}>-])/(?:work|root|home/\w+|Users/\w+)/")


def file_too_long(text: str) -> list[str]:
    """A file past the limit is usually two things."""
    lines = len(text.splitlines())
    return [] if lines <= FILE_LINES_MAX else [f"{lines} lines, at most {FILE_LINES_MAX}: usually two things"]


def crowded_folders(paths: Iterable[PurePath]) -> list[str]:
    """Find folders with more modules than a reader takes in at once, the package's own file not counted."""
    modules = Counter(path.parent for path in paths if path.name != "__init__.py")
    return [
        f"{folder}: {number} modules, at most {FOLDER_MODULES_MAX}: group some by topic"
        for folder, number in sorted(modules.items())
        if number > FOLDER_MODULES_MAX
    ]


def functions_too_long(text: str) -> list[str]:
    """Functions past the limit, the docstring not counted."""
    findings = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _span(node) - _docstring_lines(node)
            if lines > FUNCTION_LINES_MAX:
                findings.append(f"line {node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
    return findings


def catches_without_why(text: str) -> list[str]:
    """Handlers that catch everything without a comment `# why: ...` on or beside their first line."""
    lines = text.splitlines()
    findings = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and _catches_everything(node.type):
            beside = lines[max(node.lineno - 2, 0) : node.lineno + 1]
            if not any("# why:" in line for line in beside):
                findings.append(f"line {node.lineno}: catch what the line can handle, or add a comment `# why: ...`")
    return findings


def missing_docstring(text: str) -> list[str]:
    """A package says in its docstring what may live in it."""
    return [] if ast.get_docstring(ast.parse(text)) else ["no docstring: say what may live in this package"]


def sleeps(text: str) -> list[str]:
    """Calls of time.sleep, however imported. A test waits for a thing to happen, not for time to pass."""
    tree = ast.parse(text)
    names = {name for module, name in _imported_names(tree) if (module, name) == ("time", "sleep")}
    return [
        f"line {node.lineno}: wait for what you wait for, or hold the clock; do not sleep"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (_dotted(node.func) == "time.sleep" or _dotted(node.func) in names)
    ]


def environment_reads(text: str) -> list[str]:
    """Uses of the process's environment; pliant/settings.py is to be its only reader."""
    return [
        f"line {node.lineno}: the environment is read in pliant/settings.py alone; take a value instead"
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Attribute) and _dotted(node) in {"os.environ", "os.getenv", "os.putenv"})
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and {"environ", "getenv"} & _aliases(node))
    ]


def machine_paths(text: str) -> list[str]:
    """Absolute paths of the machine the file was written on."""
    return [
        f"line {number}: a path of one machine: {hit.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for hit in _MACHINE_PATH.finditer(line)
    ]


def code_lines(text: str) -> int:
    """Lines that are neither blank nor a comment."""
    stripped = (line.strip() for line in text.splitlines())
    return sum(1 for line in stripped if line and not line.startswith("#"))


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return _span(node.body[0]) if ast.get_docstring(node) is not None else 0


def _catches_everything(kind: ast.expr | None) -> bool:
    match kind:
        case None:
            return True
        case ast.Tuple(elts=kinds):
            return any(_catches_everything(one) for one in kinds)
        case _:
            return _dotted(kind).removeprefix("builtins.") in {"Exception", "BaseException"}


def _imported_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", name) for name in _aliases(node))


def _aliases(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
