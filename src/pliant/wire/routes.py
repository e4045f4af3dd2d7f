"""The table of the API. The server, the client, the OpenAPI document, the scopes and the reference page come from it.

A command of the core has a route of its own whose body is the command itself, so nothing stands between what a client
says and what is decided. To add a route, add a row: a server without a handler for it does not start, and a row
without a scope cannot be written.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core import messages as m
from pliant.wire import api
from pliant.wire.api import Scope
from pliant.wire.views import ViewUpdate

WAIT_MAX_S = 60.0
PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """A number that may follow the path's question mark. Left out it is `default`; outside its bounds a refusal."""

    name: str
    kind: type[int] | type[float]
    default: float
    low: float
    high: float
    about: str


@dataclass(frozen=True, slots=True)
class Route:
    """One row. `scope` is what a credential must cover.

    A credential bound to a job opens only routes that name this job in their path, and those that are `shared`, whose
    answer is then confined to it. `streams` is a media type offered beside JSON to whoever asks for it.
    """

    name: str
    method: str
    path: str
    scope: Scope
    about: str
    body: type | None = None
    reply: type | str = api.Done
    query: tuple[Query, ...] = ()
    shared: bool = False
    streams: str = ""


AFTER = Query("after", int, 0, 0, 2**53, "the revision you know; 0 for nothing")
WAIT = Query("wait_s", float, 25.0, 0, WAIT_MAX_S, "how long to wait for a change")
LIMIT = Query("limit", int, 100, 1, PAGE_MAX, "at most so many events")

HEALTH = Route("health", "GET", "/healthz", Scope.PUBLIC, "Whether this coordinator decides.", reply=api.Health)
METRICS = Route("metrics", "GET", "/metrics", Scope.READ, "Metrics, as Prometheus reads them.", reply="text/plain")
ABOUT = Route("about", "GET", "/v1", Scope.READ, "Who answers, and with which store.", reply=api.About, shared=True)
OPENAPI = Route(
    "openapi", "GET", "/v1/openapi.json", Scope.READ, "This API, described.", reply="application/json", shared=True
)
JOBS = Route("jobs", "GET", "/v1/jobs", Scope.READ, "Every job, by name.", reply=api.JobList, shared=True)
CREATE = Route("create", "POST", "/v1/jobs", Scope.ADMIN, "Create a job.", body=m.Create)
JOB = Route("job", "GET", "/v1/jobs/{job}", Scope.READ, "A job, its members and its agents.", reply=api.JobStatus)
EVENTS = Route(
    "events",
    "GET",
    "/v1/jobs/{job}/events",
    Scope.READ,
    "What happened to a job, in order and without a gap. With `Accept: text/event-stream` it goes on: each event is "
    "sent with its revision as its id, and a reader that comes back with `Last-Event-ID` misses nothing.",
    reply=api.EventPage,
    query=(AFTER, LIMIT),
    streams="text/event-stream",
)
WATCH = Route(
    "watch",
    "GET",
    "/v1/jobs/{job}/members/{member}/watch",
    Scope.JOIN,
    "Wait until there is something new for a member. A watch that is closed by the other side is a suspicion that "
    "the member is dead.",
    reply=ViewUpdate,
    query=(AFTER, WAIT),
)
ORDERS = Route(
    "orders",
    "GET",
    "/v1/jobs/{job}/agents/{agent}/watch",
    Scope.JOIN,
    "Wait until there is something new for an agent.",
    reply=api.Orders,
    query=(AFTER, WAIT),
)
RENEW = Route("renew", "POST", "/v1/jobs/{job}/renew", Scope.JOIN, "A member is alive.", body=api.Renew)
RENEW_AGENT = Route(
    "renew-agent", "POST", "/v1/jobs/{job}/renew-agent", Scope.JOIN, "An agent is alive.", body=api.RenewAgent
)
TOKENS = Route("tokens", "GET", "/v1/tokens", Scope.ADMIN, "What is known of tokens.", reply=api.TokenList)
TOKEN = Route(
    "token", "POST", "/v1/tokens", Scope.ADMIN, "Make a token.", body=api.TokenRequest, reply=api.CreatedToken
)
TOKEN_END = Route(
    "token-end",
    "POST",
    "/v1/tokens/end",
    Scope.ADMIN,
    "End a token, at once or after an overlap.",
    body=api.TokenRevocation,
    reply=api.TokenLine,
)


def _command(name: str, scope: Scope, body: type[m.Command], about: str) -> Route:
    return Route(name, "POST", f"/v1/jobs/{{job}}/{name}", scope, about, body=body)


COMMANDS: dict[type, Route] = {
    m.Create: CREATE,
    m.Resize: _command("resize", Scope.ADMIN, m.Resize, "Change how many workers are wanted, or where."),
    m.Cancel: _command("cancel", Scope.ADMIN, m.Cancel, "End a job."),
    m.Drain: _command("drain", Scope.JOIN, m.Drain, "Let a member leave at the next boundary."),
    m.DrainAgent: _command("drain-agent", Scope.JOIN, m.DrainAgent, "Let everybody on an agent leave."),
    m.AgentJoin: _command("agent-join", Scope.JOIN, m.AgentJoin, "An agent offers room."),
    m.AgentReady: _command("agent-ready", Scope.JOIN, m.AgentReady, "None of an agent's workers runs any more."),
    m.AgentLeave: _command("agent-leave", Scope.JOIN, m.AgentLeave, "An agent says goodbye."),
    m.Join: _command("join", Scope.JOIN, m.Join, "A worker is ready to become a member."),
    m.Leave: _command("leave", Scope.JOIN, m.Leave, "A member says goodbye."),
    m.Exited: _command("exited", Scope.JOIN, m.Exited, "An agent saw a worker's process end."),
    m.Report: _command("report", Scope.JOIN, m.Report, "Committed steps."),
    m.Stopped: _command("stopped", Scope.JOIN, m.Stopped, "A member broke its group and stopped."),
    m.WiringFailed: _command("wiring-failed", Scope.JOIN, m.WiringFailed, "A group could not be built."),
    m.Raised: _command("raised", Scope.JOIN, m.Raised, "User code raised on a slot."),
    m.Publish: _command("publish", Scope.JOIN, m.Publish, "A member's part of a checkpoint is written."),
    m.PartNotWritten: _command(
        "not-written", Scope.JOIN, m.PartNotWritten, "A part of a checkpoint will never be written."
    ),
    m.NotReadable: _command("unreadable", Scope.JOIN, m.NotReadable, "A checkpoint cannot be read."),
    m.RequestCheckpoint: _command(
        "checkpoint", Scope.ADMIN, m.RequestCheckpoint, "Save the state at the next boundary."
    ),
}
"""By command. What time alone may say (`Expire`, `Suspect` and their like) has no route."""

ROUTES: tuple[Route, ...] = (
    HEALTH,
    METRICS,
    ABOUT,
    OPENAPI,
    JOBS,
    JOB,
    EVENTS,
    WATCH,
    ORDERS,
    RENEW,
    RENEW_AGENT,
    *COMMANDS.values(),
    TOKENS,
    TOKEN,
    TOKEN_END,
)
