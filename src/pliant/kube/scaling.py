"""Decide which pods to create, and which to ask to leave. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pliant.kube.model import AgentView, CoordinatorView, Pod
from pliant.kube.names import BASE, SURPLUS


@dataclass(frozen=True, slots=True)
class RolePods:
    """The pods of one role, by what the operator may count on.

    `live` run or will run: they count towards the wanted number. Pods in `leaving` were asked to go, are being deleted,
    or are lost; another pod takes their place. `ended` have terminated.
    """

    live: tuple[Pod, ...]
    leaving: tuple[Pod, ...]
    ended: tuple[Pod, ...]


def sort_pods(pods: Sequence[Pod], agents: Mapping[str, AgentView]) -> RolePods:
    """Divide the pods of one role."""
    live, leaving, ended = [], [], []
    for pod in pods:
        if pod.ended:
            ended.append(pod)
        elif is_leaving(pod, agents.get(pod.name)):
            leaving.append(pod)
        else:
            live.append(pod)
    return RolePods(tuple(live), tuple(leaving), tuple(ended))


def is_leaving(pod: Pod, agent: AgentView | None) -> bool:
    """Return whether another pod takes the place of this one."""
    if pod.deleting_at is not None or pod.disrupted or pod.node_leaving:
        return True
    if agent is not None:
        return agent.draining
    return pod.joined or pod.node_lost  # its agent is gone, or can never join


@dataclass(frozen=True, slots=True)
class Change:
    """The tiers of pods to create, and the pods to remove, in this order."""

    create: tuple[str, ...] = ()
    remove: tuple[Pod, ...] = ()


def pods_max(live: Sequence[Pod], wanted: int, template: str, surge: int) -> int:
    """Return the largest number of live pods: a few more than wanted while pods of an older template are replaced."""
    return wanted + (surge if is_replacing(live, template) else 0)


def is_replacing(live: Sequence[Pod], template: str) -> bool:
    return any(pod.hash != template for pod in live)


def surge_of(wanted: int) -> int:
    """Return how many pods are replaced at a time."""
    return max(1, wanted // 4)


def ready_pods(view: CoordinatorView) -> frozenset[str]:
    """Return the agents that can do the work of one that leaves.

    Their workers train or stand by, or their parameter server runs. The agent alone is enough where its workers cannot
    start before others leave: while workers are launched together, and where the pool has no room for one more.
    """
    has_room = view.granted is None
    return frozenset(
        name
        for name, agent in view.agents.items()
        if agent.is_complete or not view.live or not (has_room or agent.wanted)
    )


def plan_change(live: Sequence[Pod], wanted: int, base: int, template: str, view: CoordinatorView) -> Change:
    """Return how to get from the live pods to the wanted number with the current template.

    Pods of an older template are replaced a few at a time: new pods come first, and an old one leaves when enough
    pods are ready. A pod whose template is wrong thus never costs a working one.
    """
    agents, surge = view.agents, surge_of(wanted)
    old = [pod for pod in live if pod.hash != template]
    current = len(live) - len(old)
    room = pods_max(live, wanted, template, surge) - len(live)
    count = max(0, min(wanted - current, room))
    if count:
        return Change(create=_tiers(live, base, count))
    surplus = len(live) - wanted
    if surplus <= 0:
        return Change()
    if not old:
        return Change(remove=_first_to_go(live, agents, surplus))
    ready = ready_pods(view)
    waiting = sum(pod.name not in agents for pod in old)
    failing = sum(pod.name in agents and pod.name not in ready for pod in old)
    replaced = min(failing, sum(pod.name in ready for pod in live if pod.hash == template))
    movable = min(surplus, waiting + replaced + max(0, sum(pod.name in ready for pod in live) - wanted))
    gone = _first_to_go(old, agents, movable)
    beyond = surplus - len(gone) - surge
    if beyond > 0:  # the target fell during the replacement
        gone += _first_to_go([pod for pod in live if pod not in gone], agents, beyond)
    return Change(remove=gone)


def _tiers(live: Sequence[Pod], base: int, count: int) -> tuple[str, ...]:
    present = sum(pod.tier == BASE for pod in live)
    return tuple(BASE if present + number < base else SURPLUS for number in range(count))


def _first_to_go(pods: Sequence[Pod], agents: Mapping[str, AgentView], count: int) -> tuple[Pod, ...]:
    """Return the pods that go first: pending, starting, without an active or a wanted member, surplus, youngest.

    A pod whose agent alone holds the state of the training stays.
    """
    holders = [name for name, agent in agents.items() if agent.holds and not agent.draining]
    ordered = sorted(pods, key=lambda pod: (*_stage(pod, agents.get(pod.name)), pod.tier == BASE, -pod.index))
    chosen: list[Pod] = []
    for pod in ordered:
        left = [name for name in holders if name != pod.name and all(name != other.name for other in chosen)]
        is_last = pod.name in holders and not left
        if len(chosen) < count and not is_last:
            chosen.append(pod)
    return tuple(chosen)


def _stage(pod: Pod, agent: AgentView | None) -> tuple[int, bool]:
    """Return how much is lost with a pod. The coordinator may have chosen already whose workers are wanted no more."""
    if agent is None:
        return (0 if not pod.scheduled else 1 if pod.phase == "Pending" else 2), False
    return (3 if not agent.active else 4), agent.wanted != 0
