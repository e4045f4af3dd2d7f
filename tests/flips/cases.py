"""Checks of flipped bits: they are found, the right member is evicted, and the weights are the undisturbed ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flips.story import Plan, Story, together
from pliant.core.messages import MemberGone, SlotDisputed, StatesDiffered, WorldFormed
from pliant.core.model.world import WorldKind

STEP = 25
RATE = 0.05
SPREAD = 4.0  # standard deviations of a binomial count: one run in 16,000 is outside by chance


def weights_each_step(folder: Path, sha: str) -> tuple[str, list[str]]:
    """verify=1: found in the step that would have used it, and nothing has to be computed again."""
    story = together(Plan(flips="weights", steps=[STEP], verify=1), folder, "2:3")
    found = story.of(StatesDiffered)
    lost = {event.member for event in story.of(MemberGone) if event.how == "lost"}
    broken = _same_bits(story, sha)
    if [(each.step, each.rolls_back) for each in found] != [(STEP - 1, False)]:
        broken.append(f"a flip in step {STEP} should be found there, without going back: {found}")
    if lost != {story.flipped.get(STEP)}:
        broken.append(f"{story.flipped.get(STEP)} should be evicted, and {lost or 'no member'} was")
    if story.audit.get("rolled_back") != 0:
        broken.append(f"no step should be lost: {story.audit}")
    return f"found in step {STEP}, {', '.join(lost)} evicted", broken


def weights_now_and_then(folder: Path, sha: str) -> tuple[str, list[str]]:
    """verify=20: what was computed from it is computed again."""
    story = together(Plan(flips="weights", steps=[STEP], verify=20), folder, "2:3")
    back = [e.world for e in story.of(WorldFormed) if e.world.kind is WorldKind.ROLLBACK and e.world.number > 1]
    lost = {event.member for event in story.of(MemberGone) if event.how == "lost"}
    broken = _same_bits(story, sha)
    if [world.base.step for world in back] != [20]:
        broken.append(f"the world should go back to step 20: {back}")
    if lost != {story.flipped.get(STEP)}:
        broken.append(f"{story.flipped.get(STEP)} should be evicted, and {lost or 'no member'} was")
    steps = [each.step - 20 for each in story.of(StatesDiffered)]
    return f"{', '.join(lost)} evicted, back to step 20, {sum(steps)} steps computed again", broken


def weights_of_one_of_two(folder: Path, sha: str) -> tuple[str, list[str]]:
    """Two members have no majority: no member is evicted, and both go back to where they agreed."""
    story = together(Plan(flips="weights", steps=[STEP], verify=1), folder, "2:2")
    back = [e.world for e in story.of(WorldFormed) if e.world.kind is WorldKind.ROLLBACK and e.world.number > 1]
    lost = [event.member for event in story.of(MemberGone) if event.how == "lost"]
    broken = _same_bits(story, sha)
    if [world.base.step for world in back] != [20] or lost:
        broken.append(f"both should go back to step 20, and no member be lost: {back}, {lost}")
    return "no member evicted, back to step 20", broken


def gradient_checked_always(folder: Path, sha: str) -> tuple[str, list[str]]:
    """verify_slots=1: every slot is computed twice, so a wrong gradient is never applied."""
    story = together(Plan(flips="gradient", steps=[STEP], verify_slots=1.0), folder, "3:3")
    found = story.of(SlotDisputed)
    broken = _same_bits(story, sha)
    if {each.disputed.step for each in found} != {STEP}:
        broken.append(f"the dispute should be about step {STEP}: {found}")
    if not any(story.flipped.get(STEP) in (each.disputed.dispute.a, each.disputed.dispute.b) for each in found):
        broken.append(f"{story.flipped.get(STEP)} should be in the dispute: {found}")
    return f"found in step {STEP}, computed again", broken


def gradient_checked_rarely(folder: Path, _sha: str) -> tuple[str, list[str]]:
    """verify_slots=0.05: of many wrong gradients about that share is found."""
    epochs = 40
    flips = range(5, epochs * 10, 2)
    story = together(Plan(epochs=epochs, flips="gradient", steps=flips, verify_slots=RATE), folder, "2:3")
    count = len(story.flipped)
    found = len({each.disputed.step for each in story.of(SlotDisputed)} & story.flipped.keys())
    expected, deviation = RATE * count, (RATE * (1 - RATE) * count) ** 0.5
    broken = [] if story.code == 0 else [f"the job did not finish: {story.output[-500:]}"]
    if count < len(flips) // 2 or abs(found - expected) > SPREAD * deviation:
        broken.append(f"{found} of {count} wrong gradients were found, {expected:.1f} were to be expected")
    return f"{found} of {count} found, {expected:.1f} +- {deviation:.1f} expected", broken


CASES: dict[str, Callable[[Path, str], tuple[str, list[str]]]] = {
    "weights, verify=1, three members": weights_each_step,
    "weights, verify=20, three members": weights_now_and_then,
    "weights, verify=1, two members": weights_of_one_of_two,
    "gradient, verify_slots=1.0": gradient_checked_always,
    "gradient, verify_slots=0.05": gradient_checked_rarely,
}


def _same_bits(story: Story, sha: str) -> list[str]:
    if story.code or story.shas != {sha}:
        return [f"the weights are not those of an undisturbed run: {story.shas or story.output[-500:]}"]
    return [] if story.audit.get("ok") else [f"the audit is not clean: {story.audit}"]
