"""Planted bugs of the task queue."""

from __future__ import annotations

from mutants.bugs import Planted
from mutants.edits import Edit

TASKS = (
    Planted(
        "any attempt of a shard",
        "task queue: fencing",
        "A report is accepted from any member that has the number of an attempt, and that of an earlier attempt too.",
        (
            Edit(
                "core/tasks/decide.py",
                "    shard = state.find(attempt)\n    if shard is None or shard.member != member:\n",
                "    shard = state.find(attempt) or next((each for each in state.held if each.number < attempt), None)\n"
                "    if shard is None:\n",
            ),
        ),
    ),
    Planted(
        "a shard for two members",
        "task queue: exactly once",
        "A shard that was returned is given out, and stays among the returned ones.",
        (
            Edit(
                "core/tasks/evolve.py",
                "        returned=tuple(each for each in state.returned if (each.kind, each.number) not in again),\n",
                "        returned=tuple(each for each in state.returned if (each.kind, each.number) in again),\n",
            ),
        ),
    ),
    Planted(
        "offsets that are two records",
        "task queue: exactly once",
        "A partition of a queue begins with the oldest record that it keeps whenever its newest ones become records.",
        (
            Edit(
                "core/tasks/partitions.py",
                "start=stops.get(each.partition, each.start)) for each in seen]\n",
                "start=each.start) for each in seen]\n",
            ),
        ),
    ),
    Planted(
        "a shard without the offsets of its records",
        "task queue: exactly once",
        "A shard that was returned is given out with the offsets of all its records, not of those that are left.",
        (
            Edit(
                "core/tasks/model.py",
                "        return self.offsets.between(start, self.terms.range_of(kind, number).stop)\n",
                "        return self.offsets.between(*self.terms.range_of(kind, number)[1:])\n",
            ),
        ),
    ),
    Planted(
        "no deadline of shards",
        "task queue: liveness",
        "A shard without progress stays with its member.",
        (
            Edit(
                "core/tasks/decide.py",
                "shard is None or shard.upto != command.upto",
                "shard is None or shard.upto >= 0",
            ),
        ),
    ),
    Planted(
        "a deadline that progress does not extend",
        "task queue: liveness",
        "The deadline of a shard begins when it is given out, and its expiry takes it from a member that works on it.",
        (
            Edit(
                "coordinator/service/liveness.py",
                'f"{each.attempt}:{each.upto}"): deadline_s',
                'f"{each.attempt}:{each.start}"): deadline_s',
            ),
        ),
    ),
    Planted(
        "the position forgotten",
        "task queue: exactly once",
        "A shard that is given out again begins with its first record, though some were reported.",
        (
            Edit(
                "core/tasks/evolve.py",
                "    return state.terms.range_of(shard.kind, shard.number).start if again else shard.upto\n",
                "    return shard.start if again or shard.upto else shard.upto\n",
            ),
        ),
    ),
    Planted(
        "an evaluation that goes on",
        "task queue: evaluations",
        "An evaluation shard goes on where it was, and the sums of the records before are lost.",
        (
            Edit(
                "core/tasks/evolve.py",
                "    again = state.begins_again(shard.kind)\n",
                "    again = state.begins_again(shard.kind) and shard.upto == shard.start\n",
            ),
        ),
    ),
    Planted(
        "training before evaluation",
        "task queue: evaluations",
        "Evaluation shards come after all training shards.",
        (
            Edit(
                "core/tasks/decide.py",
                "    for kind in (ShardKind.EVALUATE, state.terms.kind):\n",
                "    for kind in (state.terms.kind, ShardKind.EVALUATE):\n",
            ),
        ),
    ),
    Planted(
        "new shards before returned ones",
        "task queue: size",
        "Returned shards wait until no new one is left, so that the state grows with every lost member.",
        (
            Edit(
                "core/tasks/decide.py",
                "        first, end = _new_numbers(state, kind)\n",
                "        first, end = _new_numbers(state, kind)\n        if first < end:\n            chosen = []\n",
            ),
        ),
    ),
    Planted(
        "a drained member's shards are lost",
        "task queue: exactly once",
        "The shards of a member that leaves count as done.",
        (
            Edit(
                "core/tasks/evolve.py",
                "    state = _with_returned(state, state.held_by(member), lost=lost)\n",
                "    gone = state.held_by(member)\n"
                "    state = _with_returned(state, gone, lost=lost) if lost else replace(\n"
                "        state, held=tuple(each for each in state.held if each not in gone)\n"
                "    )\n",
            ),
        ),
    ),
    Planted(
        "another attempt without what was held",
        "task queue: exactly once",
        "A job that is created again goes on without the shards that were held when it ended.",
        (
            Edit(
                "core/tasks/evolve.py",
                "    return change(_with_returned(state, state.held, lost=False), last_done=())\n",
                "    return change(_with_returned(state, state.held[1:], lost=False), held=(), last_done=())\n",
            ),
        ),
    ),
    Planted(
        "attempts from 1 again",
        "task queue: fencing",
        "Another attempt of the job uses the numbers of attempts again.",
        (
            Edit(
                "core/tasks/evolve.py",
                "    return change(_with_returned(state, state.held, lost=False), last_done=())\n",
                "    return change(_with_returned(state, state.held, lost=False), last_done=(), attempts=0)\n",
            ),
        ),
    ),
    Planted(
        "a position before the last one",
        "task queue: positions",
        "A delayed report sets the position of a shard back.",
        (Edit("core/tasks/decide.py", "    if command.upto <= shard.upto:\n", "    if command.upto == shard.upto:\n"),),
    ),
    Planted(
        "a repeated report is refused",
        "task queue: reports",
        "A member whose report was stored, and whose answer was lost, is refused, and does the shard's work for nothing.",
        (
            Edit(
                "core/tasks/decide.py",
                "    if any((each.member, each.attempt) == (command.member, command.attempt) for each in state.last_done):\n",
                "    if any((each.member, each.attempt) == (command.member, -command.attempt) for each in state.last_done):\n",
            ),
        ),
    ),
    Planted(
        "a shard that raised is dropped",
        "task queue: exactly once",
        "A shard on which user code raised counts as done.",
        (
            Edit(
                "core/tasks/evolve.py",
                "            return _with_returned(state, raised, lost=False)\n",
                "            return change(state, held=tuple(each for each in state.held if each.attempt != event.attempt))\n",
            ),
        ),
    ),
    Planted(
        "a record that always raises is tried for ever",
        "task queue: liveness",
        "The job goes on however many members a shard raised on.",
        (Edit("core/tasks/decide.py", "    if len(members) < RAISED_MAX:\n", "    if members:\n"),),
    ),
    Planted(
        "finished before the last evaluation",
        "task queue: evaluations",
        "The job is finished while an evaluation goes on.",
        (
            Edit(
                "core/tasks/decide.py",
                "    if done == terms.total_shards and state.evaluation is None and not terms.awaits_records:\n",
                "    if done == terms.total_shards and not terms.awaits_records:\n",
            ),
        ),
    ),
    Planted(
        "a queue that is done and not finished",
        "task queue: liveness",
        "A job that is created again with fewer epochs, all of them done, waits for ever.",
        (
            Edit(
                "core/tasks/decide.py",
                "    if job.tasks is not None and command.terms.after(job.tasks.terms) == job.tasks.terms:\n"
                "        return (joined,)\n",
                "    if job.tasks is not None and command.member:\n        return (joined,)\n",
            ),
        ),
    ),
    Planted(
        "a member that hangs takes shards",
        "task queue: liveness",
        "The sending thread of a member takes a shard again that was returned because its training thread hangs.",
        (
            Edit(
                "core/tasks/member.py",
                "        return self._busy_since is not None and now > self._busy_since + self._busy_max_s\n",
                "        return self._busy_since is not None and now < self._busy_since\n",
            ),
        ),
    ),
    Planted(
        "a position lost with another shard's report",
        "task queue: audit",
        "A refused report drops the position in the next shard, and the audit counts too few repeated records.",
        (
            Edit(
                "core/tasks/member.py",
                "                if self._position is not None and self._position.attempt == command.attempt:\n",
                "                if self._position is not None:\n",
            ),
        ),
    ),
    Planted(
        "a returned shard goes on",
        "task queue: fencing",
        "A member goes on with a shard that it does not hold any more.",
        (
            Edit(
                "core/tasks/member.py",
                "        return self.is_over or shard.attempt not in self._open\n",
                "        return self.is_over and shard.attempt not in self._open\n",
            ),
        ),
    ),
    Planted(
        "repeated evaluations are not counted",
        "task queue: audit",
        "The audit counts too few repeated records where an evaluation begins a shard again.",
        (
            Edit(
                "core/tasks/audit.py",
                "            self.repeated_max += upto - shard.start  # an evaluation begins its shard again\n",
                "            self.repeated_max += 0\n",
            ),
        ),
    ),
    Planted(
        "workers of a queue never join",
        "task queue: liveness",
        "An agent takes a worker of a task queue that was drained for one that never joined, and fails the job.",
        (
            Edit(
                "core/supervisor/orders.py",
                "            return _with_joined(state, name), ()\n",
                "            return (state if name else _with_joined(state, name)), ()\n",
            ),
        ),
    ),
    Planted(
        "a shard is done before a mean has it",
        "task queue: pair averaging",
        "A shard is done as soon as its member processed it, and is lost with the model of that member.",
        (
            Edit(
                "core/tasks/decide.py",
                "    if state.terms.averages:\n        return () if",
                "    if state.terms.averages and command.records < 0:\n        return () if",
            ),
        ),
    ),
    Planted(
        "shards continue without their effect",
        "task queue: pair averaging",
        "With pair averaging a returned shard is continued where its member was, whose model is gone.",
        (
            Edit(
                "core/tasks/model.py",
                "        return kind is ShardKind.EVALUATE or self.terms.averages\n",
                "        return kind is ShardKind.EVALUATE\n",
            ),
        ),
    ),
    Planted(
        "any model in a mean",
        "task queue: pair averaging",
        "A mean has models that were not averaged with the mean before, and may lack shards that are done.",
        (
            Edit(
                "core/tasks/pairs.py",
                " if copy.base == peers.saves]",
                " if copy.base <= peers.saves]",
            ),
        ),
    ),
    Planted(
        "a late mean replaces a newer one",
        "task queue: pair averaging",
        "A mean of models from before the newest mean is accepted as the next one.",
        (
            Edit(
                "core/tasks/decide.py",
                "    if command.number != state.saves + 1:\n",
                "    if command.number > state.saves + 1:\n",
            ),
            Edit(
                "core/tasks/decide.py",
                "t.ModelSaved(now, command.member, command.number, command.name, done)",
                "t.ModelSaved(now, command.member, state.saves + 1, command.name, done)",
            ),
        ),
    ),
)
