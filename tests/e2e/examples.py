"""A valid request for every row of the route table, made from its types: a new row has one by itself."""

import dataclasses
import enum
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

from e2e.running import Running
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.model.job import JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.wire.api import Scope
from pliant.wire.codec import Body
from pliant.wire.routes import NameQuery, Route

JOB, OTHER = "demo", "other"
IN_PATH = {"job": JOB, "member": "m1", "agent": "a1", "task": "m1"}
TERMS = Terms(Grid(samples=64, batch=8, slots=4, epochs=100), seed=1)


@dataclass(frozen=True)
class Example:
    """A request for a route."""

    method: str
    url: str
    body: bytes | None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.body is None else {"content-type": "application/json"}


def example(route: Route) -> Example:
    """Everything as small as it may be: no watch waits, and a page has one event."""
    query = "&".join(f"{each.name}={'a' if isinstance(each, NameQuery) else f'{each.low:g}'}" for each in route.query)
    path = re.sub(r"{(\w+)}", lambda name: IN_PATH.get(name[1], "x1"), route.path)
    body = None if route.body is None else Body(route.body).encode(value_of(route.body))
    return Example(route.method, f"{path}?{query}" if query else path, body)


def value_of(kind: Any) -> Any:
    """Some value of a type that may stand in a message."""
    if isinstance(kind, typing.NewType):
        return {"MemberId": "m1", "AgentId": "a1"}.get(kind.__name__) or value_of(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        needed = (field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING)
        return typing.cast(Any, kind)(**{field.name: value_of(hints[field.name]) for field in needed})
    if kind is Scope:
        return Scope.READ  # the first one is no credential's
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    match typing.get_origin(kind):
        case types.UnionType | typing.Union:
            return value_of(typing.get_args(kind)[0])
        case origin if origin in (tuple, frozenset, dict):
            return origin()
        case _:
            return {int: 1, float: 1.0, str: "m1", bool: False}[kind]


def furnish(running: Running) -> None:
    """Two jobs, so that there is something to see and to spoil; m1 and m2 train in the first."""
    client = running.client()
    for job in (JOB, OTHER):
        client.send(job, m.Create(job, JobSpec(2, 4, Target(2))))
        client.send(job, m.AgentJoin(AgentId("a1"), 4))
        for member in ("m1", "m2"):
            client.send(job, m.Join(MemberId(member), AgentId("a1"), TERMS))


def state(running: Running) -> tuple[object, ...]:
    """All that a coordinator knows: every job, every event, every token."""
    get = running.admin.get
    jobs = get("/v1/jobs").json()["jobs"]
    names = [job["name"] for job in jobs]
    events = {name: get(f"/v1/jobs/{name}/events?limit=1000").json() for name in names}
    return jobs, events, [get(f"/v1/jobs/{name}").json() for name in names], get("/v1/tokens").json()
