"""Bugs planted into the operator's decisions: simulated schedules catch each of them."""

import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from pliant.kube import actions as a
from pliant.kube import reconcile as real
from pliant.kube.reconcile import Observation
from property.kube.simulated import Broken, Reconcile, run_schedule

FOLDER = Path(real.__file__).parent
SEEDS = range(400)

BUGS = {
    "a failed look at the coordinator counts as an empty one": (
        "reconcile",
        "    if isinstance(seen.view, Unknown):\n        return _write(seen, Situation())\n    if job.ended:",
        "    if isinstance(seen.view, Unknown):\n        seen = replace(seen, view=Absent(''))\n    if job.ended:",
    ),
    "a pod is deleted at once instead of asked": (
        "reconcile",
        "            found.append(a.DrainPod(pod.name, grace_s, why, immediate=why == SUSPENDED))",
        "            found.append(a.DeletePod(pod.name, pod.uid, why))",
    ),
    "a pod that starts is taken for one that is pending": (
        "reconcile",
        '        elif pod.phase == "Pending" and not pod.joined:\n            found',
        "        elif not pod.joined:\n            found",
    ),
    "an old observation goes unnoticed": ("reconcile", "guard=bool(moves or clean)", "guard=False"),
    "an ended job is run on": (
        "reconcile",
        "    if seen.view.ended:\n        return _write(seen, Situation())\n    return _run(",
        "    return _run(",
    ),
    "old pods leave before new ones have joined": (
        "scaling",
        "    movable = min(surplus, waiting + replaced + max(0, sum(pod.name in ready for pod in live) - wanted))",
        "    movable = surplus",
    ),
    "an old pod leaves when the new agent is there, before its worker is": (
        "scaling",
        "if agent.is_complete or not view.live or not (has_room or agent.wanted)",
        "if agent or has_room",
    ),
    "an old pod whose worker does not run leaves for no new one": (
        "scaling",
        "    replaced = min(failing, sum(pod.name in ready for pod in live if pod.hash == template))",
        "    replaced = failing",
    ),
    "no worker stands by while pods are replaced": (
        "reconcile",
        "    return surge_of(seen.job.spec.wanted_pods(role.role)) * role.processes",
        "    return 0",
    ),
    "pods of an older template are never replaced": (
        "scaling",
        "    movable = min(surplus, waiting + replaced + max(0, sum(pod.name in ready for pod in live) - wanted))",
        "    movable = 0",
    ),
    "a pod of a silent node is never given up": (
        "reconcile",
        "    if seen.now - since < seen.job.spec.unreachable_s:",
        "    if seen.now - since < 1e9:",
    ),
    "the finalizer stays": (
        "reconcile",
        "    return (*forget, *claim, a.RemoveFinalizer())",
        "    return (*forget, *claim)",
    ),
    "agents are asked to leave while the job is deleted, and none is waited for": (
        "reconcile",
        '        cancel = () if view.state == "stopping" else (a.CancelJob("the ElasticJob was deleted"),)\n',
        '        cancel = tuple(a.DeletePod(pod.name, pod.uid, "deleted") for pod in seen.pods)\n',
    ),
    "a grant is not looked at": (
        "reconcile",
        "spec.wanted_pods(role.role, view.granted)",
        "spec.wanted_pods(role.role)",
    ),
    "surplus pods stay": (
        "scaling",
        "    if surplus <= 0:\n        return Change()",
        "    if surplus <= 9:\n        return Change()",
    ),
}


def planted(module: str, old: str, new: str) -> Reconcile:
    """Return `reconcile` with one mistake."""
    changed = {name: _load(name, *((old, new) if name == module else ("", ""))) for name in ("scaling", "reconcile")}
    for name in ("plan_change", "sort_pods"):
        setattr(changed["reconcile"], name, getattr(changed["scaling"], name))
    found = changed["reconcile"].reconcile

    def decide(seen: Observation) -> Sequence[a.Action]:
        actions: Sequence[a.Action] = found(seen)
        return actions

    return decide


def _load(name: str, old: str, new: str) -> types.ModuleType:
    path = FOLDER / f"{name}.py"
    text = path.read_text()
    if old:
        assert text.count(old) == 1, f"{name}.py changed: adapt the planted bug"
        text = text.replace(old, new)
    spec = importlib.util.spec_from_loader(f"planted_{name}", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102  # the project's own source
    return module


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_caught(bug: str) -> None:
    decide = planted(*BUGS[bug])
    for seed in SEEDS:
        try:
            run_schedule(seed, decide)
            run_schedule(seed, decide, queue=True)
        except Broken:
            return
    pytest.fail(f"no schedule of {len(SEEDS)} caught: {bug}")
