"""The script of a worker, and whether a template that has imported its framework may run it.

A template (see `template`) has read the environment that frameworks look at when they are imported. A script that
sets such variables itself, before it imports the framework, would come too late in it.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

FILE, MODULE, PROGRAM = "file", "module", "program"

# Variables that differ between workers, or are read when a world forms or a device is used: never at an import.
_FREE = frozenset(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "TF_CONFIG"))
_FREE_PREFIXES = ("PLIANT_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "NCCL_", "TORCH_NCCL_", "GLOO_")

_KINDS = {"tf": "TensorFlow", "jax": "JAX"}
_CHANGES = ("__setitem__", "setdefault", "update", "pop", "clear", "popitem")


@dataclass(frozen=True, slots=True)
class Script:
    """A file of Python, a module of Python, or any other program, with its arguments."""

    kind: str
    name: str
    args: tuple[str, ...] = ()

    def argv(self) -> tuple[str, ...]:
        """Return the command line of a plain start."""
        match self.kind:
            case "file":
                return (sys.executable, "-u", self.name, *self.args)
            case "module":
                return (sys.executable, "-u", "-m", self.name, *self.args)
            case _:
                return (self.name, *self.args)

    def why_not_forked(self, env_kind: str) -> str:
        """Return why a template cannot run it; empty if it can."""
        if env_kind in _KINDS:
            return f"{_KINDS[env_kind]} starts threads when it is imported, and a process with threads cannot be forked"
        if self.kind == PROGRAM:
            return f"{self.name} is a program of its own, not a script of Python"
        path = Path(self.name) if self.kind == FILE else _file_of(self.name)
        if path is None:
            return ""
        if self.kind == FILE and (path.is_dir() or zipfile.is_zipfile(path)):
            return f"{self.name} is a folder or an archive, not a file of Python"
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return ""  # Python reports it when it is run
        line = _sets_environment_early(tree)
        return f"{path.name} changes the environment before it imports torch (line {line})" if line else ""


def per_worker(name: str) -> bool:
    """Return whether this variable may differ between a template and its forks."""
    return name in _FREE or name.startswith(_FREE_PREFIXES)


def differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Return the variables that prevent a fork from a template that was started with `ours`."""
    names = sorted(ours.keys() | theirs.keys())
    return [name for name in names if ours.get(name) != theirs.get(name) and not per_worker(name)]


def _file_of(module: str) -> Path | None:
    """Return the file that `python -m` would run, without importing its packages."""
    spec = _find(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{module}.__main__")
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _find(module: str) -> ModuleSpec | None:
    places: list[str] | None = [str(Path.cwd()), *sys.path]
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        try:
            spec = PathFinder.find_spec(name, places) or (importlib.util.find_spec(name) if number == 1 else None)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        found = spec.submodule_search_locations
        places = list(found) if found is not None else []
    return spec


def _sets_environment_early(tree: ast.Module) -> int:
    """Return the line of the first change of the environment before an import of torch; 0 if there is none."""
    names = _names(tree)
    for node in _in_order(tree.body):
        if _imports_torch(node):
            return 0
        if _changes_environment(node, names):
            return getattr(node, "lineno", 1)
    # Torch is imported in a function, or by another module: a function may change the environment before that.
    lines = (getattr(node, "lineno", 1) for node in ast.walk(tree) if _changes_environment(node, names))
    return min(lines, default=0)


def _in_order(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield all nodes that run when the file is run, from top to bottom, without the bodies of functions."""
    for statement in body:
        yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _inside(child)


def _imports_torch(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name.split(".")[0] == "torch" for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.split(".")[0] == "torch"
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _Names:
    """The names under which this file uses the environment and functions that change it."""

    environ: frozenset[str]
    functions: frozenset[str]


def _names(tree: ast.Module) -> _Names:
    environ, functions = (
        {"os.environ", "os.environb"},
        {"os.putenv", "os.unsetenv", "load_dotenv", "dotenv.load_dotenv"},
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "os" and alias.asname:
                    environ |= {f"{alias.asname}.environ", f"{alias.asname}.environb"}
                    functions |= {f"{alias.asname}.putenv", f"{alias.asname}.unsetenv"}
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            for alias in node.names:
                if alias.name in ("environ", "environb"):
                    environ.add(alias.asname or alias.name)
                elif alias.name in ("putenv", "unsetenv"):
                    functions.add(alias.asname or alias.name)
    return _Names(frozenset(environ), frozenset(functions))


def _changes_environment(node: ast.AST, names: _Names) -> bool:
    match node:
        case ast.Subscript(value=value, slice=key, ctx=ast.Store() | ast.Del()):
            return ast.unparse(value) in names.environ and not _free_key(key)
        case ast.AugAssign(target=target):
            return ast.unparse(target) in names.environ
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args) if ast.unparse(value) in names.environ:
            keyed = attr in ("__setitem__", "setdefault", "pop") and args
            return attr in _CHANGES and not (keyed and _free_key(args[0]))
        case ast.Call(func=func, args=args):
            return ast.unparse(func) in names.functions and not (args and _free_key(args[0]))
        case _:
            return False


def _free_key(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and per_worker(key.value)
