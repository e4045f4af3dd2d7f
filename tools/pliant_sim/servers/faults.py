"""The faults of parameter servers, and when they strike."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.messages import Drain
from pliant_sim.faults.act import Act
from pliant_sim.faults.schedule import ScheduledFault, Table, draw_faults
from pliant_sim.servers.server import SimulatedServer
from pliant_sim.servers.world import COORDINATOR, ServerSimulation
from pliant_sim.simulation import NetworkConditions

SERVERS_MAX = 6


def _running(sim: ServerSimulation) -> list[SimulatedServer]:
    return [server for server in sim.servers.values() if server.up]


def kill_server(sim: ServerSimulation, draw: Random) -> bool:
    running = _running(sim)
    if not running or not sim.may_lose():
        return False
    sim.kill(draw.choice(running), draw.random() < 0.7)
    return True


def kill_all_servers(sim: ServerSimulation, draw: Random) -> bool:
    running = _running(sim) if not sim.setting.single else []
    for server in running:
        sim.kill(server, draw.random() < 0.7)
    return bool(running)


def stop_server(sim: ServerSimulation, draw: Random) -> bool:
    """Stop a server (SIGSTOP), for longer than its lease in some cases."""
    running = [server for server in _running(sim) if not server.paused]
    if not running or not sim.may_lose():
        return False
    server = draw.choice(running)
    server.paused = True
    sim.after(draw.choice([0.5, 3.0, 8.0, 14.0]), server.resume)
    return True


def drain_server(sim: ServerSimulation, draw: Random) -> bool:
    """Drain a server, if another one stays."""
    layout = sim.layout
    staying = [name for name in layout.ids if name not in layout.leaving]
    if len(staying) < 2:
        return False
    sim.decide(Drain(draw.choice(staying), 30.0, "a user asked for it"))
    return True


def resize_servers(sim: ServerSimulation, draw: Random) -> bool:
    sim.wanted = draw.randint(2, 5)
    return True


def add_server(sim: ServerSimulation, draw: Random) -> bool:  # noqa: ARG001 - as the table calls it
    if len(_running(sim)) >= SERVERS_MAX:
        return False
    sim.start_server()
    return True


def cut_off_server(sim: ServerSimulation, draw: Random) -> bool:
    """Cut a server off from the coordinator, past its lease in most cases. Workers and servers still reach it."""
    running = _running(sim) if sim.may_lose() else []
    return bool(running) and _cut(sim, draw.choice(running).id, COORDINATOR, draw.choice([4.0, 13.0, 20.0]))


def cut_two(sim: ServerSimulation, draw: Random) -> bool:
    """Cut two servers, or a server and a worker, off from each other."""
    running = _running(sim)
    if len(running) < 2:
        return False
    one = draw.choice(running)
    others = [server.id for server in running if server is not one] + [each.id for each in sim.workers]
    return _cut(sim, one.id, draw.choice(others), draw.choice([1.0, 5.0, 12.0]))


def _cut(sim: ServerSimulation, one: str, other: str, seconds: float) -> bool:
    pair = frozenset((one, other))
    if pair in sim.cut:
        return False
    sim.cut.add(pair)
    sim.after(seconds, sim.cut.discard, pair)
    return True


def break_route(sim: ServerSimulation, draw: Random) -> bool:
    """Break the stream of updates between two servers, now or when copies have just been filled."""
    if draw.random() < 0.5:
        sim.breaks_next = True
        return True
    routes = [route for server in _running(sim) for route in server.routes.values()]
    if not routes:
        return False
    draw.choice(routes).break_now()
    return True


def disturb(**conditions: float) -> Act[ServerSimulation]:
    """Change the network for a while."""

    def strike(sim: ServerSimulation, draw: Random) -> bool:
        sim.network = replace(sim.network, **conditions)
        sim.after(draw.choice([1.0, 3.0, 8.0]), _calm, sim)
        return True

    return strike


def _calm(sim: ServerSimulation) -> None:
    sim.network = NetworkConditions()


SERVERS: Table[ServerSimulation] = {
    FaultKind.KILL: (4.0, kill_server),
    FaultKind.KILL_ALL: (0.1, kill_all_servers),
    FaultKind.STOP: (2.0, stop_server),
    FaultKind.DRAIN: (2.5, drain_server),
    FaultKind.RESIZE: (1.0, resize_servers),
    FaultKind.JOIN: (2.0, add_server),
    FaultKind.PARTITION: (2.0, cut_off_server),
    FaultKind.PARTITION_MEMBERS: (2.0, cut_two),
    FaultKind.BREAK_TRANSFER: (3.0, break_route),
    FaultKind.LOSE_MESSAGES: (2.0, disturb(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (3.0, disturb(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (2.0, disturb(delay_s=0.6)),
    FaultKind.REORDER_MESSAGES: (2.0, disturb(jitter_s=1.5)),
}


def server_schedule(seed: int, until_s: float) -> tuple[ScheduledFault, ...]:
    """A fault every two seconds, each kind by its weight; in a fifth of the schedules, every five."""
    per_second = 0.2 if seed % 5 == 4 else 0.5
    return tuple(draw_faults(Random(f"server faults {seed}"), SERVERS, 4.0, until_s, per_second))


def strike_servers(sim: ServerSimulation, fault: ScheduledFault) -> None:
    """Inject a fault into a job with parameter servers."""
    if SERVERS[fault.kind][1](sim, Random(fault.draw)):
        sim.faults_fired(fault.kind)
