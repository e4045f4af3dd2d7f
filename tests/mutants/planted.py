"""The bugs that are planted on purpose: each breaks one rule of the protocol, and each must be caught.

`old` is an exact piece of the source that occurs once in its file; `new` is what a mistaken developer might have
written instead. The first fifteen undo the rules against counterexamples 1 to 15 of docs/internals/protocol.md.
"""

from __future__ import annotations

from mutants.bugs import Planted
from mutants.clusters import CLUSTERS
from mutants.edits import Edit
from mutants.launches import LAUNCHES
from mutants.saving import SAVING
from mutants.servers import SERVERS
from mutants.tasks import TASKS

PLANTED = (
    # --------------------------------------------------------- counterexamples 1 to 15 of docs/internals/protocol.md
    Planted(
        "commit on apply",
        "rule 1, H1",
        "A step counts as committed where it was applied, before any member knows whether the others applied it.",
        (
            Edit(
                "core/member/step.py",
                "    if world_of(m).members == (m.id,):\n        commit_lineage(m, out, m.lineage)",
                "    if m.holds_state:\n        commit_lineage(m, out, m.lineage)",
            ),
        ),
    ),
    Planted(
        "mixed entry",
        "rule 10, H2",
        "A member whose reduction failed goes on in the planned world it had wired.",
        (
            Edit(
                "core/member/machine.py",
                "    world = next((w for w in reversed(m.wired_worlds) if w.kind is not WorldKind.PLANNED), None)\n",
                "    world = m.wired_worlds[-1] if m.phase is Phase.STOPPED else None\n"
                "    world = world or next((w for w in reversed(m.wired_worlds) if w.kind is not WorldKind.PLANNED), None)\n",
            ),
            Edit(
                "core/member/recover.py",
                "    start_collective(m, out, Purpose.HELLO)\n\n\ndef on_restored(",
                "    if world.kind is WorldKind.PLANNED:\n"
                "        m.holders = frozenset(range(len(world.members)))\n"
                "        pass_boundary(m, out)\n"
                "        return\n"
                "    start_collective(m, out, Purpose.HELLO)\n\n\ndef on_restored(",
            ),
        ),
    ),
    Planted(
        "bare count of wired",
        "rule 8, H3",
        "Members count who wired anything newer, and each goes to the newest world that it wired itself.",
        (
            Edit(
                "core/member/step.py",
                "    m.switch_to = generation_to_enter(words)\n",
                "    newer = [word for word in words if word.wired > word.generation]\n"
                "    enough = bool(newer) and len(newer) >= newer[0].wired_needed and bool(generation_to_enter(newer[:1]) or m.wired_worlds)\n"
                "    m.switch_to = m.wired_worlds[-1].number if enough and m.wired_worlds else 0\n",
            ),
        ),
    ),
    Planted(
        "planned world withdrawn",
        "rule 5, H4",
        "A newer planned world takes the place of one that members may be switching to.",
        (
            Edit(
                "core/job/evolve.py",
                "worlds=(*job.worlds, world))",
                "worlds=(*(x for x in job.worlds if x.kind is not WorldKind.PLANNED or x.number <= job.current), world))",
            ),
        ),
    ),
    Planted(
        "one file name for two lineages",
        "rule 17, H5",
        "A checkpoint's name says the step and nothing else.",
        (
            Edit(
                "core/job/checkpoints.py",
                'return f"step-{lineage.step}-g{lineage.generation}-{lineage.digest:016x}-w{generation}{by}"',
                'return f"step-{lineage.step}-g1-{0:016x}-w1{by}"',
            ),
        ),
    ),
    Planted(
        "copy in place",
        "rule 13, H6",
        "A laggard lets its old state go before the new one is whole.",
        (
            Edit(
                "core/member/recover.py",
                "    else:\n        start_fetch(m, out, m.donors)",
                "    else:\n"
                "        m.holds_state = False\n"
                "        m.kept_gradients = KeptGradients(base=m.catch_up_to)\n"
                "        start_fetch(m, out, m.donors)",
            ),
            Edit(
                "core/member/recover.py",
                "    if line is not None and line.parent == m.lineage and line.lineage == m.catch_up_to:",
                "    if False:",
            ),
        ),
    ),
    Planted(
        "post-step code doubled",
        "rule 13, H7",
        "The user's post-step code runs once more on a state that was installed with its effects in it.",
        (
            Edit(
                "tools/pliant_sim/processes/worker.py",
                "        self.model = model\n        self.kept, self.kept_base = [], model.lineage\n",
                "        self.model = post_step(model)\n        self.kept, self.kept_base = [], model.lineage\n",
            ),
        ),
    ),
    Planted(
        "slotless member skipped",
        "rule 22, H8",
        "A member without samples in a step is yielded nothing, so the user's loop does not run there.",
        (
            Edit(
                "core/member/common.py",
                "        out.append(Compute(step, (idle_slot(grid, step, m.rank),), idle=True))",
                "        start_collective(m, out, Purpose.STEP)",
            ),
        ),
    ),
    Planted(
        "stripes of two steps",
        "rule 15, H9",
        "Stripes are put together whatever state they are stripes of.",
        (
            Edit(
                "core/member/join.py",
                "    if any(not _same_label(known, signal) for known in m.stripes):\n",
                "    if any(known.count != signal.count for known in m.stripes):\n",
            ),
        ),
    ),
    Planted(
        "comparison by step only",
        "rule 2, H10",
        "Of two lineages the one with the higher step wins, whichever generation applied it.",
        (
            Edit(
                "core/data/ledger.py",
                "        return (self.generation, self.step) > (other.generation, other.step)",
                "        return self.step > other.step",
            ),
        ),
    ),
    Planted(
        "last holder lets go",
        "rule 16, H11",
        "When every holder must go, they go without waiting for a checkpoint of what they hold.",
        (
            Edit(
                "core/member/leave.py",
                "    return _is_saved_or_in_vain(m, view)\n",
                "    return True\n",
            ),
        ),
    ),
    Planted(
        "leaver exits at once",
        "rule 9, H12",
        "Who is not in the next world goes as soon as its own reduction has returned.",
        (
            Edit(
                "core/member/step.py",
                "    if world is None:\n        leave.linger(m, out)\n        return\n",
                "    if world is None:\n        leave.on_grace_over(m, out)\n        return\n",
            ),
            Edit(
                "core/member/leave.py",
                'leave_job(m, out, 0, "the grace period is over", complete=m.phase is Phase.DONE and m.holds_state)',
                'leave_job(m, out, 0, "left as planned", complete=m.phase is Phase.DONE)',
            ),
        ),
    ),
    Planted(
        "kept slots dealt out again",
        "rule 14, H13",
        "After a failure all slots of the step are dealt out, those in kept sums too.",
        (
            Edit(
                "core/member/recover.py",
                "        todo = missing_slots(grid.filled(best.step + 1), kept)\n",
                "        todo = missing_slots(grid.filled(best.step + 1), [])\n",
            ),
        ),
    ),
    Planted(
        "buffers not staged",
        "rule 14, H14",
        "A forward pass changes the buffers at once, so a step computed twice leaves another state.",
        (
            Edit(
                "tools/pliant_sim/live/toy_model.py",
                "    return model\n",
                "    return replace(model, buffers=hash((model.buffers, -1)) & _MASK)\n",
            ),
        ),
    ),
    Planted(
        "victim's slot skipped",
        "rule 6, H15",
        "The slots of a lost member are not computed again, and the counts are not added up: the cursor moves on.",
        (
            Edit(
                "core/member/recover.py",
                "        todo = missing_slots(grid.filled(best.step + 1), kept)\n",
                "        todo = ()\n",
            ),
            Edit(
                "core/member/control_words.py",
                "    return _wrong_total(words, first.step, grid)\n",
                '    return ""\n',
            ),
        ),
    ),
    # ------------------------------------------------------------------------------------- six more
    Planted(
        "fence skipped",
        "P6, rule 17",
        "A report of a sealed generation is taken like any other.",
        (
            Edit(
                "core/job/decide.py",
                "    if generation <= job.sealed:\n",
                "    if generation < 0:\n",
            ),
            Edit(
                "core/job/decide.py",
                "    world = job.world(generation)\n    if world is None:\n        return Rejection(Code.PAST,",
                "    world = job.world(generation) or job.newest\n"
                "    if world is None:\n        return Rejection(Code.PAST,",
            ),
        ),
    ),
    Planted(
        "acknowledged before the write",
        "P5",
        "The answers are given first and the store is written afterwards.",
        (
            Edit(
                "coordinator/service/pump.py",
                "        again: dict[str, list[Submitted]] = {}\n        try:\n",
                "        again: dict[str, list[Submitted]] = {}\n"
                "        for draft, write in zip(writing, writes, strict=True):\n"
                "            self._adopt(draft, write, write.expected + len(write.events))\n"
                "        for draft in drafts:\n"
                "            self._finish(draft, replies)\n"
                "        try:\n",
            ),
            Edit(
                "coordinator/service/pump.py",
                '                self._send_back(draft.name, draft.submitted, f"the store failed: {error}", replies)\n',
                "                self._jobs.drop(draft.name)\n",
            ),
            Edit(
                "coordinator/service/pump.py",
                "            for draft in drafts:\n"
                "                self._send_back(draft.name, draft.submitted, self.why, replies)\n"
                "            return {}\n",
                "            return {}\n",
            ),
            Edit(
                "coordinator/service/pump.py",
                "            if revision:\n                self._adopt(draft, write, revision)\n",
                "            if revision:\n",
            ),
            Edit(
                "coordinator/service/pump.py",
                "                draft.known.stale = True\n                again[draft.name] = draft.submitted\n"
                "        for draft in drafts:\n            if draft.name not in again:\n"
                "                self._finish(draft, replies)\n",
                "                draft.known.stale = True\n",
            ),
        ),
    ),
    Planted(
        "early expiry after takeover",
        "rule 19, P5",
        "A coordinator that takes over again goes on with the leases it had when it stepped down.",
        (
            Edit(
                "coordinator/service/pump.py",
                "        self._jobs.clear()\n        self._liveness = Liveness(self._lease_ttl_s)\n",
                "        self._jobs.clear()\n",
            ),
        ),
    ),
    Planted(
        "spare lost",
        "P1",
        "A recovery forgets the members that are in no world.",
        (
            Edit(
                "core/job/evolve.py",
                "        job,\n        generation=world.number,\n        sealed=world.number - 1,\n",
                "        job,\n        members={name: job.members[name] for name in world.members},\n"
                "        generation=world.number,\n        sealed=world.number - 1,\n",
            ),
        ),
    ),
    Planted(
        "generation reused",
        "rule 4",
        "A recovery takes the number after the current generation, though planned ones were numbered since.",
        (
            Edit(
                "core/job/next_world.py",
                "        number=job.generation + 1,\n",
                "        number=(job.generation if kind is WorldKind.PLANNED else max(job.current, job.sealed)) + 1,\n",
            ),
        ),
    ),
    Planted(
        "leaver taken back",
        "rule 5, H29",
        "A later planned world takes back a member that an open one leaves out.",
        (
            Edit(
                "core/job/next_world.py",
                "    verdict = _next_world(job, assigned.training)\n",
                "    verdict = _next_world(job, assign(job, frozenset()).training)\n",
            ),
            Edit(
                "core/job/next_world.py",
                "        out = members_left_out(job.worlds)\n",
                "        out: frozenset[MemberId] = frozenset()\n",
            ),
        ),
    ),
    # ------------------------------------------------------------------------------------- our own ideas
    Planted(
        "an agent registers once",
        "rule 19",
        "An agent that the coordinator does not know any more, or not in this run, does not register again.",
        (
            Edit(
                "core/supervisor/decide.py",
                "    registers = not state.leaving and (signal.refused or not state.known)\n",
                "    registers = not state.leaving and state.order is None\n",
            ),
        ),
    ),
    Planted(
        "lost comes back",
        "rule 11, H10",
        "Who was lost may join again under its old name.",
        (
            Edit(
                "core/job/decide.py",
                '    if command.member in job.gone:\n        return Rejection(Code.GONE, f"{command.member} is gone'
                ' for good; join as a new member")\n    if job.state is',
                "    if job.state is",
            ),
        ),
    ),
    Planted(
        "durable goes back",
        "P2, rule 4",
        "A recovery world starts from the newest checkpoint, though later steps are durable.",
        (
            Edit(
                "core/job/next_world.py",
                "    if kind is WorldKind.ROLLBACK:\n        base =",
                "    if kind is not WorldKind.PLANNED:\n        base =",
            ),
        ),
    ),
    Planted(
        "lingering leavers left out",
        "rule 11",
        "A recovery takes the members of the newest world only; who lingers in an older one is forgotten.",
        (
            Edit(
                "core/job/next_world.py",
                "    named = {name: None for world in job.worlds for name in world.members}\n",
                "    named = {name: None for world in job.worlds[-1:] for name in world.members}\n",
            ),
        ),
    ),
    Planted(
        "report does not vouch",
        "rule 19, H17",
        "A report renews only the member that sent it.",
        (
            Edit(
                "coordinator/service/liveness.py",
                "        return when if world is not None and MemberId(key[2]) in world.members else None",
                "        return None",
            ),
        ),
    ),
    Planted(
        "cut off, and expires every member",
        "rule 19, ADR 0019",
        "A coordinator that receives no message at all takes every member for lost.",
        (
            Edit(
                "coordinator/service/liveness.py",
                "        return self._leases.waking_time(now) if self._isolation.is_isolated(now) else self._isolated_until\n",
                "        return None\n",
            ),
        ),
    ),
    Planted(
        "no time to come back",
        "rule 19, ADR 0019",
        "When the first is heard again after a silence of every member, the others' leases are over.",
        (
            Edit(
                "coordinator/service/liveness.py",
                "        return self._leases.waking_time(now) if self._isolation.is_isolated(now) else self._isolated_until\n",
                "        silent = self._isolation.is_isolated(now)\n"
                "        return self._leases.waking_time(now) - self._ttl_s + 0.5 if silent else None\n",
            ),
        ),
    ),
    Planted(
        "suspicion makes lost",
        "rule 19, H18",
        "A watch that closed makes its member lost.",
        (
            Edit(
                "core/job/decide.py",
                '    return (m.WorldBroken(now, world.number, True, f"{command.member} does not answer"),)',
                '    return (m.MemberGone(now, command.member, "lost", "it does not answer"),)',
            ),
        ),
    ),
    Planted(
        "bad pair never parted",
        "rule 11, H19",
        "However often two members fail to reach one another, they are put into the next world together.",
        (
            Edit(
                "core/job/next_world.py",
                "        if len(accusation.generations) < BAD_PAIR_FAILURES:\n            continue\n",
                "        if len(accusation.generations) < BAD_PAIR_FAILURES * job.generation:\n            continue\n",
            ),
        ),
    ),
    Planted(
        "switch without a holder",
        "rule 8, H11",
        "A world is entered though no member in it holds the state.",
        (
            Edit(
                "core/member/control_words.py",
                "        if len(agreeing) >= agreeing[0].wired_needed and any(word.holds for word in agreeing):",
                "        if len(agreeing) >= agreeing[0].wired_needed:",
            ),
            Edit(
                "core/job/next_world.py",
                "    if not any(member.id in job.holders for member in chosen):\n",
                "    if not chosen:\n",
            ),
            Edit(
                "core/job/invariants.py",
                "    planned_worlds_keep_a_holder,\n    only_the_length_of_a_job_changes,\n",
                "    only_the_length_of_a_job_changes,\n",
            ),
        ),
    ),
    Planted(
        "joiner owns slots at once",
        "rule 15",
        "A joiner is dealt slots before its word says that it holds the state.",
        (
            Edit(
                "core/member/common.py",
                "tuple([weight if rank in m.holders else 0 for rank, weight in enumerate(world.weights)])",
                "tuple(world.weights)",
            ),
        ),
    ),
    Planted(
        "poison ignored",
        "rule 20, H21",
        "A slot that raised on two members does not fail the job.",
        (
            Edit(
                "core/job/decide.py",
                "        if earlier.step != failing.step or earlier.member == failing.member:\n",
                "        if earlier.step != failing.step or earlier.member != failing.member:\n",
            ),
        ),
    ),
    Planted(
        "wait without end",
        "rule 16",
        "The limit of a job's waiting for members is not kept.",
        (
            Edit(
                "core/job/decide.py",
                "    if job.state is not JobState.WAITING:\n        return ()\n    why",
                "    if job.state is JobState.WAITING:\n        return ()\n    why",
            ),
        ),
    ),
    Planted(
        "timeout taken for success",
        "P5",
        "A write that timed out counts as applied without a look at the store.",
        (
            Edit(
                "coordinator/service/pump.py",
                "            written = yield from self._find_applied(writes)\n",
                "            written = [write.expected + len(write.events) for write in writes]\n",
            ),
        ),
    ),
    Planted(
        "weights ignored",
        "rule 21, H27",
        "Slots are dealt out evenly whatever weights the world record has.",
        (
            Edit(
                "core/member/common.py",
                "tuple([weight if rank in m.holders else 0 for rank, weight in enumerate(world.weights)])",
                "tuple([1 if rank in m.holders else 0 for rank in range(len(world.weights))])",
            ),
        ),
    ),
    Planted(
        "drain not passed on",
        "rule 16",
        "A member that is told to go keeps it to itself, and the coordinator does not plan without it.",
        (
            Edit(
                "core/member/leave.py",
                "    out.append(Send(Drain(m.id, signal.grace_s, signal.why)))\n",
                "",
            ),
        ),
    ),
    Planted(
        "one reporter only",
        "rule 24",
        "Progress is reported by the first holder alone.",
        (
            Edit(
                "core/member/common.py",
                "REPORTERS = 2  #",
                "REPORTERS = 1  #",
            ),
        ),
    ),
    Planted(
        "stopped while in flight",
        "rule 10, H16",
        "A member that must stop says so at once, while its collective may still return and be applied.",
        (
            Edit(
                "core/member/leave.py",
                "    if m.in_flight:\n        out.append(Break(m.generation))\n    elif ",
                "    if ",
            ),
        ),
    ),
    Planted(
        "checkpoint of an applied step",
        "rule 1",
        "A checkpoint is written of a step that is applied here and perhaps nowhere else.",
        (
            Edit(
                "core/member/step.py",
                "    checkpoint.start_if_due(m, out)\n",
                "    checkpoint.start_if_due(m, out)\n    confirm_save(m, out)\n",
            ),
        ),
    ),
    Planted(
        "hello commits the winner",
        "rules 1, 12",
        "The comparison commits the winner's step, though laggards have not applied it.",
        (
            Edit(
                "core/member/control_words.py",
                "    return entered.pop() if len(entered) == 1 else None",
                "    return max(entered, key=Lineage.key) if entered else None",
            ),
        ),
    ),
    Planted(
        "step gone without a word",
        "rule 12",
        "A recovery world goes on from a state below the durable step.",
        (
            Edit(
                "core/member/recover.py",
                "    if best is None or world.base.newer_than(best):\n",
                "    if best is None:\n",
            ),
        ),
    ),
    Planted(
        "no second hello",
        "rules 12, 15",
        "Members that hold the state go on at once, and compute the slots of those that still receive it.",
        (
            Edit(
                "core/member/recover.py",
                "    m.compare_again = len(m.holders) < len(words)\n",
                "    m.compare_again = False\n",
            ),
        ),
    ),
    Planted(
        "states not compared at hello",
        "rule 15",
        "A member that received another state than the others have is taken for one that holds.",
        (
            Edit(
                "core/member/control_words.py",
                "        if not word.holds or (hello and word.lineage != best):\n",
                "        if not word.holds or hello:\n",
            ),
        ),
    ),
    Planted(
        "finish forgotten in a recovery",
        "P2",
        "A member that saw the end of the job in the words does not repeat it in the comparison after a failure.",
        (
            Edit(
                "core/member/recover.py",
                "    if any(word.ending == FINISH for word in words if word.holds):\n        m.ending = FINISH\n",
                "",
            ),
        ),
    ),
    Planted(
        "one left loop ends the job",
        "P2",
        "The job is finished as soon as one member has left its loop.",
        (
            Edit(
                "core/member/control_words.py",
                "    return FINISH in endings or (bool(endings) and all(endings))\n",
                "    return any(endings)\n",
            ),
        ),
    ),
    Planted(
        "slots dealt out at the first hello",
        "rule 14",
        "The step in flight is dealt out to those who hold the state at first, and never again.",
        (
            Edit(
                "core/member/recover.py",
                "    if not m.compare_again and m.ending != FINISH and best.step < grid.total_steps:\n",
                "    if not m.recovery_shares and m.ending != FINISH and best.step < grid.total_steps:\n",
            ),
        ),
    ),
    Planted(
        "old view believed",
        "rule 5",
        "What the coordinator said is believed in the order in which it arrives.",
        (
            Edit(
                "core/member/machine.py",
                "            return m.view is not None and view.revision <= m.view.revision\n",
                "            return False\n",
            ),
        ),
    ),
    Planted(
        "lost race decided on the old state",
        "P5",
        "After a conflict the coordinator decides again on what it remembers, not on what is in the store.",
        (
            Edit(
                "coordinator/service/pump.py",
                "                draft.known.stale = True\n                again",
                "                again",
            ),
        ),
    ),
    Planted(
        "joiner without the ledger's tail",
        "rules 15, 24",
        "A joiner gets the state without the lines that are not durable yet.",
        (
            Edit(
                "core/member/join.py",
                "for line in (*aside.lines, *replay[:-1]) if",
                "for line in replay[:-1] if",
            ),
        ),
    ),
    Planted(
        "disowned state kept",
        "rules 4, 18",
        "A member enters a rollback world with the state that the rollback disowned.",
        (
            Edit(
                "core/member/recover.py",
                "        m.holds_state = False\n        m.lineage = GENESIS\n",
                "",
            ),
        ),
    ),
    Planted(
        "recovery without a seal",
        "rule 4, P6",
        "A recovery world leaves the generations below it unsealed.",
        (
            Edit(
                "core/job/evolve.py",
                "        sealed=world.number - 1,\n",
                "",
            ),
        ),
    ),
    Planted(
        "ranks follow the state",
        "rule 4",
        "Survivors do not keep their order: members that hold the state get the low ranks.",
        (
            Edit(
                "core/job/next_world.py",
                "    return ordered + newcomers[::-1]\n",
                "    return sorted(ordered + newcomers[::-1], key=lambda m: m.id not in job.holders)\n",
            ),
        ),
    ),
    Planted(
        "no reason given",
        "P8",
        "A job waits without a reason.",
        (
            Edit(
                "core/job/next_world.py",
                "            state, why = JobState.WAITING, job.grant_missing or why\n",
                '            state, why = JobState.WAITING, ""\n',
            ),
        ),
    ),
    # ------------------------------------------------------------------------------------ the same bits
    Planted(
        "majority evicted",
        "P4",
        "Of members whose states differ, those go that agree.",
        (
            Edit(
                "core/member/control_words.py",
                "    return frozenset(rank for rank, state in states.items() if state != most)\n",
                "    return frozenset(rank for rank, state in states.items() if state == most)\n",
            ),
        ),
    ),
    Planted(
        "half is a majority",
        "P4",
        "Of two members whose states differ, the second goes, as if the first could not be wrong.",
        (
            Edit(
                "core/member/control_words.py",
                "    if 2 * count <= len(states):\n",
                "    if 2 * count < len(states):\n",
            ),
        ),
    ),
    Planted(
        "gradients of a suspect kept",
        "P4, rule 14",
        "An outvoted member brings gradients of its corrupted state into the next comparison.",
        (
            Edit(
                "core/member/common.py",
                "    if m.id in m.suspects:\n        m.kept_gradients = KeptGradients(base=m.lineage)\n",
                "",
            ),
        ),
    ),
    Planted(
        "polluted weights kept",
        "P4",
        "A corrupted member goes, and the weights it had a part in since the last comparison stay.",
        (
            Edit(
                "core/job/divergence.py",
                "    back = verify > 1 or not suspects\n",
                "    back = not suspects\n",
            ),
        ),
    ),
    Planted(
        "a rollback no member entered is forgotten",
        "rule 18",
        "The members never met in the world that went back, and go on in the next one with what they had.",
        (
            Edit(
                "core/member/recover.py",
                "    if rolls_back or m.generation < world.rollback_generation:\n",
                "    if rolls_back:\n",
            ),
        ),
    ),
    Planted(
        "unverified snapshot saved",
        "P4, rule 17",
        "A laggard writes its part of a state that no words it saw had compared.",
        (
            Edit(
                "core/member/recover.py",
                "        if m.terms.verify:\n            m.part_in_progress = None",
                "        if m.terms.verify < 0:\n            m.part_in_progress = None",
            ),
        ),
    ),
    Planted(
        "user code that differs for ever",
        "P4, P8",
        "Members whose user code differs are rolled back again and again, and the job never says so.",
        (
            Edit(
                "core/job/divergence.py",
                "    if not verify or often:\n",
                "    if not verify:\n",
            ),
        ),
    ),
    Planted(
        "describe_dispute gradients applied",
        "P4",
        "A step whose gradients two members computed differently is applied all the same.",
        (
            Edit(
                "core/member/machine.py",
                "        case Purpose.STEP if signal.disputes and not disagreement(",
                "        case Purpose.STEP if signal.disputes and not m.holds_state and not disagreement(",
            ),
        ),
    ),
    Planted(
        "describe_dispute gradients kept",
        "P4, rule 14",
        "A member in a dispute brings the same gradients into the next attempt.",
        (
            Edit(
                "core/member/common.py",
                "    if any(m.id in (each.a, each.b) for each in disputes):\n        m.kept_gradients = KeptGradients(base=m.lineage)\n",
                "",
            ),
        ),
    ),
    Planted(
        "one dispute is enough",
        "P4",
        "Every member of a dispute is evicted, right or wrong.",
        (
            Edit(
                "core/job/divergence.py",
                "        if len(met) > 1:\n",
                "        if met:\n",
            ),
        ),
    ),
    Planted(
        "other bits in a world",
        "P4",
        "A member with another version of the framework computes with the others.",
        (
            Edit(
                "core/job/assignment.py",
                "not (m.draining or m.id in out or fingerprint_difference(fingerprint, m.fingerprint))",
                "not (m.draining or m.id in out)",
            ),
        ),
    ),
    Planted(
        "bits of the day",
        "P4",
        "When every member is gone, the next member decides which bits the job computes.",
        (
            Edit(
                "core/job/assignment.py",
                "    return job.fingerprint or most_common(",
                "    return (job.fingerprint if job.worlds and job.holders else ()) or most_common(",
            ),
        ),
    ),
    Planted(
        "shares by what a member knows",
        "rule 23",
        "A joiner takes all members for those who bring gradients.",
        (
            Edit(
                "core/member/join.py",
                "for rank, member in enumerate(world.members) if member in signal.donors)\n",
                "for rank, member in enumerate(world.members) if member)\n",
            ),
        ),
    ),
    Planted(
        "state left out of the chain",
        "rule 24",
        "A ledger line says which state its step was computed from, and its digest does not cover that.",
        (
            Edit(
                "core/data/ledger.py",
                "content[:-8] if state else content[:-16]",
                "content[:-16]",
            ),
        ),
    ),
    # ------------------------------------------------------------------------------- jobs that never end, or too early
    Planted(
        "failures count for ever",
        "rule 20",
        "A job that has made progress for weeks fails because of failures of long ago.",
        (
            Edit(
                "core/job/failures.py",
                "if now - failure.at < FAILURE_WINDOW_S or failure.step >= job.furthest_step\n",
                "if failure.at <= now\n",
            ),
        ),
    ),
    Planted(
        "a stuck worker stays",
        "rule 19",
        "A worker whose user code never returns is reported, and the others wait for it for ever.",
        (Edit("train/process.py", "                self._end()\n", "                self._reported = since\n"),),
    ),
    Planted(
        "user code without a limit",
        "rule 19, liveness",
        "A worker whose user code never returns renews its lease, and the others wait for it for ever.",
        (
            Edit(
                "core/hangs.py",
                "    if grace_s is None or alone or not stall_s:\n        return stall_s\n",
                '    if grace_s is None or alone or not stall_s:\n        return float("inf")\n',
            ),
        ),
    ),
    Planted(
        "crashes by signal are no failures",
        "rule 20, liveness",
        "Workers that crash by a signal at one step are started again for ever.",
        (
            Edit("core/job/decide.py", "    if is_own_failure(command.code):\n", "    if command.code > 0:\n"),
            Edit(
                "core/job/decide.py", " or not too_many_losses(job):\n", " or too_many_losses(job) in (False, True):\n"
            ),
        ),
    ),
    Planted(
        "early exits are no failures",
        "rule 20, liveness",
        "Workers that end with 0 at one step, or are killed there, are started again for ever.",
        (
            Edit(
                "core/job/decide.py", " or not too_many_losses(job):\n", " or too_many_losses(job) in (False, True):\n"
            ),
        ),
    ),
    Planted(
        "a script that never joins starts for ever",
        "liveness",
        "Workers that end or are killed before they join are started again and again.",
        (
            Edit(
                "core/supervisor/endings.py",
                "    if never_joined and (why := ",
                "    if state.gave_up and (why := ",
            ),
        ),
    ),
    Planted(
        "a frozen worker stays",
        "rule 11",
        "A worker that is lost to the job and cannot end by itself keeps its place for ever.",
        (
            Edit(
                "core/supervisor/live.py",
                "for member, since in state.lost if now - since >= state.grace_s}\n",
                "for member, since in state.lost if now < since}\n",
            ),
        ),
    ),
    # ------------------------------------------------------------------------------- launches
    *LAUNCHES,
    *SAVING,
    *CLUSTERS,
    *TASKS,
    *SERVERS,
)
