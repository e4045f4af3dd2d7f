"""The core is pure: what a file of `pliant.core` may neither import nor call.

`.importlinter` forbids the imports too, through every chain. This check reads one file at a time, knows the
builtins as well, and names the way out.
"""

import ast
import random
import sys
from collections.abc import Iterator

OWN = ("pliant.core", "pliant.errors")

IMPURE_MODULES = {
    "time": "take `now` as an argument",
    "datetime": "take `now` as an argument",
    "random": "take a seed as an argument",
    "secrets": "take the value as an argument",
    "uuid": "take the value as an argument",
    "os": "the shell around the core does this",
    "sys": "the shell around the core does this",
    "io": "the shell around the core does this",
    "pathlib": "the shell around the core does this",
    "tempfile": "the shell around the core does this",
    "shutil": "the shell around the core does this",
    "subprocess": "the shell around the core does this",
    "signal": "the shell around the core does this",
    "socket": "the shell around the core does this",
    "select": "the shell around the core does this",
    "selectors": "the shell around the core does this",
    "ssl": "the shell around the core does this",
    "http": "the shell around the core does this",
    "urllib": "the shell around the core does this",
    "sqlite3": "stores do this",
    "threading": "the core has no threads",
    "multiprocessing": "the core has no processes",
    "concurrent": "the core has no threads",
    "asyncio": "the core has no event loop",
    "queue": "the core has no threads",
    "logging": "return an event; the event log is the log",
    "warnings": "return an event; the event log is the log",
    "pickle": "the typed codec in pliant.wire does this",
}

IMPURE_CALLS = {
    "print": "return an event; the event log is the log",
    "input": "take the value as an argument",
    "open": "the shell around the core does this",
    "breakpoint": "not in a commit",
    "exec": "write the code down",
    "eval": "write the code down",
    "hash": "differs from process to process for strings; use hashlib",
    "id": "differs from process to process",
}


def impurities(text: str) -> list[str]:
    """Everything in one file that makes its answers depend on more than its arguments."""
    findings = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import() | ast.ImportFrom():
                findings += [f"line {node.lineno}: {why}" for why in _bad_imports(node)]
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                findings.append(f"line {node.lineno}: {name}(): {IMPURE_CALLS[name]}")
            case ast.Global(names=names):
                findings.append(f"line {node.lineno}: global {', '.join(names)}: pass the state in, return it")
            case ast.AsyncFunctionDef(name=name):
                findings.append(f"line {node.lineno}: async def {name}: the core has no event loop")
            case _:
                pass
    return findings


def _bad_imports(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for module in _modules(node):
        top = module.partition(".")[0]
        if top in IMPURE_MODULES:
            yield f"import of {module}: {IMPURE_MODULES[top]}"
        elif top == "pliant":
            if not any(module == own or module.startswith(f"{own}.") for own in OWN):
                yield f"import of {module}: the core imports nothing of ours but itself and pliant.errors"
        elif top not in sys.stdlib_module_names:
            yield f"import of {module}: the core needs nothing but the standard library"


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module="pliant", names=names):
            return [f"pliant.{alias.name}" for alias in names]
        case ast.ImportFrom(module=module):
            return [module or "pliant.core"]  # a relative import, which the linter refuses, stays inside


DRAWS = frozenset(name for name in dir(random) if name.islower() and not name.startswith("_")) - {
    "getstate",
    "setstate",
    "seed",
}


def shared_draws(text: str) -> list[str]:
    """Return the draws from the generators that user code draws from: `random`'s and numpy's own."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("random"), attr=name)) if name in DRAWS:
                found.append(f"line {node.lineno}: random.{name} draws from the generator of user code")
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name("np" | "numpy"), attr="random"), attr=name)
            ) if name not in ("seed", "get_state", "set_state", "Generator", "PCG64"):
                found.append(f"line {node.lineno}: numpy.random.{name} draws from the generator of user code")
            case ast.ImportFrom(module="random", names=names):
                found += [
                    f"line {node.lineno}: random.{each.name} draws from the generator of user code"
                    for each in names
                    if each.name in DRAWS
                ]
            case _:
                pass
    return found
