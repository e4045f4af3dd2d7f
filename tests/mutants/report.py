"""The results, for people (a table) and for programs (one JSON object)."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mutants import harmless
from mutants.bugs import Planted
from mutants.catch import Result
from mutants.edits import SOURCE
from mutants.harmless import Harmless
from mutants.mechanical import Mutant

WIDTH = 200


def title(mutant: Planted | Mutant) -> str:
    if isinstance(mutant, Planted):
        return f"{mutant.name} ({mutant.rule})"
    return f"{SOURCE}/{mutant.file}:{mutant.line} {mutant.kind}: {mutant.change}"


def show(planted: dict[Planted, Result], mechanical: dict[Mutant, Result], known: tuple[Harmless, ...]) -> None:
    console = Console(width=WIDTH, highlight=False)
    if planted:
        console.print(_planted_table(planted))
    if mechanical:
        console.print(_mechanical_table(mechanical))
    for mutant, result in mechanical.items():
        if not result.by:
            why = harmless.reason(known, mutant) or "NO REASON GIVEN: write a test, or the reason into harmless.toml"
            console.print(Text(f"survivor  {title(mutant)}\n          {mutant.source}\n          {why}"))


def _planted_table(planted: dict[Planted, Result]) -> Table:
    table = Table("planted bug", "breaks", "caught by", "which says", title="Planted bugs", title_justify="left")
    for bug, result in planted.items():
        table.add_row(Text(bug.name), Text(bug.rule), _by(result), Text(_short(result.how, 90)))
    return table


def _mechanical_table(mechanical: dict[Mutant, Result]) -> Table:
    table = Table("where", "kind", "change", "caught by", title="Mechanical mutants of the core", title_justify="left")
    for mutant, result in mechanical.items():
        where = f"{mutant.file}:{mutant.line}"
        table.add_row(Text(where), Text(mutant.kind), Text(_short(mutant.change, 70)), _by(result))
    return table


def _by(result: Result) -> Text:
    return Text(_short(result.by, 70)) if result.by else Text("SURVIVES", style="bold red")


def _short(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def summary(
    planted: dict[Planted, Result],
    mechanical: dict[Mutant, Result],
    known: tuple[Harmless, ...],
    caught_min: float,
) -> dict[str, object]:
    """Return what programs read. `ok`: every planted bug is caught, and of the mechanical ones as many as we promise."""
    planted_caught = sum(bool(result.by) for result in planted.values())
    mechanical_caught = sum(bool(result.by) for result in mechanical.values())
    survivors = [{"mutant": title(bug), "why": "", "planted": True} for bug, result in planted.items() if not result.by]
    survivors += [
        {"mutant": title(mutant), "why": harmless.reason(known, mutant), "planted": False}
        for mutant, result in mechanical.items()
        if not result.by
    ]
    return {
        "ok": planted_caught == len(planted) and mechanical_caught >= caught_min * len(mechanical),
        "planted": len(planted),
        "planted_caught": planted_caught,
        "mechanical": len(mechanical),
        "mechanical_caught": mechanical_caught,
        "survivors": survivors,
        "cpu_seconds": round(sum(result.cpu_s for result in (*planted.values(), *mechanical.values())), 1),
    }
