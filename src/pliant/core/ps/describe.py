"""Sentences about the events of parameter servers, for people."""

from __future__ import annotations

from pliant.core.ps import messages as p
from pliant.core.ps.model import NONE


def describe_server_event(event: p.ServerEvent) -> str:
    """Return one phrase that describes an event to a person, without its time."""
    match event:
        case p.ServerJoined(member=member):
            return f"parameter server {member} joined"
        case p.CopiesFilled(member=member):
            return f"{member} filled the copies of its buckets that move"
        case p.LayoutChanged(layout=layout, lost=lost):
            moving = sum(at != NONE for at in layout.incoming)
            single = sum(at == NONE for at in layout.backup)
            text = f"layout {layout.number}: {len(layout.servers)} parameter servers"
            text += f", {moving} buckets are being copied" if moving else ""
            text += f", {single} have no backup" if single else ""
            return text + (f"; {lost} buckets were lost and continue from the last checkpoint" if lost else "")
