"""Bugs planted in how a live job's checkpoints are written, published, passed over and tidied up (rule 17)."""

from __future__ import annotations

from mutants.bugs import Planted
from mutants.edits import Edit

_JOB = "core/job/checkpoints.py"
_MEMBER = "core/member/checkpoint.py"

SAVING = (
    Planted(
        "published with a part missing",
        "rule 17",
        "A manifest is published although a member's part has yet to come.",
        (Edit(_JOB, "    if len(parts) < command.count:\n", "    if len(parts) < command.count - 1:\n"),),
    ),
    Planted(
        "parts of two states",
        "rule 17, P4",
        "Parts that members wrote of different states are put together.",
        (
            Edit(
                _JOB,
                "(writing.lineage, writing.state, writing.count) != (lineage, checkpoint.state, command.count)",
                "writing.count != command.count",
            ),
        ),
    ),
    Planted(
        "parts of a sealed generation",
        "rule 17",
        "After a recovery a part of the world before counts, though others of it are lost.",
        (
            Edit(
                _JOB,
                "    if command.count > 1 and writer_generation(checkpoint.name) <= job.sealed:\n",
                "    if command.count > 99 and writer_generation(checkpoint.name) <= job.sealed:\n",
            ),
        ),
    ),
    Planted(
        "a leaver's part is refused",
        "rule 17",
        "The part of a member that leaves is not heard once the others have gone on.",
        (
            Edit(
                _JOB,
                "    return world if leaves and job.sealed < command.generation < job.current else None\n",
                "    return None if leaves else None\n",
            ),
        ),
    ),
    Planted(
        "the last state is left unsaved",
        "rule 17",
        "Who hears of the end before its last words come back leaves with its part unwritten.",
        (
            Edit(
                _MEMBER,
                "    if m.part_in_progress is not None and m.part_in_progress.lineage == view.durable:\n",
                "    if False:\n",
            ),
        ),
    ),
    Planted(
        "saved twice where a world closes",
        "rules 16, 17",
        "The state is begun at the boundary, and again under the same name when the world has closed.",
        (
            Edit(
                _MEMBER,
                "(step < m.terms.grid.total_steps and _training_pauses(m))",
                "(step < 0 and _training_pauses(m))",
            ),
        ),
    ),
    Planted(
        "a damaged checkpoint for ever",
        "rule 17",
        "A checkpoint that is damaged is not passed over for the one before.",
        (
            Edit(
                "core/job/evolve.py",
                "                checkpoint=newest_left,\n                older_checkpoints=job.older_checkpoints[:-1],\n",
                "                older_checkpoints=job.older_checkpoints[:-1] if newest_left else (),\n",
            ),
        ),
    ),
    Planted(
        "out of reach is damaged",
        "rule 17",
        "A checkpoint that one member cannot reach is given up for an older one.",
        (
            Edit(
                "core/job/evolve.py",
                "        case m.CheckpointUnreadable(damaged=True):\n",
                "        case m.CheckpointUnreadable():\n",
            ),
        ),
    ),
    Planted(
        "kept ones are removed",
        "rule 17",
        "Garbage collection removes all but the newest checkpoint.",
        (
            Edit(
                _JOB,
                "name in kept or not origin < writer_generation(name) <= generation:\n",
                "name in kept[-1:] or not origin < writer_generation(name) <= generation:\n",
            ),
        ),
    ),
    Planted(
        "asked for ever",
        "rule 17",
        "A checkpoint that a user asked for is there, and is still asked for.",
        (
            Edit(
                "core/job/evolve.py",
                "if job.checkpoint_wanted_at_step is not None and step >= job.checkpoint_wanted_at_step",
                "if False",
            ),
        ),
    ),
    Planted(
        "asked for and never begun",
        "rule 17",
        "What the words ask for is forgotten at the boundary.",
        (
            Edit(
                _MEMBER,
                "    asked, m.checkpoint_wanted = m.checkpoint_wanted, False\n",
                "    asked = m.checkpoint_wanted = False\n",
            ),
        ),
    ),
    Planted(
        "a failure said once",
        "rule 17",
        "That a part will never come is said once, and may be lost.",
        (
            Edit(
                "core/member/machine.py", "    checkpoint.report_pending(m, out)\n", "    checkpoint.publish(m, out)\n"
            ),
        ),
    ),
    Planted(
        "a leaver does not wait for its part",
        "rules 16, 17",
        "A member that leaves takes the part it is writing with it.",
        (
            Edit(
                "core/member/leave.py",
                "    if _recovery_needs_us(m, view) or is_pending(m):\n",
                "    if _recovery_needs_us(m, view):\n",
            ),
        ),
    ),
    Planted(
        "survivors below min wait unsaved",
        "rule 16, P2",
        "The survivors of a loss wait for other members and save nothing; a second loss costs their steps.",
        (
            Edit(
                "core/job/next_world.py",
                "    if job.broken:\n        return _recovery(job, survivors, job.broken)\n",
                "    if job.broken:\n"
                "        due = _recovery(job, survivors, job.broken)\n"
                "        return NoWorldYet(due.why) if due.hold else due\n",
            ),
        ),
    ),
    Planted(
        "a job ends unsaved",
        "rule 20, P2",
        "A job that fails or is cancelled drops the state of its healthy members.",
        (
            Edit(
                "core/job/decide.py",
                "    if not job.holders or job.untrusted_after_step is not None:\n",
                "    if not job.state.ended:\n",
            ),
        ),
    ),
)
