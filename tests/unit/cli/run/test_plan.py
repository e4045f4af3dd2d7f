"""The plan of a command line of `pliant run`: sizes, endpoint and notes."""

import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from pliant import settings
from pliant.agent.last_command import CommandLine
from pliant.agent.logs.capture import LogOptions, OutputStream, StreamMask
from pliant.agent.plan import RunPlan
from pliant.agent.process.script import Script
from pliant.cli.connect import Flags
from pliant.cli.run import option_types
from pliant.cli.run.endpoint import EndpointFacts, probe_endpoint, should_host
from pliant.cli.run.option_types import EndpointAddress, RdzvConf
from pliant.cli.run.plan import (
    MachineFacts,
    PlannedRun,
    RunOptions,
    build_plan,
    job_sizes,
    parse_roles,
    probe_machine,
    visible_device_count,
)
from pliant.core.model.checkpoint import CheckpointPolicy
from pliant.core.model.job import JobSpec, Mode, Target
from pliant.credentials import CoordinatorAddress, TlsFiles
from pliant.errors import BadInput
from unit.cli.program import Done, invoke

HERE, THERE = EndpointFacts(is_local=True, is_in_use=False), EndpointFacts(is_local=False, is_in_use=False)
TAKEN = EndpointFacts(is_local=True, is_in_use=True)
OURS = EndpointAddress("10.0.0.5", 29400)
CA = {"PLIANT_CA_FILE": "ca.pem"}
NO_TLS = (
    "the coordinator at 10.0.0.5:29400 has no TLS: tokens cross the network unencrypted; PLIANT_CA_FILE, "
    "PLIANT_CERT_FILE and PLIANT_KEY_FILE give it a certificate"
)


@dataclass
class Ran:
    """The plan that `pliant run` would have carried out."""

    plans: list[RunPlan] = field(default_factory=list)
    places: list[CoordinatorAddress | None] = field(default_factory=list)
    homes: list[Path] = field(default_factory=list)
    status: int = 0

    @property
    def plan(self) -> RunPlan:
        (plan,) = self.plans
        return plan


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """No agent is run; in a folder with `train.py` and `exec.py`, and nothing in the environment."""
    made = Ran()

    class Agent:
        def __init__(
            self, plan: RunPlan, home: Path, screen: object, program: object, place: CoordinatorAddress | None
        ) -> None:
            assert screen
            assert program
            made.plans.append(plan)
            made.places.append(place)
            made.homes.append(home)

        def run(self) -> int:
            return made.status

    for name in settings.with_prefix("PLIANT_", "PET_", "TORCH_ELASTIC", "PYTHON_EXEC", "CUDA_VISIBLE", "ZE_"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # a machine without GPUs, whatever this one has
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "pliant.agent.agent", SimpleNamespace(AgentProcess=Agent))
    monkeypatch.chdir(tmp_path)
    for script in ("train.py", "exec.py"):
        (tmp_path / script).touch()
    return made


def run(*args: str) -> Done:
    done = invoke("run", *args)
    assert done.err == ""
    return done


def around(
    seen: EndpointFacts = HERE, variables: dict[str, str] | None = None, cpus: int = 8, gpus: int = 0
) -> MachineFacts:
    said = variables or {}
    return MachineFacts(settings.read({"PLIANT_HOME": "/h", **said}), said, cpus, gpus, lambda _: seen)


def meant(
    given: dict[str, Any],
    seen: EndpointFacts = HERE,
    flags: Flags | None = None,
    variables: dict[str, str] | None = None,
) -> PlannedRun:
    said = RunOptions(**{"script": "train", "module": True, **given})
    return build_plan(said, around(seen, variables), flags or Flags())


# ------------------------------------------------------------------------------------- the command line


def test_torchrun_s_plainest_command_line_is_one_worker_on_this_machine(ran: Ran, tmp_path: Path) -> None:
    done = run("train.py")
    spec = JobSpec(1, 1, mode=Mode.AUTO, checkpoints=CheckpointPolicy(seconds=600.0))
    command = CommandLine(str(Path("train.py").resolve()))
    assert ran.plan == RunPlan("train", spec, Script("file", "train.py"), 1, command=command, name_is_derived=True)
    assert (ran.places, ran.homes, done.code) == ([None], [tmp_path / "home"], 0)
    assert done.out.endswith(" the job is named train after its script; pass --job for another name\n")


def test_everything_that_may_be_said_is_in_the_plan(ran: Ran, tmp_path: Path) -> None:
    ran.status = 7
    done = run(
        *("--job", "j", "--workers", "2:6", "--target", "3", "--spares", "1", "--mode", "relaunch", "--grace-s", "5"),
        *("--wait-limit-s", "9", "--preload", "torch,numpy.random", "--env", "jax", "--fresh", "--allow-chaos"),
        *("--checkpoint-dir", "s3://bucket/", "--checkpoint-every", "500", "--checkpoint-keep", "7"),
        *("--notice", "aws", "--notice", "file:/gone", "--nproc-per-node", "4", "--max-restarts", "0"),
        *("--role", "trainer", "--no-python", "--log-dir", "logs", "-r", "0:3", "-t3", "--local-ranks-filter", "0,2"),
        *("--duplicate-stdout-filters", "a,,b,c", "--duplicate-stderr-filters=E", "--local-addr", "10.0.0.5"),
        *("--signals-to-handle", "SIGTERM,SIGUSR1", "--shutdown-timeout", "3", "--virtual-local-rank"),
        *("/bin/echo", "--job", "--", "x"),
    )
    assert done.code == 7
    command = ran.plan.command
    assert (command.script, command.args) == (str(Path("/bin/echo").resolve()), ("--job", "--", "x"))
    assert command.options["--workers"] == "2:6"
    assert command.options["--fresh"] == "yes"
    assert ran.plan == RunPlan(
        command=command,
        job="j",
        spec=JobSpec(
            size_min=2,
            size_max=6,
            target=Target(3),
            wait_limit_s=9.0,
            max_restarts=0,
            mode=Mode.RELAUNCH,
            spares=1,
            checkpoints=CheckpointPolicy(steps=500, keep=7),
            chaos_allowed=True,
        ),
        script=Script("program", "/bin/echo", ("--job", "--", "x")),
        capacity=4,
        checkpoint_dir="s3://bucket/j",
        kind="jax",
        role="trainer",
        grace_s=5.0,
        shutdown_s=3.0,
        preload=("torch", "numpy.random"),
        local_addr="10.0.0.5",
        fresh=True,
        logs=LogOptions(
            log_dir=Path("logs/j"),
            redirects=StreamMask(by_rank=((0, OutputStream.ALL),)),
            tee=StreamMask(OutputStream.ALL),
            shown=frozenset({0, 2}),
            stdout_filters=("a,b", "c"),
            stderr_filters=("E",),
        ),
        virtual_local_rank=True,
        signals=(signal.SIGTERM, signal.SIGUSR1),
        notices=("aws", "file:/gone"),
    )


def test_a_schedule_is_part_of_the_settings_and_of_the_command(ran: Ran) -> None:
    run("--workers", "1:4", "--schedule", "0:1, 20:4", "train.py")
    assert ran.plan.spec.schedule == ((0, 1), (20, 4))
    assert ran.plan.command.options["--schedule"] == "0:1,20:4"


@pytest.mark.parametrize("flag", ["--nproc-per-node=3", "--nproc_per_node=3", "--nproc_per-node=3"])
def test_a_flag_has_both_spellings(ran: Ran, flag: str) -> None:
    run(flag, "train.py", "--its_own")
    assert (ran.plan.capacity, ran.plan.script.args) == (3, ("--its_own",))


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ((), Mode.AUTO),
        (("--ps", "2"), Mode.TASKS),
        (("--ps", "2", "--mode", "live", "--checkpoint-every", "60s"), Mode.LIVE),
        (("--mode", "live", "--checkpoint-every", "500"), Mode.LIVE),
    ],
)
def test_servers_are_for_a_task_queue_unless_the_mode_is_live(ran: Ran, words: tuple[str, ...], mode: Mode) -> None:
    assert invoke("run", *words, "train.py").code == 0
    assert ran.plan.spec.mode is mode


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "No script given. Usage: pliant run [OPTIONS] train.py [ARGS]."),
        (("--workers", "2"), "No script given"),
        (("no.py",), "There is no script 'no.py'. Put options of pliant run before it."),
        (("--no-python", "no-program"), "There is no program 'no-program'"),
        (("--no-python", "-m", "x"), "--module and --no-python cannot be combined"),
        (("--nprocs-per-node", "2", "train.py"), "No such option '--nprocs-per-node'"),
        (("--nprocs-per-node", "2", "train.py"), "--nproc-per-node"),
        (("--lr", "1", "train.py"), "No such option '--lr'"),
        (("--standalone=1", "train.py"), "does not take a value"),
        (("--nnodes", "two", "train.py"), "'two' is neither MIN:MAX"),
        (("--nnodes", "3:2", "train.py"), "--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, not 3:2"),
        (("--workers", "0", "train.py"), "--workers must be MIN:MAX with 1 <= MIN <= MAX"),
        (("--workers", "2:4", "--target", "5", "train.py"), "--target must be between 2 and 4, not 5"),
        (("--schedule", "0-2", "train.py"), "'0-2' is not a list of STEP:WORKERS, such as 0:2,1000:8, or none."),
        (("--schedule", "0:2,", "train.py"), "'0:2,' is not a list of STEP:WORKERS"),
        (
            ("--workers", "2:4", "--schedule", "0:2,50:5", "train.py"),
            "--schedule: the schedule asks for 5 workers from step 50 on, outside 2 to 4: change 50:5, or --workers.",
        ),
        (("--nproc-per-node", "0", "train.py"), "must be a number from 1, auto, cpu, gpu or xpu, not '0'"),
        (("--nproc-per-node", "xpu", "train.py"), "Pass a number of workers instead."),
        (("--rdzv-endpoint", "a:b", "train.py"), "is not HOST or HOST:PORT"),
        (("--rdzv-endpoint", "a:65536", "train.py"), "is not HOST or HOST:PORT"),
        (("--rdzv-endpoint", "0.0.0.0:1", "train.py"), "is a wildcard address"),
        (("--rdzv-backend", "zookeeper", "train.py"), "--rdzv-backend zookeeper is not supported"),
        (("--rdzv-backend", "etcd-v2", "train.py"), "needs the address of etcd: --rdzv-endpoint HOST:2379"),
        (("--rdzv-endpoint", "etcd://u:p@h/x", "train.py"), "Name no user: PLIANT_ETCD_USER does"),
        (
            ("--rdzv-endpoint", "etcd://h/x?min_workers=0", "train.py"),
            "min_workers of an etcd URL must be a number from 1",
        ),
        (("--rdzv-endpoint", "etcd://h/x?colour=1", "train.py"), "unknown key 'colour' in an etcd URL"),
        (("--rdzv-endpoint", "etcd://h/x?cacert=/x", "train.py"), "set PLIANT_ETCD_CA_FILE to the file"),
        (("--rdzv-endpoint", "etcd://h/x?protocol=https", "train.py"), "set PLIANT_ETCD_CA_FILE"),
        (("--rdzv-endpoint", "etcd://127.0.0.1/a_/b", "train.py"), "Invalid job name from --rdzv-id"),
        (("--rdzv-backend", "c10d", "--rdzv-endpoint", "etcd://h/x", "train.py"), "cannot be combined"),
        (
            ("--standalone", "--rdzv-endpoint", "etcd://127.0.0.1/x", "train.py"),
            "--standalone and etcd cannot be combined",
        ),
        (("--rdzv-id", "a/b", "train.py"), "Invalid job name from --rdzv-id"),
        (("--rdzv-conf", "x=1", "train.py"), "unknown key 'x'; choose from join_timeout,"),
        (("--rdzv-conf", "is_host", "train.py"), "write is_host=VALUE"),
        (("--rdzv-conf", "is_host=2", "train.py"), "is_host must be true or false"),
        (("--rdzv-conf", "join_timeout=soon", "train.py"), "must be a number of seconds"),
        (("--redirects", "4", "train.py"), "--redirects: '4' does not say which streams"),
        (("--local-ranks-filter", "a", "train.py"), "is not a list of local ranks"),
        (("--signals-to-handle", "SIGKILL", "train.py"), "is not a signal that can be handled"),
        (("--preload", "a b", "train.py"), "is not a module name"),
        (("--notice", "ibm", "train.py"), "is not aws, gcp, azure, file:PATH or command:COMMAND"),
        (("--mode", "dead", "train.py"), "is not one of"),
        (("--ps", "2", "--mode", "relaunch", "train.py"), "--ps 2 needs a task queue, the default, or --mode live"),
        (("--ps", "2", "--queue", "a", "train.py"), "--ps and --queue cannot be combined"),
        (
            ("--ps", "2", "--mode", "live", "--checkpoint-every", "500", "train.py"),
            "--checkpoint-every 500: parameter servers save by time",
        ),
        (("--token-file", "t", "train.py"), "Pass its address with --coordinator or --rdzv-endpoint"),
        (
            ("--standalone", "--coordinator", "http://x", "train.py"),
            "--standalone and --coordinator cannot be combined",
        ),
        (("--env", "tf", "--role", "boss:1", "train.py"), "'boss:1' is invalid. Pass a list such as chief:1,ps:2"),
    ],
)
def test_what_cannot_be_run_is_told_with_what_to_do(ran: Ran, args: tuple[str, ...], why: str) -> None:
    done = invoke("run", *args)
    assert (done.code, done.out, ran.plans) == (2, "", [])
    assert why in done.err


def test_help_is_in_two_parts_and_names_every_option(ran: Ran) -> None:
    ours, _, theirs = run("--help").out.partition("torchrun options")
    assert "--workers MIN:MAX" in ours
    assert "--coordinator URL" in ours
    assert "-m, --module" in theirs
    assert "[SCRIPT]" not in ours.partition("Options:")[2]


# --------------------------------------------------------------------------------- torchrun's variables


def test_torchrun_s_variables_are_defaults_and_flags_go_before_them(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "NNODES": "1:3",
        "NPROC_PER_NODE": "2",
        "RDZV_ID": "kube",
        "MAX_RESTARTS": "",
        "STANDALONE": "1",
        "TEE": "3",
    }
    for name, value in {**given, "MODULE": "0", "NUMA_BINDING": "nonsense", "LOGS_SPECS": "x"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    done = run("--nproc_per_node", "4", "train.py")
    plan = ran.plan
    assert (plan.job, plan.spec.size_min, plan.spec.size_max, plan.capacity, plan.spec.max_restarts) == (
        "kube",
        4,
        12,
        4,
        3,
    )
    assert (plan.logs.tee, plan.listen, plan.script.kind) == (StreamMask(OutputStream.ALL), None, "file")
    assert done.out == ""


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("PET_NNODES", "x", "The environment variable PET_NNODES is invalid: 'x' is neither MIN:MAX"),
        ("PET_STANDALONE", "yes", "The environment variable PET_STANDALONE must be 1 or 0, not 'yes'."),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x", "must be a number of seconds, not 'x'"),
        ("PYTHON_EXEC", "no-python", "PYTHON_EXEC is 'no-python', but there is no such program."),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    done = invoke("run", "train.py")
    assert (done.code, ran.plans) == (2, [])
    assert why in done.err


def test_a_bad_flag_is_not_blamed_on_a_variable(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "1")
    assert "Invalid value for '--nnodes': 'x'" in invoke("run", "--nnodes", "x", "train.py").err
    assert ran.plans == []


def test_variables_are_found_by_how_they_begin() -> None:
    assert settings.with_prefix("A_", "C", environ={"A_B": "", "C": "2", "AB": "3"}) == {"A_B": "", "C": "2"}


# --------------------------------------------------------------------------------------- script and name


def test_a_script_may_be_a_module_a_folder_a_program_or_run_by_another_python(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").touch()
    run("-m", "pkg.train", "x")
    run("app")
    done = run("--run-path", "--no-python", "train.py")
    monkeypatch.setenv("PYTHON_EXEC", sys.executable)
    run("-m", "pkg.train", "x")
    assert [plan.script for plan in ran.plans] == [
        Script("module", "pkg.train", ("x",)),
        Script("file", "app"),
        Script("file", "train.py"),
        Script("program", sys.executable, ("-u", "-m", "pkg.train", "x")),
    ]
    assert [plan.job for plan in ran.plans] == ["pkg.train", "app", "train", "pkg.train"]
    assert "ignored, for torchrun only: --run-path" in done.out


def test_tensorflow_s_script_has_a_name_of_its_own(ran: Ran, tmp_path: Path) -> None:
    run("--env", "tf")
    assert (ran.plan.script, ran.plan.job, ran.plan.kind) == (Script("file", "exec.py"), "exec", "tf")
    (tmp_path / "exec.py").unlink()
    assert "No script given, and there is no exec.py in this folder." in invoke("run", "--env", "tf").err


@pytest.mark.parametrize(
    ("given", "variables", "name"),
    [
        ({"job": "a", "rdzv_id": "b"}, {"PLIANT_JOB": "c"}, "a"),
        ({"rdzv_id": "job_1234"}, {"PLIANT_JOB": "c"}, "job_1234"),
        ({"rdzv_id": "none"}, {"PLIANT_JOB": "c"}, "c"),
        ({"script": "dir/__main__.py", "module": True}, {}, "dir-__main__.py"),
        ({"script": "__main__"}, {}, "main"),
        ({"script": "___"}, {}, "job"),
        ({"script": "x" * 80}, {}, "x" * 63),
    ],
)
def test_the_job_has_the_name_that_was_given_or_its_script_s(
    given: dict[str, Any], variables: dict[str, str], name: str
) -> None:
    assert meant(given, variables=variables).plan.job == name


def test_a_second_name_is_not_dropped_without_a_word() -> None:
    assert meant({"job": "a", "rdzv_id": "b"}).notes == ("--rdzv-id b is ignored: --job names the job",)
    assert meant({"job": "a", "rdzv_id": "a"}).notes == ()


# ------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, (1, 1, 1)),
        ({"nproc_per_node": "4"}, (4, 4, 4)),
        ({"nnodes": (2, 2)}, (2, 2, 1)),
        ({"nnodes": (1, 4), "nproc_per_node": "8"}, (8, 32, 8)),
        ({"workers": (2, 6)}, (2, 6, 6)),
        ({"workers": (2, 6), "spares": 2}, (2, 6, 8)),
        ({"workers": (2, 6), "nproc_per_node": "3"}, (2, 6, 3)),
        ({"workers": (2, 6), "nnodes": (1, 4), "nproc_per_node": "3", "spares": 1}, (2, 6, 3)),
        ({"kind": "tf", "role": "chief:1,ps:2,evaluator:1"}, (5, 5, 5)),
        ({"kind": "tf", "role": "chief:1,ps:1,worker:3"}, (5, 5, 5)),
        ({"kind": "tf", "role": "chief:1,ps:1,worker:3", "workers": (3, 8)}, (3, 8, 8)),
        ({"kind": "tf", "role": "chief:1", "nproc_per_node": "4"}, (4, 4, 4)),
    ],
)
def test_sizes_count_workers(given: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    plan = meant({"job": "j", "standalone": True, **given}).plan
    assert (plan.spec.size_min, plan.spec.size_max, plan.capacity) == sizes


def test_roles_are_tensorflow_s_and_workers_are_the_rest() -> None:
    roles = meant({"kind": "tf", "role": "chief:1, ps:2,worker:3,evaluator:0", "job": "j"}).plan
    assert (roles.spec.roles, roles.role) == ((("chief", 1), ("ps", 2)), "default")
    other = meant({"role": "a:b", "job": "j"}).plan
    assert (other.spec.roles, other.role) == ((), "a:b")
    for wrong in ("ps:2,ps:1", "chief:2", "ps:x", "ps:1,evaluator"):
        with pytest.raises(BadInput, match="Pass a list such as chief:1"):
            parse_roles(RunOptions(kind="tf", role=wrong))
    with pytest.raises(BadInput, match=r"--role names 3 of at most 3 workers\. At least one plain worker is required"):
        job_sizes(RunOptions(kind="tf", workers=(2, 3)), around(), {"chief": 1, "ps": 2}, [])


@pytest.mark.parametrize(
    ("text", "gpus", "variables", "count", "note"),
    [
        ("cpu", 4, {}, 8, "8 CPUs"),
        ("gpu", 4, {}, 4, "4 GPUs"),
        ("gpu", 4, {"CUDA_VISIBLE_DEVICES": "0,2"}, 2, "2 GPUs"),
        ("auto", 4, {"CUDA_VISIBLE_DEVICES": "3"}, 1, "1 GPUs"),
        ("auto", 4, {"CUDA_VISIBLE_DEVICES": ""}, 8, "8 CPUs, no GPU,"),
        ("auto", 0, {"CUDA_VISIBLE_DEVICES": "0,1"}, 8, "8 CPUs, no GPU,"),
        ("xpu", 0, {"ZE_AFFINITY_MASK": "0,1,2"}, 3, "3 XPUs in ZE_AFFINITY_MASK"),
    ],
)
def test_what_is_there_is_counted_and_told(
    text: str, gpus: int, variables: dict[str, str], count: int, note: str
) -> None:
    notes: list[str] = []
    sizes = job_sizes(RunOptions(nproc_per_node=text), around(variables=variables, gpus=gpus), {}, notes)
    assert sizes.capacity == count
    assert notes == [f"--nproc-per-node {text}: {count} ({note} on this machine)"]


def test_no_gpu_is_no_zero_workers() -> None:
    with pytest.raises(BadInput, match="this machine has no GPUs"):
        job_sizes(RunOptions(nproc_per_node="gpu"), around(), {}, [])


@pytest.mark.parametrize(
    ("listed", "there", "count"),
    [
        (None, 3, 3),
        ("0,1", 3, 2),
        ("0,-1,1", 3, 1),
        ("0,7,1", 3, 1),
        ("GPU-a,MIG-b", 1, 2),
        ("", 3, 0),
        ("0,,1", None, 1),
    ],
)
def test_a_list_of_devices_ends_at_the_first_that_cannot_be(listed: str | None, there: int | None, count: int) -> None:
    assert visible_device_count(listed, there) == count


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (
            {"workers": (4, 8), "nproc_per_node": "2"},
            "needs 4 workers, but this machine can run 2; waiting for other machines",
        ),
        (
            {"nproc_per_node": "2", "spares": 1},
            "not every spare fits: 2 workers and 1 spares, but this machine can run 2",
        ),
        (
            {"workers": (1, 4), "rdzv_endpoint": OURS},
            "this machine offers all 4 worker slots; limit it with --nproc-per-node",
        ),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_here_is_told(given: dict[str, Any], note: str) -> None:
    (said,) = [each for each in meant({"job": "j", **given}).notes if each != NO_TLS]
    assert note in said


# ------------------------------------------------------------------------------------- what has no effect


@pytest.mark.parametrize(
    "given",
    [
        {"monitor_interval": 5.0},
        {"start_method": "fork"},
        {"event_log_handler": "console"},
        {"logs_specs": "mine"},
        {"numa_binding": "node"},
        {"run_path": True},
        {"rdzv_conf": RdzvConf(ignored=("last_call_timeout",))},
        {"standalone": True, "rdzv_endpoint": OURS},
        {"standalone": True, "static_port": 1},
        {"rdzv_kind": "c10d", "node_rank": 1},
        {"rdzv_kind": "c10d", "static_host": "a"},
        {"rdzv_endpoint": OURS, "static_port": 1},
    ],
)
def test_what_is_taken_and_does_nothing_is_told_once(given: dict[str, Any]) -> None:
    (note,) = [each for each in meant({"job": "j", **given}).notes if each != NO_TLS]
    assert "--" in note
    assert "ignored" in note


def test_all_flags_without_effect_are_in_one_note() -> None:
    conf = RdzvConf(ignored=("rank", "read_timeout"))
    found = meant({"job": "j", "monitor_interval": 5.0, "run_path": True, "rdzv_conf": conf}).notes
    flags = "--monitor-interval, --run-path, --rdzv-conf rank, --rdzv-conf read_timeout"
    assert found == (f"ignored, for torchrun only: {flags}",)


def test_what_torchrun_s_defaults_say_is_not_worth_a_word() -> None:
    assert meant({"job": "j", "event_log_handler": "null"}).notes == ()


def test_the_time_to_stop_comes_from_the_flag_or_from_torchrun_s_variable() -> None:
    slow = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}
    assert meant({"job": "j"}, variables=slow).plan.shutdown_s == 90
    assert meant({"job": "j", "shutdown_timeout": 0.0}, variables=slow).plan.shutdown_s == 0
    assert meant({"job": "j"}).plan.shutdown_s == 30


def test_torchrun_s_time_to_join_is_ours_to_wait() -> None:
    waiting = {"job": "j", "rdzv_conf": RdzvConf(wait_limit_s=60)}
    assert meant(waiting).plan.spec.wait_limit_s == 60
    assert meant({**waiting, "wait_limit_s": 5.0}).plan.spec.wait_limit_s == 5


# ----------------------------------------------------------------------------------------- where agents meet


@pytest.mark.parametrize(
    ("seen", "forced", "expected"),
    [
        (HERE, None, True),
        (TAKEN, None, False),
        (THERE, None, False),
        (HERE, True, True),
        (HERE, False, False),
        (THERE, False, False),
        (TAKEN, False, False),
    ],
)
def test_who_has_the_address_hosts_unless_somebody_does_or_it_was_said(
    seen: EndpointFacts, forced: bool | None, expected: bool
) -> None:
    assert should_host(OURS, seen, forced) is expected


def test_one_that_must_host_and_cannot_is_told_why() -> None:
    with pytest.raises(BadInput, match=r"10\.0\.0\.5 is not one of its addresses"):
        should_host(OURS, THERE, forced=True)
    with pytest.raises(BadInput, match=r"a process already listens at 10\.0\.0\.5:29400"):
        should_host(OURS, TAKEN, forced=True)


@pytest.mark.parametrize(
    ("given", "listen"),
    [
        ({"rdzv_endpoint": OURS}, ("10.0.0.5", 29400)),
        ({"rdzv_endpoint": OURS, "rdzv_kind": "c10d"}, ("10.0.0.5", 29400)),
        ({"rdzv_endpoint": OURS, "standalone": True}, None),
        ({"rdzv_endpoint": EndpointAddress("localhost", 0), "rdzv_kind": "c10d"}, None),
        ({"static_port": 1234}, ("127.0.0.1", 1234)),
        ({"static_port": 0}, None),
        ({"static_host": "vm", "node_rank": 0}, ("vm", 29500)),
        ({"node_rank": 0}, None),
        ({"nnodes": (2, 2)}, ("127.0.0.1", 29500)),
        ({"nnodes": (2, 2), "rdzv_kind": "c10d"}, ("localhost", 29400)),
        ({"rdzv_kind": "c10d"}, None),
        ({"rdzv_endpoint": OURS, "rdzv_conf": RdzvConf(is_host=True), "node_rank": 1}, ("10.0.0.5", 29400)),
    ],
)
def test_this_machine_hosts_where_torchrun_s_flags_say(given: dict[str, Any], listen: tuple[str, int] | None) -> None:
    found = meant({"job": "j", **given})
    assert (found.plan.listen, found.elsewhere) == (listen, None)


@pytest.mark.parametrize(
    ("given", "seen", "url"),
    [
        ({"rdzv_endpoint": OURS}, THERE, "http://10.0.0.5:29400"),
        ({"rdzv_endpoint": OURS}, TAKEN, "http://10.0.0.5:29400"),
        ({"rdzv_endpoint": OURS, "node_rank": 1}, HERE, "http://10.0.0.5:29400"),
        ({"rdzv_endpoint": OURS, "rdzv_conf": RdzvConf(is_host=False)}, HERE, "http://10.0.0.5:29400"),
        ({"rdzv_endpoint": OURS, "rdzv_kind": "c10d", "node_rank": 0}, THERE, "http://10.0.0.5:29400"),
        ({"rdzv_endpoint": EndpointAddress("fe80::1", 1)}, THERE, "http://[fe80::1]:1"),
        ({"static_host": "vm", "node_rank": 3}, HERE, "http://vm:29500"),
        ({"node_rank": 1}, HERE, "http://127.0.0.1:29500"),
    ],
)
def test_other_machines_join_there_with_a_token(given: dict[str, Any], seen: EndpointFacts, url: str) -> None:
    token = Path("t")
    found = meant({"job": "j", **given}, seen, Flags((), token))
    assert (found.plan.listen, found.elsewhere) == (None, CoordinatorAddress((url,), token))
    assert meant({"job": "j", **given}, seen, variables={"PLIANT_TOKEN_FILE": "t"}).elsewhere == found.elsewhere
    with pytest.raises(BadInput, match="`pliant token create --scope join --job j --out FILE`"):
        meant({"job": "j", **given}, seen)


def test_the_same_command_with_its_token_may_be_used_where_the_coordinator_is() -> None:
    found = meant({"job": "j", "rdzv_endpoint": OURS}, HERE, Flags((), Path("t")))
    assert (found.plan.listen, found.elsewhere, found.notes) == (("10.0.0.5", 29400), None, (NO_TLS,))


def test_with_a_ca_the_coordinator_of_an_endpoint_has_tls_and_others_join_it_by_https() -> None:
    own = {**CA, "PLIANT_CERT_FILE": "own.pem", "PLIANT_KEY_FILE": "own.key"}
    found = meant({"job": "j", "rdzv_endpoint": OURS}, HERE, variables=own)
    assert (found.plan.listen, found.notes) == (("10.0.0.5", 29400), ())
    assert found.plan.tls == TlsFiles(Path("ca.pem"), Path("own.pem"), Path("own.key"))
    joins = meant({"job": "j", "rdzv_endpoint": OURS}, THERE, Flags((), Path("t")), CA)
    assert joins.elsewhere == CoordinatorAddress(("https://10.0.0.5:29400",), Path("t"), TlsFiles(Path("ca.pem")))


def test_with_a_ca_the_host_of_an_endpoint_needs_a_certificate() -> None:
    with pytest.raises(BadInput) as error:
        meant({"job": "j", "rdzv_endpoint": OURS}, HERE, variables=CA)
    assert error.value.why == (
        "This agent hosts the coordinator at 10.0.0.5:29400, and the CA ca.pem is given, so the coordinator needs a "
        "certificate. Run `pliant certs issue NAME --ip ADDRESS`, and set PLIANT_CERT_FILE and PLIANT_KEY_FILE."
    )


def test_with_a_ca_a_job_of_this_machine_alone_has_its_coordinator_on_loopback_without_tls() -> None:
    found = meant({"job": "j"}, HERE, variables=CA)
    assert (found.plan.listen, found.plan.tls, found.elsewhere) == (None, TlsFiles(), None)


def test_a_free_port_is_this_machine_s() -> None:
    with pytest.raises(BadInput, match=r"is another machine\. Pass its port"):
        meant({"job": "j", "rdzv_endpoint": EndpointAddress("far", 0)}, THERE)


def test_a_coordinator_that_was_named_goes_before_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLIANT_COORDINATOR", raising=False)
    flags = Flags(("http://c",), Path("t"))
    found = meant({"job": "j", "rdzv_endpoint": OURS}, HERE, flags)
    assert (found.plan.listen, found.elsewhere) == (None, CoordinatorAddress(("http://c",), Path("t")))
    assert found.notes == ("--coordinator is given; the endpoint is ignored",)
    assert meant({"job": "j", "nnodes": (2, 2)}, HERE, flags).notes == ()


def test_an_endpoint_that_was_named_goes_before_the_environment_s_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_COORDINATOR", "http://c")
    said = {"PLIANT_COORDINATOR": "http://c"}
    assert meant({"job": "j", "rdzv_endpoint": OURS}, variables=said).plan.listen == ("10.0.0.5", 29400)
    assert meant({"job": "j", "standalone": True}, variables=said).elsewhere is None
    for given in ({}, {"nnodes": (2, 2)}):
        found = meant({"job": "j", **given}, flags=Flags((), Path("t")), variables=said)
        assert found.elsewhere == CoordinatorAddress(("http://c",), Path("t"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rdzv_endpoint": EndpointAddress("vm", 29400)}, True),
        ({"nnodes": (1, 2)}, True),
        ({"static_port": 1234}, False),
        ({"nnodes": (1, 1), "static_host": "vm"}, False),
        ({"rdzv_endpoint": EndpointAddress("localhost", 1)}, False),
    ],
)
def test_a_name_that_means_loopback_here_is_told(given: dict[str, Any], told: bool) -> None:
    notes = meant({"job": "j", **given}, EndpointFacts(is_local=True, is_in_use=False, is_loopback=True)).notes
    assert any("so no other machine can join" in note for note in notes) is told


def test_an_address_is_ours_if_we_can_listen_on_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe_endpoint(EndpointAddress("127.0.0.1", port)) == EndpointFacts(
            is_local=True, is_in_use=True, is_loopback=True
        )
    assert probe_endpoint(EndpointAddress("localhost", port)) == EndpointFacts(
        is_local=True, is_in_use=False, is_loopback=True
    )
    assert probe_endpoint(EndpointAddress("192.0.2.1", port)) == THERE  # set aside for documentation: no member's
    with pytest.raises(BadInput, match="cannot be resolved"):
        probe_endpoint(EndpointAddress("no.such.name.invalid", port))


def test_the_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_X", "1")
    found = probe_machine()
    assert found.cpus >= 1
    assert found.gpus >= 0
    assert found.variables["PET_X"] == "1"
    assert found.probe_endpoint is probe_endpoint


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vm", EndpointAddress("vm", 29400)),
        (" vm-1.local:1 ", EndpointAddress("vm-1.local", 1)),
        ("10.0.0.5:0", EndpointAddress("10.0.0.5", 0)),
        ("[::1]", EndpointAddress("::1", 29400)),
        ("[::1]:65535", EndpointAddress("::1", 65535)),
        ("", None),
    ],
)
def test_an_endpoint_is_written_as_torchrun_writes_it(text: str, expected: EndpointAddress | None) -> None:
    assert option_types.parse_endpoint(text) == expected


def test_what_agents_are_told_besides_is_read() -> None:
    assert option_types.parse_rdzv_conf("") == RdzvConf()
    assert option_types.parse_rdzv_conf("join_timeout=60, is_host=True") == RdzvConf(60.0, is_host=True)
    assert option_types.parse_rdzv_conf("timeout=900,is_host=0") == RdzvConf(900.0, is_host=False)
    ignored = option_types.parse_rdzv_conf("last_call_timeout=1,read_timeout=x").ignored
    assert ignored == ("last_call_timeout", "read_timeout")


def test_lists_are_written_with_commas() -> None:
    assert option_types.parse_filters("apple,,pie,orange") == ("apple,pie", "orange")
    assert option_types.parse_filters(",,,") == (",",)
    assert option_types.parse_filters("") == ()
    assert option_types.parse_ranks("0, 2") == frozenset({0, 2})
    assert option_types.parse_ranks("") is None
    assert option_types.parse_modules("") == ()
    assert option_types.parse_signals("SIGTERM, SIGUSR2,SIGTERM") == (signal.SIGTERM, signal.SIGUSR2)
    assert option_types.parse_notice("command:test -e /gone") == "command:test -e /gone"
    with pytest.raises(click.BadParameter):
        option_types.parse_notice("file:")


@pytest.mark.parametrize(
    ("text", "steps", "seconds"),
    [("500", 500, 0.0), ("90s", 0, 90.0), ("10m", 0, 600.0), ("2h", 0, 7200.0), ("never", 0, 0.0)],
)
def test_a_checkpoint_is_due_every_so_many_steps_or_after_some_time(text: str, steps: int, seconds: float) -> None:
    assert option_types.parse_interval(text) == (steps, seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "5d", "often", "1.5m"])
def test_what_is_neither_steps_nor_a_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither a number of steps nor a time"):
        option_types.parse_interval(text)


def test_jobs_with_a_common_place_for_checkpoints_have_a_folder_each(ran: Ran, tmp_path: Path) -> None:
    run("--checkpoint-dir", "saved", "train.py")
    run("--checkpoint-dir", "saved", "--job", "other", "train.py")
    run("--checkpoint-dir", "file://saved", "train.py")
    saved = tmp_path / "saved"
    assert [plan.checkpoint_dir for plan in ran.plans] == [str(saved / each) for each in ("train", "other", "train")]


@pytest.mark.parametrize("where", ["", "s3://", "hdfs:///"])
def test_what_names_no_place_for_checkpoints_is_refused(where: str) -> None:
    with pytest.raises(BadInput, match=r"is not a place\. Give a folder, or a URL"):
        meant({"checkpoint_dir": where})
