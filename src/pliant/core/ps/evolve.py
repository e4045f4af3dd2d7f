"""Apply events to the parameter servers of a job. Nothing is refused here."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core.ps import messages as p
from pliant.core.ps.model import ServerTable, empty_layout


def evolve_servers(table: ServerTable | None, event: p.ServerEvent, attempt: int) -> ServerTable:
    """Return the servers after `event`, in that attempt of the job."""
    if table is None:
        if not isinstance(event, p.ServerJoined):
            raise ValueError("the first event of parameter servers must be ServerJoined")
        return ServerTable(attempt, empty_layout(0))
    match event:
        case p.ServerJoined():
            return table  # the layout that follows has it
        case p.CopiesFilled():
            return replace(table, copied=table.copied | {event.member})
        case p.LayoutChanged():
            return ServerTable(table.history, event.layout)
        case _:
            assert_never(event)


def without_servers(table: ServerTable) -> ServerTable:
    """Return the table as another attempt of its job begins with it: no server is left."""
    return ServerTable(table.history, empty_layout(table.layout.number))
