"""The environments of workers: their laws over random launches, and torchrun's own beside ours."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.agent.process.worker_env import Framework, WorkerEnvironment, environments, error_file, host_and_port
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import BadInput

Environments = dict[MemberId, dict[str, str]]

KINDS: tuple[Framework, ...] = ("torch", "tf", "jax")
ERRORS = Path("errors")


def surroundings(kind: Framework = "torch", **more: Any) -> WorkerEnvironment:
    return WorkerEnvironment(kind, "demo", ERRORS, **more)


def launch(*seats: str, number: int = 1, host: str = "10.0.0.1", restarts: int = 0) -> Launch:
    """Seats written as "agent" or "agent role"."""
    made = []
    for rank, text in enumerate(seats):
        agent, _, role = text.partition(" ")
        member = MemberId(f"{agent}-g{number}.{rank}")
        made.append(Seat(member, AgentId(agent), role or "worker", f"{host}:{4000 + rank}"))
    return Launch(number, tuple(made), "test", restarts)


def all_environments(given_launch: Launch, common: WorkerEnvironment) -> Environments:
    """Return what all agents of a launch tell their workers, by rank."""
    agents = {seat.agent for seat in given_launch.seats}
    told: Environments = {}
    for agent in agents:
        told |= environments(given_launch, agent, common)
    return {seat.member: told[seat.member] for seat in given_launch.seats}


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "vm-7"]), min_size=1, max_size=8))
    roles = draw(st.sampled_from([("worker",), ("worker", "chief", "ps", "evaluator"), ("worker", "chief")]))
    host = draw(st.sampled_from(["10.0.0.1", "vm.example.org", "[::1]", "[fe80::1%eth0]"]))
    number = draw(st.integers(1, 1000))
    chosen = [f"{name} {draw(st.sampled_from(roles))}" for name in names]
    return launch(*chosen, number=number, host=host, restarts=draw(st.integers(0, number - 1)))


@st.composite
def commons(draw: st.DrawFn) -> WorkerEnvironment:
    return surroundings(
        draw(st.sampled_from(KINDS)),
        capacity=draw(st.integers(1, 8)),
        max_restarts=draw(st.integers(0, 5)),
        virtual_local_rank=draw(st.booleans()),
    )


# ------------------------------------------------------------------------------------------------------------- laws


def numbers(told: Environments, name: str) -> list[int]:
    return [int(each[name]) for each in told.values()]


@given(launches(), commons())
def test_ranks_are_dense_and_follow_the_seats(given_launch: Launch, common: WorkerEnvironment) -> None:
    told = all_environments(given_launch, common)
    size = len(given_launch.seats)
    assert numbers(told, "RANK") == list(range(size))
    assert set(numbers(told, "WORLD_SIZE")) == {size}
    assert set(numbers(told, "TORCHELASTIC_RESTART_COUNT")) == {given_launch.restarts}


@given(launches(), commons())
def test_local_ranks_are_dense_on_each_agent(given_launch: Launch, common: WorkerEnvironment) -> None:
    told = all_environments(given_launch, common)
    groups = set()
    for agent in {seat.agent for seat in given_launch.seats}:
        own = environments(given_launch, agent, common)
        assert list(own) == [seat.member for seat in given_launch.seats if seat.agent == agent]
        one_device = common.virtual_local_rank
        assert numbers(own, "LOCAL_RANK") == [0 if one_device else place for place in range(len(own))]
        if one_device:
            assert numbers(own, "CUDA_VISIBLE_DEVICES") == list(range(len(own)))
        assert set(numbers(own, "LOCAL_WORLD_SIZE")) == {len(own)}
        (group,) = set(numbers(own, "GROUP_RANK"))
        groups.add(group)
        (threads,) = {each.get("OMP_NUM_THREADS") for each in own.values()}
        assert threads == ("1" if max(len(own), common.capacity) > 1 else None)
    assert groups == set(range(len(groups)))
    assert set(numbers(told, "GROUP_WORLD_SIZE")) == {len(groups)}
    assert numbers(told, "GROUP_RANK")[0] == 0


@given(launches(), commons())
def test_everybody_is_told_of_the_same_place_to_meet(given_launch: Launch, common: WorkerEnvironment) -> None:
    told = all_environments(given_launch, common)
    (place,) = {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in told.values()}
    assert place == host_and_port(given_launch.seats[0].address)
    assert not place[0].startswith("[")
    if common.kind == "jax":
        assert {each["JAX_COORDINATOR_ADDRESS"] for each in told.values()} == {given_launch.seats[0].address}


@given(launches(), commons())
def test_nobody_shares_a_file_for_errors_and_all_values_are_text(
    given_launch: Launch, common: WorkerEnvironment
) -> None:
    told = all_environments(given_launch, common)
    files = {each["TORCHELASTIC_ERROR_FILE"] for each in told.values()}
    assert files == {str(error_file(ERRORS, member)) for member in told}
    assert len(files) == len(told)
    assert all(isinstance(value, str) for each in told.values() for value in each.values())


@given(launches(), commons())
def test_ranks_within_a_role_are_dense(given_launch: Launch, common: WorkerEnvironment) -> None:
    told = all_environments(given_launch, common)
    roles = {seat.role for seat in given_launch.seats}
    for role in roles:
        own = {seat.member: told[seat.member] for seat in given_launch.seats if seat.role == role}
        assert numbers(own, "ROLE_RANK") == list(range(len(own)))
        assert set(numbers(own, "ROLE_WORLD_SIZE")) == {len(own)}
        assert {each["ROLE_NAME"] for each in own.values()} == {role if len(roles) > 1 else common.role}


@given(launches())
def test_tensorflow_s_cluster_is_the_same_for_all_and_everybody_is_at_its_place(given_launch: Launch) -> None:
    told = all_environments(given_launch, surroundings("tf"))
    configs = {member: json.loads(each["TF_CONFIG"]) for member, each in told.items()}
    cluster = configs[given_launch.seats[0].member]["cluster"]
    assert all(each["cluster"] == cluster for each in configs.values())
    places = [tuple(each["task"].values()) for each in configs.values()]
    assert len(set(places)) == len(places)
    for seat in given_launch.seats:
        task = configs[seat.member]["task"]
        assert task["type"] == seat.role
        if seat.role == "evaluator":
            assert "evaluator" not in cluster
        else:
            assert cluster[seat.role][task["index"]] == seat.address
    inside = [seat.address for seat in given_launch.seats if seat.role != "evaluator"]
    assert sorted(address for addresses in cluster.values() for address in addresses) == sorted(inside)


@given(launches())
def test_tensorflow_and_torch_agree_on_where_rank_0_is(given_launch: Launch) -> None:
    first = all_environments(given_launch, surroundings("tf"))[given_launch.seats[0].member]
    if given_launch.seats[0].role != "evaluator":
        place = json.loads(first["TF_CONFIG"])["cluster"][given_launch.seats[0].role][0]
        assert host_and_port(place) == (first["MASTER_ADDR"], first["MASTER_PORT"])


@given(launches(), commons())
def test_jax_s_numbers_are_torch_s(given_launch: Launch, common: WorkerEnvironment) -> None:
    told = all_environments(given_launch, surroundings("jax", capacity=common.capacity))
    for each in told.values():
        assert each["JAX_PROCESS_ID"] == each["OMPI_COMM_WORLD_RANK"] == each["RANK"]
        assert each["JAX_NUM_PROCESSES"] == each["OMPI_COMM_WORLD_SIZE"] == each["WORLD_SIZE"]
        assert each["OMPI_COMM_WORLD_LOCAL_RANK"] == each["LOCAL_RANK"] == each["JAX_LOCAL_DEVICE_IDS"]
        assert each["OMPI_COMM_WORLD_LOCAL_SIZE"] == each["LOCAL_WORLD_SIZE"]


@given(launches(), commons())
def test_a_kind_sets_its_own_names_and_no_other_s(given_launch: Launch, common: WorkerEnvironment) -> None:
    told = all_environments(given_launch, common)
    for each in told.values():
        assert ("TF_CONFIG" in each) == ("NUM_WORKERS" in each) == (common.kind == "tf")
        assert any(name.startswith(("JAX_", "OMPI_")) for name in each) == (common.kind == "jax")


# --------------------------------------------------------------------------------------------------------- examples


def test_two_agents_with_two_workers_each() -> None:
    told = all_environments(launch("a", "a", "b", "b", number=7, restarts=5), surroundings(max_restarts=2, run_id="r1"))
    third = told[MemberId("b-g7.2")]
    assert third == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RESTART_COUNT": "5",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_RUN_ID": "r1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": "errors/b-g7.2.error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_an_agent_without_a_seat_has_nobody_to_tell() -> None:
    assert environments(launch("a"), AgentId("b"), surroundings()) == {}


def test_the_job_s_name_is_the_run_s_unless_another_was_given() -> None:
    (told,) = all_environments(launch("a"), surroundings()).values()
    assert told["TORCHELASTIC_RUN_ID"] == "demo"


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.1:4000", ("10.0.0.1", "4000")),
        ("vm.example.org:4000", ("vm.example.org", "4000")),
        ("[::1]:4000", ("::1", "4000")),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", "1")),
    ],
)
def test_an_address_has_two_parts(address: str, parts: tuple[str, str]) -> None:
    assert host_and_port(address) == parts


def test_ipv6_keeps_its_brackets_where_host_and_port_are_one_text() -> None:
    (tf,) = all_environments(launch("a", host="[::1]"), surroundings("tf")).values()
    assert json.loads(tf["TF_CONFIG"])["cluster"] == {"worker": ["[::1]:4000"]}
    (jax,) = all_environments(launch("a", host="[::1]"), surroundings("jax")).values()
    assert (jax["JAX_COORDINATOR_ADDRESS"], jax["MASTER_ADDR"]) == ("[::1]:4000", "::1")


def test_what_the_user_set_wins() -> None:
    user = {"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "RANK": "9", "JAX_LOCAL_DEVICE_IDS": "2,3"}
    first, _ = all_environments(launch("a", "a"), surroundings("jax", capacity=2, user=user)).values()
    assert "OMP_NUM_THREADS" not in first  # it is inherited
    assert first["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert first["JAX_LOCAL_DEVICE_IDS"] == "2,3"
    assert first["RANK"] == "0"


def test_one_worker_on_a_machine_has_all_threads() -> None:
    for told in all_environments(launch("a", "b"), surroundings()).values():
        assert "OMP_NUM_THREADS" not in told
    (alone,) = all_environments(launch("a"), surroundings(capacity=4)).values()
    assert alone["OMP_NUM_THREADS"] == "1"  # three more may come, and sums must not change with them


def test_each_worker_sees_one_device_of_those_that_the_user_lists() -> None:
    common = surroundings(virtual_local_rank=True, user={"CUDA_VISIBLE_DEVICES": "4, 6,7"})
    told = environments(launch("b", "a", "b"), AgentId("b"), common)
    assert [(each["LOCAL_RANK"], each["CUDA_VISIBLE_DEVICES"]) for each in told.values()] == [("0", "4"), ("0", "6")]


@pytest.mark.parametrize("listed", ["4", ""])
def test_a_list_of_devices_that_is_too_short_is_said(listed: str) -> None:
    common = surroundings(virtual_local_rank=True, user={"CUDA_VISIBLE_DEVICES": listed})
    with pytest.raises(BadInput, match=f"CUDA_VISIBLE_DEVICES={listed} has no device for worker .*--nproc-per-node"):
        environments(launch("a", "a"), AgentId("a"), common)


@pytest.mark.parametrize(
    ("common", "ids"),
    [
        (surroundings("jax"), "0"),
        (surroundings("jax", devices=4), "0,1,2,3"),
        (surroundings("jax", devices=4, user={"CUDA_VISIBLE_DEVICES": "2,3"}), "0,1"),
        (surroundings("jax", devices=4, capacity=4), "0"),
        (surroundings("jax", devices=4, capacity=4, virtual_local_rank=True), "0"),
        (surroundings("jax", devices=4, virtual_local_rank=True), "0"),
    ],
)
def test_one_process_of_jax_has_all_devices_if_no_other_has_room(common: WorkerEnvironment, ids: str) -> None:
    (told,) = all_environments(launch("a"), common).values()
    assert told["JAX_LOCAL_DEVICE_IDS"] == ids


def test_parameter_servers_have_a_chief_that_does_not_compute() -> None:
    told = all_environments(launch("a chief", "a ps", "a worker", "b worker", "b evaluator"), surroundings("tf"))
    assert [json.loads(each["TF_CONFIG"])["task"] for each in told.values()] == [
        {"type": "chief", "index": 0},
        {"type": "ps", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "evaluator", "index": 0},
    ]
    for each in told.values():
        assert json.loads(each["TF_CONFIG"])["cluster"] == {
            "chief": ["10.0.0.1:4000"],
            "ps": ["10.0.0.1:4001"],
            "worker": ["10.0.0.1:4002", "10.0.0.1:4003"],
        }
        assert each["NUM_WORKERS"] == "2"


@pytest.mark.parametrize(("seats", "count"), [(("a", "a", "b"), "3"), (("a chief", "a worker"), "2")])
def test_without_parameter_servers_the_chief_computes_too(seats: tuple[str, ...], count: str) -> None:
    told = all_environments(launch(*seats), surroundings("tf"))
    assert {each["NUM_WORKERS"] for each in told.values()} == {count}


def test_a_seat_that_is_filled_again_has_its_old_place() -> None:
    before = launch("a chief", "a ps", "b worker")
    old = before.seats[2]
    again = Seat(MemberId("b-g1.9"), old.agent, old.role, old.address)
    after = Launch(1, (*before.seats[:2], again), "test")
    names = ("TF_CONFIG", "RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    told = (
        all_environments(before, surroundings("tf"))[old.member],
        all_environments(after, surroundings("tf"))[again.member],
    )
    assert [told[0][name] for name in names] == [told[1][name] for name in names]


# --------------------------------------------------------------------------------------------------- beside torchrun

OTHER_VALUES = {
    "MASTER_ADDR": "the machine's name there, the seat's address here",
    "MASTER_PORT": "any free one",
    "TORCHELASTIC_RUN_ID": "a name of its own choosing, with --standalone",
    "TORCHELASTIC_ERROR_FILE": "a temporary folder there, the job's here",
    "TORCHELASTIC_USE_AGENT_STORE": "torchrun's agent serves the store; ours never imports torch",
}
TELL = """
import json, os, pathlib, sys
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
"""


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, str]], Mapping[str, str]]:
    """Return what two workers of the pinned torchrun find, and what it found itself."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("torchrun")
    user = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    subprocess.run([*command, sys.executable, "-c", TELL, str(folder)], env=user, check=True, capture_output=True)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)], user


def test_workers_find_all_that_torchrun_gives_them_and_no_more(
    torchrun: tuple[list[dict[str, str]], Mapping[str, str]],
) -> None:
    theirs, user = torchrun
    ours = all_environments(launch("a", "a"), surroundings(capacity=2, user=user, max_restarts=0)).values()
    for there, here in zip(theirs, ours, strict=True):
        new = {name: value for name, value in there.items() if user.get(name) != value}
        assert set(here) == set(new) | (set(here) & set(user))
        other = {name for name in here if there[name] != here[name]}
        assert other == set(OTHER_VALUES)


def test_the_guide_names_all_that_workers_find() -> None:
    page = (Path(__file__).parents[4] / "docs" / "guides" / "scripts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", page.partition("## What workers find")[2], re.MULTILINE)
    told = {"CUDA_VISIBLE_DEVICES"}
    for kind in KINDS:
        (own,) = all_environments(launch("a"), surroundings(kind, capacity=2)).values()
        told |= set(own)
    assert {name.strip("`") for row in rows for name in row.split(", ")} == told
