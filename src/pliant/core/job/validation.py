"""Validation of values in commands, in any state of a job.

`bad_spec`, `bad_target` and `bad_name` return what is wrong, or the empty string. `fresh_lines` returns the lines to
store, or the refusal. The others return the refusal, or None.
"""

from __future__ import annotations

from math import inf

from pliant.core.data.grid import BATCH_MAX, Grid
from pliant.core.data.ledger import LedgerLine, can_follow, with_changes_of
from pliant.core.data.sample_order import Cursor
from pliant.core.messages import Code, Create, Join, Rejection
from pliant.core.model.checkpoint import CheckpointPolicy
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import Autoscale, FailingSlots, Job, JobSpec, Mode, Target, Terms
from pliant.core.model.names import MEMBER_NAME_MAX, bad_name
from pliant.core.model.world import World
from pliant.core.policy.schedule import bad_schedule

GRACE_MAX_S = 30 * 86400.0
WAIT_MAX_S = 365 * 86400.0
WEIGHT_MAX = 1_000_000
CHECKPOINT_NAME_MAX = 255
PIECES_MAX = 4  # files of one member's part of a checkpoint
KEEP_MAX = 1000
ADDRESS_MAX = 255
PID_MAX = 2**32 - 1
PORT_MAX = 65535
CHIEF = "chief"
PARAMETER_SERVER = "ps"
ROLES = (CHIEF, PARAMETER_SERVER, "evaluator")  # TensorFlow's; the others are workers
WORKER = "worker"
PAIRS_MAX = 32  # of a user's own terms, and of a fingerprint
PAIR_NAME_MAX = 63
PAIR_VALUE_MAX = 255
VERIFY_MAX = 1_000_000
PRIORITY_MAX = 1000
SCRIPT_MAX = 4096  # characters of a script's path and its arguments together
DEADLINE_MAX = 253402300799.0  # the end of the year 9999
SIZE_MAX = 100_000  # far beyond what one coordinator can serve; catches typing errors


# The fields of Terms, by the names of the user's settings.
TERM_NAMES = ("samples", "batch_size", "slots", "epochs", "turns", "max_steps", "seed", "checkpoint_every", "verify")


def bad_create(command: Create) -> Rejection | None:
    if wrong := bad_name(command.name) or bad_spec(command.spec):
        return Rejection(Code.BAD, wrong)
    if command.fresh and command.only_settings:
        return Rejection(Code.BAD, "fresh and only_settings cannot be combined")
    return None


def bad_spec(spec: JobSpec) -> str:
    """Return what is wrong with a job's settings, or the empty string."""
    low, high = spec.size_min, spec.size_max
    if not 1 <= low <= high <= SIZE_MAX:
        return f"sizes must satisfy 1 <= min <= max <= {SIZE_MAX}; got min {low}, max {high}"
    if spec.wait_limit_s is not None and not 0 < spec.wait_limit_s <= WAIT_MAX_S:
        return f"wait_limit_s must be above 0 and at most {WAIT_MAX_S:g}; got {spec.wait_limit_s}"
    if spec.max_restarts < 0:
        return f"max_restarts cannot be negative; got {spec.max_restarts}"
    if not 0 <= spec.spares <= SIZE_MAX:
        return f"spares must be 0 to {SIZE_MAX}; got {spec.spares}"
    if wrong := _bad_schedule(spec) or _bad_policy(spec.checkpoints) or _bad_roles(spec) or _bad_autoscale(spec):
        return wrong
    return bad_target(low, high, spec.target or spec.initial_target) or _bad_queue(spec) or bad_script(spec)


def _bad_schedule(spec: JobSpec) -> str:
    if spec.schedule and spec.mode in (Mode.RELAUNCH, Mode.TASKS):
        return f"a schedule counts the steps of a live job, and mode {spec.mode.value} has none: remove --schedule"
    if spec.schedule and spec.target is not None and not spec.schedule[0][0]:
        return (
            f"the schedule begins with {spec.schedule[0][1]} workers at step 0, and the target is {spec.target.size}: "
            "pass one of them"
        )
    return bad_schedule(spec.schedule, spec.size_min, spec.size_max)


def _bad_queue(spec: JobSpec) -> str:
    if spec.queue and (wrong := bad_name(spec.queue)):
        return f"the queue's name is not valid: {wrong}"
    if abs(spec.priority) > PRIORITY_MAX:
        return f"the priority must be {-PRIORITY_MAX} to {PRIORITY_MAX}; got {spec.priority}"
    if spec.priority and not spec.queue:
        return f"the priority {spec.priority} has no effect without a queue: pass --queue NAME"
    if spec.at_most_cost is not None and not spec.queue:
        return "a cost limit counts the slots of a pool: pass --queue NAME with --at-most-cost"
    if spec.at_most_cost is not None and not 0 < spec.at_most_cost < inf:
        return f"the cost limit must be above 0 and finite; got {spec.at_most_cost}"
    if wrong := _bad_deadline(spec):
        return wrong
    if not spec.queue and (spec.suspended or spec.sizes or spec.unit != 1):
        return "suspended, sizes and unit have an effect only in a queue"
    if not 1 <= spec.unit <= SIZE_MAX:
        return f"unit must be 1 to {SIZE_MAX}; got {spec.unit}"
    if any(not spec.size_min <= size <= spec.size_max for size in spec.sizes):
        return f"sizes must be {spec.size_min} to {spec.size_max}; got {spec.sizes}"
    if spec.queue and spec.initial_target.placement:
        return "a job in a queue cannot have a placement: the pool decides how many workers it has"
    return ""


def _bad_deadline(spec: JobSpec) -> str:
    if spec.deadline is None:
        return ""
    if not 0 < spec.deadline <= DEADLINE_MAX:
        return f"the deadline must be a time from 1970 to 9999, in seconds since 1970; got {spec.deadline}"
    if not spec.queue:
        return "a deadline decides between jobs of a pool: pass --queue NAME with --deadline"
    if spec.mode in (Mode.RELAUNCH, Mode.TASKS):
        return f"a deadline needs the speed of a live job, and mode {spec.mode.value} has none: remove --deadline"
    return ""


def bad_script(spec: JobSpec) -> str:
    """Return why lent machines cannot run the script of a job, or the empty string.

    The script is a path below the folder that a machine's owner named, so it cannot lead out of it.
    """
    if not spec.script:
        return ""
    name = spec.script[0]
    if not name or name.startswith(("/", "-")) or ".." in name.split("/"):
        return f"the script must be a path below the folder of scripts, without '..'; got {name[:60]!r}"
    if any("\0" in word for word in spec.script) or sum(map(len, spec.script)) > SCRIPT_MAX:
        return f"the script and its arguments must have up to {SCRIPT_MAX} characters, without zero bytes"
    return "" if spec.queue else "machines are lent to the jobs of a pool: pass --queue NAME with a script"


def _bad_autoscale(spec: JobSpec) -> str:
    if spec.autoscale is Autoscale.OFF:
        return ""
    if spec.mode in (Mode.RELAUNCH, Mode.TASKS):
        return f"autoscaling counts the samples of a live job, and mode {spec.mode.value} has none: remove --autoscale"
    if spec.schedule:
        return "a schedule and autoscaling both choose the number of workers: pass --schedule or --autoscale"
    return "" if not spec.initial_target.placement else "a job with a placement cannot be autoscaled"


def _bad_policy(policy: CheckpointPolicy) -> str:
    if policy.steps < 0 or not 0 <= policy.seconds <= WAIT_MAX_S:
        return f"checkpoint intervals must be 0 or more steps, and 0 to {WAIT_MAX_S:g} seconds"
    return "" if 1 <= policy.keep <= KEEP_MAX else f"checkpoints to keep must be 1 to {KEEP_MAX}; got {policy.keep}"


def _bad_roles(spec: JobSpec) -> str:
    names = [role for role, _ in spec.roles]
    if len({*names}) < len(names) or not set(names) <= {*ROLES}:
        return f"roles must be {', '.join(ROLES)}, each named once; the rest are workers"
    if any(count < 1 for _, count in spec.roles) or any(x == CHIEF and count > 1 for x, count in spec.roles):
        return "a role must have at least one worker, and chief exactly one"
    if spec.roles and spec.mode in (Mode.LIVE, Mode.TASKS):
        return (
            f"a {'live job' if spec.mode is Mode.LIVE else 'task queue'} cannot have roles: its members are all equal"
        )
    if sum(count for _, count in spec.roles) >= spec.size_max:
        return f"at least one plain worker is required; the roles take all {spec.size_max}"
    return ""


def bad_target(low: int, high: int, target: Target) -> str:
    """Return what is wrong with a target of a job with these sizes, or the empty string."""
    if not low <= target.size <= high:
        return f"the target must lie between min {low} and max {high}; got {target.size}"
    if target.placement and sum(count for _, count in target.placement) != target.size:
        return f"the placement's counts must add up to the target {target.size}"
    if any(count < 0 for _, count in target.placement):
        return "a placement's counts cannot be negative"
    if len(dict(target.placement)) != len(target.placement):
        return "a placement must name each agent once"
    return ""


def bad_member(command: Join) -> Rejection | None:
    """Check a member that joins, without its terms."""
    if wrong := bad_name(command.member, MEMBER_NAME_MAX) or bad_name(command.agent):
        return Rejection(Code.BAD, wrong)
    if not 1 <= command.weight <= WEIGHT_MAX:
        return Rejection(Code.BAD, f"a member's weight must be 1 to {WEIGHT_MAX}; got {command.weight}")
    if len(command.address) > ADDRESS_MAX or not command.address.isprintable() or " " in command.address:
        why = f"a member's address must be host:port in up to {ADDRESS_MAX} characters without spaces"
        return Rejection(Code.BAD, f"{why}; got {command.address[:40]!r}")
    if not 0 <= command.pid <= PID_MAX:
        return Rejection(Code.BAD, f"a process id must be 0 to {PID_MAX}; got {command.pid}")
    if wrong := _bad_pairs(command.fingerprint, "the fingerprint"):
        return Rejection(Code.BAD, wrong)
    return None


def bad_terms(terms: Terms) -> Rejection | None:
    if not 0 <= terms.verify <= VERIFY_MAX:
        return Rejection(Code.BAD, f"verify must be 0 to {VERIFY_MAX} steps; got {terms.verify}")
    if terms.verify and terms.checkpoint_every % terms.verify:
        why = f"checkpoint_every must be a multiple of verify {terms.verify}, so that only verified states are saved"
        return Rejection(Code.BAD, f"{why}; got {terms.checkpoint_every}")
    if wrong := _bad_pairs(terms.extra, "the extra terms", TERM_NAMES):
        return Rejection(Code.BAD, wrong)
    return None


def _bad_pairs(pairs: Fingerprint, what: str, taken: tuple[str, ...] = ()) -> str:
    """Check names and values that a user chose. `taken` are names that Pliant uses itself."""
    names = [name for name, _ in pairs]
    if len(names) > PAIRS_MAX:
        return f"{what} can have up to {PAIRS_MAX} entries; got {len(names)}"
    if len({*names, *taken}) < len(names) + len(taken):
        reserved = f", other than {', '.join(taken)}" if taken else ""
        return f"the names in {what} must differ{reserved}"
    if not all(1 <= len(name) <= PAIR_NAME_MAX and name.isprintable() for name in names):
        return f"the names in {what} must have 1 to {PAIR_NAME_MAX} printable characters"
    if not all(len(value) <= PAIR_VALUE_MAX and value.isprintable() for _, value in pairs):
        return f"the values in {what} must have up to {PAIR_VALUE_MAX} printable characters"
    return ""


def bad_failing_slots(failing: FailingSlots) -> Rejection | None:
    if failing.slots and len(failing.samples) == len(failing.slots):
        return None
    got = f"{len(failing.slots)} slots and the samples of {len(failing.samples)}"
    return Rejection(Code.BAD, f"name at least one slot, and the samples of each; got {got}")


def bad_grace(grace_s: float) -> Rejection | None:
    if 0 <= grace_s <= GRACE_MAX_S:  # false for NaN, too
        return None
    return Rejection(Code.BAD, f"a grace period must be 0 to {GRACE_MAX_S:g} s; got {grace_s}")


def fresh_lines(job: Job, lines: tuple[LedgerLine, ...], world: World) -> tuple[LedgerLine, ...] | Rejection:
    """Return the lines that are not durable yet, if they continue the history and were applied up to that world."""
    head = job.durable
    if any(line.lineage != head for line in lines if line.lineage.step == head.step):
        return Rejection(Code.MISMATCH, f"step {head.step} is durable with another history")
    fresh = tuple(line for line in lines if line.lineage.step > head.step)
    for line in fresh:
        if not can_follow(line, head):
            return Rejection(Code.NOT_NEXT, f"step {line.lineage.step} does not follow step {head.step}")
        head = line.lineage
        if not job.rollback_generation <= head.generation <= world.number:
            limits = f"{job.rollback_generation} to {world.number}"
            return Rejection(Code.MISMATCH, f"step {head.step} was applied in {head.generation}, not in {limits}")
        if line.next_batch and not job.slots <= line.next_batch < BATCH_MAX:
            why = f"step {head.step} agreed on a batch of {line.next_batch}, which {job.slots} slots cannot share"
            return Rejection(Code.BAD, why)
    if job.terms is not None and job.terms.grid.changes and (wrong := _wrong_start(job.terms.grid, fresh)):
        return Rejection(Code.MISMATCH, wrong)
    return fresh


def _wrong_start(grid: Grid, lines: tuple[LedgerLine, ...]) -> str:
    """Return which of these lines does not start where the last one ended; empty if all do.

    The batch has changed before, so a member that does not know of it would read other samples.
    """
    for line in lines:
        step = line.lineage.step
        start = grid.cursor(step) if step <= grid.total_steps else None
        if start != Cursor(line.epoch, line.position):
            return f"step {step} does not start where step {step - 1} ended"
        grid = with_changes_of(grid, (line,))
    return ""
