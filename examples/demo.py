"""`make demo`: train examples/digits.py through changes of membership, print its events, and compare with one worker.

Events come from the job's event stream. Commands go to its coordinator through `pliant.client`, and are printed as the
equivalent `pliant` command. The last line is one JSON object; the exit status is 1 if a promise was broken.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driven import Driven, Ended
from outcome import Change, Outcome, read_applied

from pliant.core import messages as m
from pliant.core.messages.describe import describe
from pliant.core.model.job import Target

HERE = Path(__file__).parent
EPOCHS, STEPS = 30, 450
GRACE_S = 30.0
SETTLED = 5  # committed steps of a new world before the next change
HASHED = "SHA-256 "
QUIET = (m.HoldersChanged, m.StepsCommitted, m.CheckpointPublished, m.StateChanged)


class Demo:
    """The job, the changes made to it, and the results."""

    def __init__(self, home: Path, seed: int) -> None:
        self._began = time.monotonic()
        self.steps = home / "steps"  # each worker writes the times of its steps here
        self.steps.mkdir()
        (self.steps / "slow").write_text("0.1", encoding="ascii")
        self.changes: list[Change] = []
        self.accuracy = 0.0
        self.hash = ""  # of what was trained
        self._words = ["--epochs", str(EPOCHS), "--seed", str(seed), "--deterministic"]
        script = [HERE / "stretched.py", self.steps, STEPS, HERE / "digits.py", *self._words]
        options = ["--workers", "1:6", "--target", "2"]
        self.job = Driven(home, "digits", options, list(map(str, script)), self._on_event, self._on_line)

    def play(self) -> int:
        """Run the whole demo and return the exit status of `pliant run`."""
        job = self.job
        self._explain(
            "Two workers start. Each imports torch, builds its model, and only then joins the job.\n"
            "(Each step is stretched by a tenth of a second until the last change, to have something to watch.)"
        )
        self._show_command(
            f"pliant run --job digits --workers 1:6 --target 2 examples/digits.py {' '.join(self._words)}"
        )
        job.wait_for(job.trains_with(2))
        job.wait_for(job.settled(SETTLED))
        self._grow()
        self._kill()
        self._replace()
        self._drain()
        self._explain("Training continues to its end, now at full speed.")
        (self.steps / "slow").unlink()
        return job.wait_for_end()

    def _grow(self) -> None:
        self._explain("Grow: ask for a third worker. The two train until it has joined and received the state.")
        with self._change("a worker joins"):
            self._ask(("resize digits 3", m.Resize(Target(3))))
            self.job.wait_for(self.job.trains_with(3))

    def _kill(self) -> None:
        victim = self.job.world[0]
        self._explain(
            f"Kill {victim}, which has rank 0, with kill -9. The others kept their gradients of the current step,\n"
            "compute its share of the batch as well, and continue. `pliant run` starts a replacement."
        )
        with self._change("a worker is killed"):
            self._show_command(f"kill -9 {self.job.pids[victim]}")
            os.kill(self.job.pids[victim], signal.SIGKILL)
            self.job.wait_for(lambda: victim in self.job.gone and self.job.trains_with(2, [victim])())
        with self._change("its replacement joins"):
            self.job.wait_for(self.job.trains_with(3, [victim]))

    def _replace(self) -> None:
        old = self.job.world
        self._explain("Replace every worker: ask for three more, then drain the three old ones.")
        with self._change("three workers join"):
            self._ask(("resize digits 6", m.Resize(Target(6))))
            self.job.wait_for(self.job.trains_with(6))
        with self._change("the three old ones leave"):
            drains = [(f"drain digits {member}", m.Drain(member, GRACE_S, "replaced in the demo")) for member in old]
            self._ask(*drains, ("resize digits 3", m.Resize(Target(3))))
            self.job.wait_for(self.job.trains_with(3, old))

    def _drain(self) -> None:
        one = self.job.world[-1]
        self._explain(f"Drain {one}, as on a spot notice: it leaves at the next boundary, and no step is lost.")
        with self._change("a worker is drained"):
            self._ask((f"drain digits {one}", m.Drain(one, GRACE_S, "a spot notice, in the demo")))
            self.job.wait_for(self.job.trains_with(2, [one]))

    def alone(self) -> str:
        """Train once more with one worker alone, and return the hash of the result."""
        self._explain("Train once more, undisturbed: one worker alone, without a coordinator.")
        self._show_command(f"python examples/digits.py {' '.join(self._words)}")
        env = {name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")}
        command = [sys.executable, str(HERE / "digits.py"), *self._words]
        done = subprocess.run(command, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        for line in lines[-2:]:
            self._print(line)
        return lines[-1].removeprefix(HASHED) if done.returncode == 0 else done.stderr

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """Record the change made in this block, and wait until the new world trains."""
        began, before, step = time.monotonic(), self.job.world, self.job.step
        yield
        after = self.job.world
        ended = self.job.wait_for(self.job.settled(SETTLED))
        self.changes.append(Change(name, before, after, (began, ended), range(step + 1, self.job.step)))

    # --------------------------------------------------------------------------------------------------- telling

    def _ask(self, *commands: tuple[str, m.Command]) -> None:
        for text, _ in commands:
            self._show_command(f"pliant {text}")
        self.job.send(*(command for _, command in commands))

    def _explain(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def _show_command(self, command: str) -> None:
        print(f"  $ {command}", flush=True)

    def _on_event(self, event: m.Event) -> None:
        if not isinstance(event, QUIET):
            self._print(describe(event))

    def _on_line(self, source: str, text: str) -> None:
        if text.startswith("accuracy"):
            self.accuracy = float(text.split()[1])
        if text.startswith(HASHED):
            self.hash = text.removeprefix(HASHED)
        of_script = not text.startswith("pliant: ") and "gloo" not in text  # gloo logs broken connections
        if source == "pliant" or of_script:
            self._print(f"{source}: {text}")

    def _print(self, text: str) -> None:
        print(f"  {time.monotonic() - self._began:5.1f} s  {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    home = Path(tempfile.mkdtemp(prefix="pliant-demo-"))
    demo = Demo(home, parser.parse_args().seed)
    try:
        with demo.job:
            status = demo.play()
    except Ended as error:
        print(f"\n{error}; the output of the workers is in {home}/jobs/digits/logs\n" + json.dumps({"ok": False}))
        return 1
    audit = json.loads(demo.job.ask("audit", "digits", "--json"))
    hashes = demo.hash, demo.alone()
    applied = read_applied(demo.steps)
    outcome = Outcome(status, audit, STEPS, demo.accuracy, hashes, demo.changes, demo.job.pids, applied)
    report(outcome, killed=sum(how == "lost" for how in demo.job.gone.values()))
    if outcome.broken():
        return 1
    shutil.rmtree(home)
    return 0


def report(outcome: Outcome, killed: int) -> None:
    """Print the accuracy, the audit and the pauses, and all of it as JSON."""
    audit, broken, pauses = outcome.audit, outcome.broken(), outcome.pauses()
    used = f"{audit['samples']} samples in {audit['steps']} steps"
    print(f"\nAudit: {used}, {audit['lost']} lost, {audit['repeated']} repeated.")
    print("\nTime between two steps of one worker, as measured by the workers:\n")
    print(f"  {'while':28}{'workers':>9}{'usual':>10}{'longest':>10}{'pause':>10}")
    for change, usual, longest in pauses:
        sizes = f"{len(change.before)} to {len(change.after)}"
        print(f"  {change.name:28}{sizes:>9}{usual:>8.2f} s{longest:>8.2f} s{longest - usual:>8.2f} s")
    same = outcome.hashes[0] == outcome.hashes[1]
    print("\nSHA-256 of the weights and of the optimizer's state:\n")
    print(f"  {f'trained by {len(outcome.pids)} workers':28}{outcome.hashes[0]}")
    print(f"  {'trained by one alone':28}{outcome.hashes[1]}")
    print(f"  {'':28}{'the same bits' if same else 'OTHER BITS'}")
    print(f"\nAccuracy {outcome.accuracy:.4f}. " + ("; ".join(broken) or "Every promise was kept."))
    counts = {
        "ok": not broken,
        "accuracy": outcome.accuracy,
        "samples": audit["samples"],
        "lost": audit["lost"],
        "repeated": audit["repeated"],
        "steps": audit["steps"],
        "members": len(outcome.pids),
        "killed": killed,
        "same_bits": same,
        "sha256": outcome.hashes[0],
        "pauses_s": {change.name: round(longest - usual, 3) for change, usual, longest in pauses},
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    sys.exit(main())
