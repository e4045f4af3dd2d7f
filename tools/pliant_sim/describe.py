"""Short descriptions of events, signals and actions, for the story of one seed."""

from __future__ import annotations

from pliant.core import messages as m
from pliant.core.member import signals as s
from pliant.core.messages.describe import describe

Thing = m.Event | s.Signal | s.Action


def narrate(thing: Thing) -> str:
    """Describe an event, a signal or an action in one phrase; some have an empty one."""
    if isinstance(thing, m.Event):
        return describe(thing)
    return _of_a_member(thing)


def _of_a_member(thing: s.Signal | s.Action) -> str:
    match thing:
        case s.Collect(word=word):
            return f"enters a {word.purpose.value} of generation {word.generation} after step {word.lineage.step}"
        case s.Returned(generation=generation):
            return f"a collective of generation {generation} returned"
        case s.Failed(generation=generation, peer=peer):
            return f"a collective of generation {generation} failed because of {peer}"
        case s.Apply(line=line):
            return f"applies step {line.lineage.step}"
        case s.Compute(step=step, slots=slots, idle=idle):
            return f"computes {'an idle slot' if idle else f'slots {list(slots)}'} of step {step}"
        case s.Wire(world=world):
            return f"wires generation {world.number}"
        case s.Exit(code=code, why=why):
            return f"exits with {code}: {why}"
        case s.Send(command=m.Stopped(lineage=lineage, why=why)):
            return f"reports that it stopped after step {lineage.step}: {why}"
        case s.Send(command=command):
            return f"sends {type(command).__name__}"
        case _:
            return type(thing).__name__
