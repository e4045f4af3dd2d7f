"""Words for what happens in a universe, so that a person can follow one seed."""

from __future__ import annotations

from typing import assert_never

from pliant.core import messages as m
from pliant.core.member import signals as s

Thing = m.Event | s.Signal | s.Action


def describe(thing: Thing) -> str:
    """One phrase for an event, a signal or an action; empty for what nobody wants to read."""
    if isinstance(thing, m.Event):
        return _event(thing)
    return _of_a_member(thing)


def _event(event: m.Event) -> str:
    match event:
        case m.JobCreated():
            return f"job {event.name} created: {event.size_min} to {event.size_max} workers, {event.target.size} wanted"
        case m.AgentJoined(agent=agent, capacity=capacity):
            return f"agent {agent} has room for {capacity}"
        case m.AgentGone(agent=agent, why=why):
            return f"agent {agent} is gone: {why}"
        case m.PairAccused(generation=generation, a=a, b=b):
            return f"{a} and {b} could not reach one another in generation {generation}"
        case m.SlotRaised(poison=poison):
            return f"slot {poison.slot} of step {poison.step} raised on {poison.member}: {poison.error}"
        case m.WorkerFailed(member=member, code=code):
            return f"{member} failed by itself with exit code {code}"
        case m.WorldFormed(world=world):
            hold = ", holding" if world.hold else ""
            names = ", ".join(world.members)
            return f"generation {world.number} formed ({world.kind.value}{hold}): {names}; because {world.why}"
        case m.WorldEntered(generation=generation):
            return f"generation {generation} is current"
        case m.WorldBroken(generation=generation, why=why):
            return f"generation {generation} cannot go on: {why}"
        case m.MemberJoined(member=joined):
            return f"{joined.id} joined as number {joined.number}"
        case m.MemberGone(member=gone, how=how, why=why):
            return f"{gone} {how}: {why}"
        case m.MemberDraining(member=draining, grace_s=grace_s, why=why):
            return f"{draining} drains within {grace_s:g} s: {why}"
        case m.StepsCommitted(lines=lines, reporter=reporter, generation=generation):
            last = lines[-1].lineage.step
            return f"steps up to {last} are durable, said {reporter} of generation {generation}"
        case m.StateChanged(state=state, why=why):
            return f"the job is {state.value}: {why}"
        case m.CheckpointPublished(checkpoint=checkpoint):
            return f"checkpoint of step {checkpoint.lineage.step} published"
        case m.TargetChanged(target=target):
            return f"target size {target.size}"
        case m.HoldersChanged(holders=holders):
            return f"the state is held by {', '.join(sorted(holders))}"
        case _:
            assert_never(event)


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
            return f"says it stopped after step {lineage.step}: {why}"
        case s.Send(command=command):
            return f"says {type(command).__name__}"
        case _:
            return type(thing).__name__
