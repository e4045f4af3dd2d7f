"""Bugs planted in how workers are launched together: see `mutants.planted`."""

from __future__ import annotations

from mutants.bugs import Planted
from mutants.edits import Edit

LAUNCHES = (
    Planted(
        "launched too soon",
        "P6, launches",
        "The next launch does not wait for agents whose workers still run.",
        (
            Edit(
                "core/job/launches.py",
                "    if busy := _agents_not_ready(job):",
                "    if launch is None and (busy := _agents_not_ready(job)):",
            ),
        ),
    ),
    Planted(
        "stopped workers are heard",
        "launches",
        "A worker that was asked to end, and did so well, counts as one that is done.",
        (
            Edit(
                "core/supervisor/endings.py",
                " if live or is_over or not asked else ()\n",
                " if live or not asked or ended.code == 0 else ()\n",
            ),
            Edit("core/job/launches.py", "    if launch.over:\n        return (ended,)\n", ""),
        ),
    ),
    Planted(
        "ready for a launch before",
        "P6, launches",
        "A late word that none of an agent's workers runs is taken for one on the launch that runs now.",
        (
            Edit(
                "core/job/launches.py",
                "(launch is not None and command.generation < launch.number)",
                "(launch is not None and not launch.number)",
            ),
        ),
    ),
    Planted(
        "parameter servers refilled",
        "launches",
        "A parameter server is replaced beside workers that know nothing of it.",
        (Edit("core/job/launches.py", '{"worker", "evaluator"}', '{"worker", "evaluator", "ps"}'),),
    ),
    Planted(
        "ends said once",
        "launches",
        "How a worker ended is not said again when the word was lost.",
        (
            Edit(
                "core/supervisor/launched.py",
                "    unheard = {seat.member for seat in launch.seats} - {end.member for end in launch.ends}\n",
                "    unheard: set[MemberId] = set()\n",
            ),
        ),
    ),
    Planted(
        "no backoff",
        "launches",
        "A script that fails at once is launched again at once.",
        (
            Edit(
                "core/supervisor/launched.py",
                "        if order.ready or not state.capacity or now < state.not_before:\n",
                "        if order.ready or not state.capacity:\n",
            ),
        ),
    ),
    Planted(
        "ready too soon",
        "P6, launches",
        "An agent says that none of its workers runs when it has asked them to end.",
        (
            Edit(
                "core/supervisor/launched.py",
                "    if stray or state.ended or state.leaving:",
                "    if state.ended or state.leaving:",
            ),
        ),
    ),
    Planted(
        "restarted agent goes on",
        "launches",
        "An agent that was started again is expected to have its workers still.",
        (
            Edit(
                "core/job/evolve.py",
                "return change(job, agents=(*others, agent), launch=launch, permits=permits)",
                "return change(job, agents=(*others, agent), launch=launch and job.launch, permits=permits)",
            ),
        ),
    ),
    Planted(
        "killed from outside counts",
        "launches",
        "Workers that fail because another was killed use up the restarts.",
        (
            Edit(
                "core/job/launches.py",
                "    if not all(end.code == 0 or is_own_failure(end.code) for end in ends):\n        return None\n",
                "",
            ),
        ),
    ),
    Planted(
        "lost machine counts",
        "launches",
        "Workers that fail because a machine is gone use up the restarts.",
        (
            Edit(
                "core/job/launches.py",
                "    if launch.lost or not staying.issuperset(",
                "    if not staying.issuperset(",
            ),
        ),
    ),
    Planted(
        "live job launched",
        "P1",
        "A change in a job whose workers have joined launches all of them again.",
        (
            Edit(
                "core/job/next_world.py",
                "    if not job.is_live:\n        return next_launch",
                "    if job.launch is not None or not job.is_live:\n        return next_launch",
            ),
        ),
    ),
    Planted(
        "another machine's orders",
        "launches",
        "An agent that comes back acts on the orders of another one that has its name by now.",
        (
            Edit(
                "core/supervisor/orders.py",
                "    return bool(order.install_id and state.install_id) and order.install_id != state.install_id\n",
                "    return bool(order.install_id and state.install_id) and order.install_id == state.run_id\n",
            ),
        ),
    ),
    Planted(
        "orders of an earlier life",
        "launches",
        "An agent that was started again acts on orders that were given before.",
        (
            Edit(
                "core/supervisor/orders.py",
                '    return order.install_id == state.install_id and order.run_id not in ("", state.run_id)\n',
                '    return order.install_id == state.install_id and order.run_id in ("none", state.install_id)\n',
            ),
        ),
    ),
    Planted(
        "no member is killed",
        "launches",
        "A worker that ignores SIGTERM is waited for.",
        (Edit("core/supervisor/decide.py", "(Kill(member),) if member in state.workers else ()", "()"),),
    ),
    Planted(
        "done too soon",
        "launches",
        "A job is finished when its first worker has ended well.",
        (
            Edit(
                "core/job/launches.py",
                "    if any(other.member not in done for other in launch.seats):\n",
                "    if not done:\n",
            ),
        ),
    ),
    Planted(
        "generations begin again",
        "rule 4",
        "Another attempt counts its generations from the beginning.",
        (
            Edit(
                "core/job/evolve.py",
                "        generation=job.generation,\n        generation_before=",
                "        generation=0,\n        generation_before=",
            ),
        ),
    ),
    Planted(
        "drained agents get seats",
        "launches",
        "An agent that leaves is launched on again.",
        (Edit("core/job/launches.py", "if not agent.draining and (agent.ports", "if (agent.ports"),),
    ),
)
