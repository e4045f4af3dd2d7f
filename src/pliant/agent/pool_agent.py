"""`pliant agent --pool`: lends the slots of a machine to the jobs of a pool.

`pliant.core.lending` decides. This module reports to the coordinator once a second, and starts one `pliant run` for
each slot that the coordinator gives to a job. Such an agent has room for one worker, so a slot never has two.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pliant import settings
from pliant.agent.job_dir import RUNNER, JobDir
from pliant.agent.logs.capture import OutputSink, visible
from pliant.agent.output import RunOutput
from pliant.agent.process.client import Processes
from pliant.agent.setup import SETUP_S, agent_id, install_id
from pliant.client import Client
from pliant.core.allocate.machines import MACHINE_NAME_MAX, slot_agent
from pliant.core.lending import (
    Lender,
    SlotAction,
    StartAgent,
    agent_ended,
    follow_orders,
    forgive,
    is_refused,
    leave,
    machine_report,
    refuse_script,
)
from pliant.core.messages import Code
from pliant.core.model.names import bad_name
from pliant.credentials import CoordinatorAddress, read_token
from pliant.errors import BadInput, NotAllowed, NotSecure, PliantError, Refused, Unreachable

if TYPE_CHECKING:
    from types import FrameType

    from pliant.wire.api import SlotOrder

REPORT_S = 1.0
PATIENCE_S = 1.0  # for one report
NAME_TAKEN_S = 15.0  # a machine of the same name that was killed is forgotten by then
FORGIVEN_S = 3600.0  # a job whose script cannot be run is forgotten after this
OVERDUE_S = 15.0  # after the grace period, an agent that has not ended is killed
LOOKERS_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class LendingPlan:
    """The options of `pliant agent --pool`. `devices` has an accelerator for each slot; empty: slots are CPUs."""

    slots: int
    scripts: Path
    devices: tuple[str, ...] = ()
    checkpoint_dir: str | None = None  # or a URL; None: in the machine's own folder
    grace_s: float = settings.GRACE_S
    local_addr: str | None = None


@dataclass(frozen=True, slots=True)
class _BadScript:
    """The script of a job that cannot be run here, and when to forget that."""

    script: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True)
class _AgentEnded:
    slot: int
    code: int


@dataclass(frozen=True, slots=True)
class _Overdue:
    """The agent that was started in a slot at that time should have ended."""

    slot: int
    since: float


@dataclass(frozen=True, slots=True)
class _Signalled:
    number: int


@dataclass(frozen=True, slots=True)
class _SpawnerGone:
    """The process that starts agents ended, and all of them with it."""


_Given = _AgentEnded | _Overdue | _Signalled | _SpawnerGone


class PoolAgent:
    """Call `run` in the main thread. `program` is the command line that starts `pliant` itself."""

    def __init__(
        self, plan: LendingPlan, home: Path, output: RunOutput, program: Sequence[str], place: CoordinatorAddress
    ) -> None:
        name = agent_id()
        if wrong := bad_name(name, MACHINE_NAME_MAX):
            raise BadInput(f"This machine cannot be lent as {name}: {wrong}. Set PLIANT_AGENT to another name.")
        self._plan = plan
        self._home = home.absolute() / "pool"
        self._output = output
        self._program = program
        self._place = place.absolute()  # `run` changes the folder
        self._folder = JobDir(self._home / "agent")
        self._inbox: SimpleQueue[_Given] = SimpleQueue()
        self._last_lines: dict[int, str] = {}  # by slot, the last line of its agent
        self._lender = Lender(name, plan.slots)
        self._bad_scripts: dict[str, _BadScript] = {}  # by job
        self._away = ""  # why the coordinator does not answer
        self._refusal: NotAllowed | NotSecure | None = None  # the agents leave for this
        self._taken_since: float | None = None  # since when another machine has this name
        self._is_killed = False

    def run(self) -> int:
        """Lend the machine until a signal comes and all agents have left. No process is left behind."""
        if self._folder.is_run():
            raise Refused(f"This machine is lent already, by process {self._folder.runner_pid()}.")
        self._folder.make()
        token = read_token(self._place.token_file)
        with self._folder.lock(RUNNER, LOOKERS_S):
            with Client(self._place.urls, token, patience_s=SETUP_S, tls=self._place.tls) as client:
                client.about()
            self._lender = Lender(self._lender.name, self._plan.slots, install_id(self._folder))
            self._output.say(self._describe_opening())
            os.chdir(self._plan.scripts)  # scripts find their files beside them
            handlers = {number: signal.signal(number, self._signalled) for number in SIGNALS}
            try:
                with (
                    Processes(self._process_ended, lambda: self._inbox.put(_SpawnerGone())) as self._processes,
                    Client(self._place.urls, token, patience_s=PATIENCE_S, tls=self._place.tls) as client,
                ):
                    self._lend(client)
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        if self._refusal is not None:
            raise self._refusal
        return 0

    def _describe_opening(self) -> str:
        kind = f"GPUs {', '.join(self._plan.devices)}" if self._plan.devices else "CPUs"
        count = "1 slot" if self._plan.slots == 1 else f"{self._plan.slots} slots"
        return (
            f"{self._lender.name} lends {count} ({kind}) to the pool of {', '.join(self._place.urls)}, "
            f"for scripts below {self._plan.scripts}; logs in {self._home / 'logs'}"
        )

    def _lend(self, client: Client) -> None:
        while not self._is_over():
            self._report(client)
            until = time.monotonic() + REPORT_S
            while not self._is_over():
                try:
                    given = self._inbox.get(timeout=max(0.0, until - time.monotonic()))
                except Empty:
                    break
                if self._take(given):
                    break  # report it at once
        if self._lender.is_done:
            self._report(client)  # so that its slots are known to be gone
            self._output.say("no agent runs any more; the machine is not lent now")

    def _is_over(self) -> bool:
        return self._lender.is_done or self._is_killed

    # ------------------------------------------------------------------------------------------- the coordinator

    def _report(self, client: Client) -> None:
        """Report, and carry out the orders. While the coordinator is away, agents go on."""
        self._forgive_scripts()
        try:
            orders = client.report_machine(machine_report(self._lender, time.monotonic())).slots
        except (NotAllowed, NotSecure) as error:
            self._leave_for(error)
            return
        except Refused as error:
            if error.code != Code.EXISTS or self._has_waited_for_name():
                raise
            self._show_away(error.why)
            return
        except Unreachable as error:
            self._show_away(error.why)
            return
        if self._away:
            self._away, self._taken_since = "", None
            self._output.warn("the coordinator answers again")
        self._follow(orders)

    def _leave_for(self, error: NotAllowed | NotSecure) -> None:
        """Let all agents leave, since the coordinator refuses this machine. Their jobs may go on without it."""
        if self._refusal is None:
            self._refusal = error
            self._output.warn(f"{error}; the agents leave within {self._plan.grace_s:g} s")
            self._begin_leaving()

    def _has_waited_for_name(self) -> bool:
        self._taken_since = self._taken_since or time.monotonic()
        return bool(self._lender.used) or time.monotonic() - self._taken_since > NAME_TAKEN_S

    def _show_away(self, why: str) -> None:
        if not self._away:
            self._output.warn(f"{why.rstrip('.')}; agents that run go on, trying again every {REPORT_S:g} s")
        self._away = why

    def _follow(self, orders: Sequence[SlotOrder]) -> None:
        scripts = {order.job: order.script for order in orders}
        now, running = time.monotonic(), {each.job for each in self._lender.used.values()}
        for job, script in scripts.items():
            if not job or job in running:
                continue
            if job in self._bad_scripts and self._bad_scripts[job].script != script:
                self._forgive_script(job)  # it has another one now
            if not is_refused(self._lender, job, now) and (wrong := self._bad_script(script)):
                self._output.warn(f"{job} cannot run here: {wrong}")
                self._bad_scripts[job] = _BadScript(script, now + FORGIVEN_S)
                self._lender = refuse_script(self._lender, job, wrong)
        self._lender, actions = follow_orders(self._lender, [order.job for order in orders], now)
        self._carry_out(actions, scripts)

    def _forgive_scripts(self) -> None:
        """Refuse a job as long as its script is not here. Sometimes let it be ordered again: it may have ended."""
        for job, bad in list(self._bad_scripts.items()):
            if time.monotonic() > bad.until or not self._bad_script(bad.script):
                self._forgive_script(job)

    def _forgive_script(self, job: str) -> None:
        del self._bad_scripts[job]
        self._lender = forgive(self._lender, job)

    def _bad_script(self, script: tuple[str, ...]) -> str:
        """Return why the script of a job cannot be run here; empty if it can."""
        if not script:
            return "it has no script"
        folder = self._plan.scripts.resolve()
        path = (folder / script[0]).resolve()
        if not path.is_relative_to(folder):
            return f"{script[0]} is not below {self._plan.scripts}"
        if not (path.is_file() or (path / "__main__.py").is_file()):
            return f"there is no script {script[0]} in {self._plan.scripts}"
        return ""

    # ------------------------------------------------------------------------------------------- agents

    def _carry_out(self, actions: Sequence[SlotAction], scripts: Mapping[str, tuple[str, ...]]) -> None:
        for action in actions:
            slot = action.slot
            if isinstance(action, StartAgent):
                self._output.say(f"slot {slot}: starting {action.job}")
                self._start(slot, action.job, scripts[action.job])
            else:
                since = self._lender.used[slot].since
                self._output.say(f"slot {slot}: {self._lender.used[slot].job} leaves")
                self._processes.terminate(str(slot))
                self._after(self._plan.grace_s + OVERDUE_S, _Overdue(slot, since))

    def _start(self, slot: int, job: str, script: tuple[str, ...]) -> None:
        plan, place = self._plan, self._place
        options = [
            *(word for url in place.urls for word in ("--coordinator", url)),
            *("--token-file", str(place.token_file)),
            *("--job", job, "--nproc-per-node", "1", "--grace-s", f"{plan.grace_s:g}"),
            *("--checkpoint-dir", plan.checkpoint_dir or str(self._home / "checkpoints")),
            *("--log-dir", str(self._home / "logs")),
            *(() if plan.local_addr is None else ("--local-addr", plan.local_addr)),
        ]
        env = {
            "PLIANT_HOME": str(self._home / f"slot-{slot}"),
            "PLIANT_AGENT": slot_agent(self._lender.name, slot),
            **place.tls.environment,
            **({"CUDA_VISIBLE_DEVICES": plan.devices[slot]} if plan.devices else {}),
            **({} if settings.is_set("OMP_NUM_THREADS") or plan.slots == 1 else {"OMP_NUM_THREADS": "1"}),
        }
        self._last_lines.pop(slot, None)
        sink = OutputSink(None, lambda line: self._show(slot, job, line), self._output.warn)
        self._processes.start(str(slot), [*self._program, "run", *options, *script], env, sink)

    def _show(self, slot: int, job: str, line: bytes) -> None:
        if text := visible(line).strip():
            self._last_lines[slot] = text
        self._output.worker(f"{job} {slot}", line)

    def _process_ended(self, name: str, code: int) -> None:
        self._inbox.put(_AgentEnded(int(name), code))

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._inbox.put(_Signalled(number))

    def _after(self, pause_s: float, given: _Given) -> None:
        timer = threading.Timer(pause_s, self._inbox.put, (given,))
        timer.daemon = True
        timer.start()

    def _take(self, given: _Given) -> bool:
        """React to an observation. Return whether the coordinator should know at once."""
        match given:
            case _AgentEnded(slot, code):
                job = self._lender.used[slot].job
                self._output.say(f"slot {slot}: the agent of {job} has ended")
                why = self._last_lines.get(slot, "")
                self._lender = agent_ended(self._lender, slot, code, why, time.monotonic())
                return True
            case _Overdue(slot, since):
                if slot in self._lender.used and self._lender.used[slot].since == since:
                    self._processes.kill(str(slot))
            case _Signalled(number):
                return self._stop(number)
            case _SpawnerGone():
                raise PliantError(
                    "The process that starts agents was killed, and all agents with it. Run the command again."
                )
        return False

    def _stop(self, number: int) -> bool:
        """Let all agents leave on the first signal, kill them on the second."""
        name = signal.Signals(number).name
        if self._lender.is_leaving:
            self._output.warn(f"{name} again: ending now")
            self._is_killed = True
            return False
        self._output.warn(f"{name}: the agents leave within {self._plan.grace_s:g} s; again to end now")
        self._begin_leaving()
        return True

    def _begin_leaving(self) -> None:
        self._lender, actions = leave(self._lender)
        self._carry_out(actions, {})
