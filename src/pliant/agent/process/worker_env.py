"""The environments in which scripts find their world: torchrun's, TensorFlow's and JAX's. Pure.

A script that does not use Pliant reads its rank and its peers from its environment. All of it follows from the launch
that the coordinator formed, so every agent computes it for its own workers. Call `environments` once for each launch,
and start each worker with its result on top of the agent's own environment and Pliant's variables.

- Always: the variables of torchrun. Scripts and libraries read them to learn where they run.
- `tf`: `TF_CONFIG`, and `NUM_WORKERS`, the number of workers that compute gradients.
- `jax`: `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`, `JAX_LOCAL_DEVICE_IDS`, and the variables of
  Open MPI's `mpirun`. JAX itself reads the first and the last; scripts read the other two and pass them on.
  `jax.distributed.initialize()` without arguments detects only launchers that JAX knows, and Open MPI is the one that
  it detects by variables alone. It then uses one device for each process, so a worker that is alone on its machine gets
  the numbers of all devices.

A user's own values of `OMP_NUM_THREADS`, `TORCH_NCCL_ASYNC_ERROR_HANDLING` and `JAX_LOCAL_DEVICE_IDS` are kept, as
torchrun does with the first two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import BadInput

Framework = Literal["torch", "tf", "jax"]

TORCH_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # the default of torchrun
OUTSIDE = "evaluator"  # the role that TensorFlow expects as a task but not in the cluster
SERVERS = "ps"


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """The settings that all workers of one agent share. `user` is the environment they inherit."""

    kind: Framework
    job: str
    error_dir: Path
    max_restarts: int = 3
    role: str = "default"
    run_id: str = ""  # the job's name, unless `--rdzv-id` names another
    capacity: int = 1
    devices: int = 0  # accelerators of this machine, as far as the agent can count them
    virtual_local_rank: bool = False
    signals: str = TORCH_SIGNALS
    user: Mapping[str, str] = field(default_factory=dict)


def environments(launch: Launch, agent: AgentId, surroundings: WorkerEnvironment) -> dict[MemberId, dict[str, str]]:
    """Return the environment of each worker of this agent, in the order of their ranks.

    Raises `BadInput` if each worker is to see one device only, and the user's list of devices is too short.
    """
    return {
        seat.member: {
            **_torch(launch, rank, surroundings),
            **_threads(launch, agent, surroundings),
            **(_tensorflow(launch, rank) if surroundings.kind == "tf" else {}),
            **(_jax(launch, rank, surroundings) if surroundings.kind == "jax" else {}),
        }
        for rank, seat in enumerate(launch.seats)
        if seat.agent == agent
    }


def live_environment(member: MemberId, local_rank: int, surroundings: WorkerEnvironment) -> dict[str, str]:
    """Return the environment of a worker of a live job: all that does not depend on a world."""
    return {
        "TORCHELASTIC_MAX_RESTARTS": str(surroundings.max_restarts),
        "TORCHELASTIC_RUN_ID": surroundings.run_id or surroundings.job,
        "TORCHELASTIC_ERROR_FILE": str(error_file(surroundings.error_dir, member)),
        "ROLE_NAME": surroundings.role,
        **_local_rank(local_rank, surroundings),
    }


def error_file(error_dir: Path, member: MemberId) -> Path:
    """Return the file for a worker's error, by torchelastic's convention. Its folder must exist."""
    return error_dir / f"{member}.error.json"


def host_and_port(address: str) -> tuple[str, str]:
    """Return the host and the port of a seat's address; an IPv6 address without its brackets, as for a socket."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


# ---------------------------------------------------------------------------------------------------------- torchrun


def _torch(launch: Launch, rank: int, surroundings: WorkerEnvironment) -> dict[str, str]:
    seats, own = launch.seats, launch.seats[rank]
    agents = list(dict.fromkeys(seat.agent for seat in seats))  # in the order of their first ranks
    here = [seat.member for seat in seats if seat.agent == own.agent]
    alike = [seat.member for seat in seats if seat.role == own.role]
    host, port = host_and_port(seats[0].address)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(seats)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(agents.index(own.agent)),
        "GROUP_WORLD_SIZE": str(len(agents)),
        "ROLE_NAME": surroundings.role if len(alike) == len(seats) else own.role,
        "ROLE_RANK": str(alike.index(own.member)),
        "ROLE_WORLD_SIZE": str(len(alike)),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": str(launch.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(surroundings.max_restarts),
        "TORCHELASTIC_RUN_ID": surroundings.run_id or surroundings.job,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves its own store: the agent never imports torch
        "TORCHELASTIC_SIGNALS_TO_HANDLE": surroundings.signals,
        "TORCHELASTIC_ERROR_FILE": str(error_file(surroundings.error_dir, own.member)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": surroundings.user.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **_local_rank(here.index(own.member), surroundings),
    }


def _local_rank(number: int, surroundings: WorkerEnvironment) -> dict[str, str]:
    if not surroundings.virtual_local_rank:
        return {"LOCAL_RANK": str(number)}
    listed = surroundings.user.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(number)}
    devices = _listed(listed)
    if number >= len(devices):
        raise BadInput(
            f"CUDA_VISIBLE_DEVICES={listed} has no device for worker {number + 1} of this machine, and with "
            "--virtual-local-rank each has one of its own: list more devices, or lower --nproc-per-node."
        )
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[number]}


def _listed(devices: str) -> list[str]:
    return [device.strip() for device in devices.split(",") if device.strip()]


def _threads(launch: Launch, agent: AgentId, surroundings: WorkerEnvironment) -> dict[str, str]:
    """Return one thread for each worker if the agent has room for several, so that sums do not depend on the size."""
    there = sum(seat.agent == agent for seat in launch.seats)
    if "OMP_NUM_THREADS" in surroundings.user or max(surroundings.capacity, there) == 1:
        return {}
    return {"OMP_NUM_THREADS": "1"}


# -------------------------------------------------------------------------------------------------- TensorFlow and JAX


def _tensorflow(launch: Launch, rank: int) -> dict[str, str]:
    cluster: dict[str, list[str]] = {}
    for seat in launch.seats:
        if seat.role != OUTSIDE:
            cluster.setdefault(seat.role, []).append(seat.address)
    own = launch.seats[rank]
    task = {"type": own.role, "index": sum(seat.role == own.role for seat in launch.seats[:rank])}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        "NUM_WORKERS": str(sum(_computes(seat, launch) for seat in launch.seats)),
    }


def _computes(seat: Seat, launch: Launch) -> bool:
    """Return whether a seat computes gradients. The chief does unless there are parameter servers."""
    if seat.role == "chief":
        return all(other.role != SERVERS for other in launch.seats)
    return seat.role == "worker"


def _jax(launch: Launch, rank: int, surroundings: WorkerEnvironment) -> dict[str, str]:
    own, address = launch.seats[rank], launch.seats[0].address
    here = [seat.member for seat in launch.seats if seat.agent == own.agent]
    number = "0" if surroundings.virtual_local_rank else str(here.index(own.member))
    one = surroundings.virtual_local_rank or max(surroundings.capacity, len(here)) > 1
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(len(launch.seats)),
        "JAX_PROCESS_ID": str(rank),
        "JAX_LOCAL_DEVICE_IDS": _user_devices(surroundings) or (number if one else _all_devices(surroundings)),
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",  # JAX looks whether it is there, and takes the address above
        "OMPI_COMM_WORLD_SIZE": str(len(launch.seats)),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": number,
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(len(here)),
    }


def _user_devices(surroundings: WorkerEnvironment) -> str:
    return surroundings.user.get("JAX_LOCAL_DEVICE_IDS", "")


def _all_devices(surroundings: WorkerEnvironment) -> str:
    """Return the numbers of all visible devices; JAX counts those that the user lists from 0."""
    listed = surroundings.user.get("CUDA_VISIBLE_DEVICES")
    count = surroundings.devices if listed is None else len(_listed(listed))
    return ",".join(str(number) for number in range(max(count, 1)))
