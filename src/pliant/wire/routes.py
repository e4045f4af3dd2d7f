"""The table of the API, from which the server, the client, the OpenAPI document and the reference page are made.

Each command of the core has a route whose body is the command itself, so nothing stands between a client's request and
the decision. To add a route, add a row. A server without a handler for it does not start, and a row needs a scope.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core import messages as m
from pliant.core.allocate import Pool
from pliant.core.allocate.machines import LentMachine
from pliant.core.ps import messages as p
from pliant.core.submissions import Submission
from pliant.core.tasks import messages as t
from pliant.wire import api
from pliant.wire.api import Scope
from pliant.wire.views import ViewUpdate

WAIT_MAX_S = 60.0
PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """A number in the query string. It has a default; a value outside its bounds is refused."""

    name: str
    kind: type[int] | type[float]
    default: float
    low: float
    high: float
    about: str


@dataclass(frozen=True, slots=True)
class NameQuery:
    """A name in the query string. Without it, the value is empty."""

    name: str
    about: str


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table. A credential must cover `scope`.

    A credential for one job opens only routes with this job in their path, and `shared` ones, whose answer is then
    limited to this job. `streams` is a media type offered beside JSON.
    """

    name: str
    method: str
    path: str
    scope: Scope
    about: str
    body: type | None = None
    reply: type | str = api.Done
    query: tuple[Query | NameQuery, ...] = ()
    shared: bool = False
    streams: str = ""


AFTER = Query("after", int, 0, 0, 2**53, "the revision you have; 0 for none")
WAIT = Query("wait_s", float, 25.0, 0, WAIT_MAX_S, "seconds to wait for a change")
LIMIT = Query("limit", int, 100, 1, PAGE_MAX, "the most events to return")
AFTER_JOB = NameQuery("after", "the `next` of the page before; without it, the first page")

HEALTH = Route("health", "GET", "/healthz", Scope.PUBLIC, "Report whether this coordinator leads.", reply=api.Health)
READY = Route(
    "ready",
    "GET",
    "/readyz",
    Scope.PUBLIC,
    "Report whether this coordinator leads or stands by for the one that does.",
    reply=api.Health,
)
METRICS = Route(
    "metrics", "GET", "/metrics", Scope.READ, "Return metrics in the Prometheus format.", reply="text/plain"
)
ABOUT = Route(
    "about", "GET", "/v1", Scope.READ, "Describe this coordinator and its store.", reply=api.About, shared=True
)
OPENAPI = Route(
    "openapi",
    "GET",
    "/v1/openapi.json",
    Scope.READ,
    "Return the OpenAPI document.",
    reply="application/json",
    shared=True,
)
JOBS = Route(
    "jobs",
    "GET",
    "/v1/jobs",
    Scope.READ,
    f"List jobs by name, at most {PAGE_MAX} at a time.",
    reply=api.JobList,
    query=(AFTER_JOB,),
    shared=True,
)
CREATE = Route("create", "POST", "/v1/jobs", Scope.ADMIN, "Create a job.", body=m.Create)
JOB = Route(
    "job", "GET", "/v1/jobs/{job}", Scope.READ, "Return a job, its members and its agents.", reply=api.JobStatus
)
DELETE = Route(
    "delete",
    "POST",
    "/v1/jobs/{job}/delete",
    Scope.ADMIN,
    "Delete an ended job: its record, its events and their segments in the archive. Checkpoints stay. Its name can be "
    "used again; the events of the new job have higher revisions.",
    body=api.JobDeletion,
)
EVENTS = Route(
    "events",
    "GET",
    "/v1/jobs/{job}/events",
    Scope.READ,
    "Return the events of a job, in order and without a gap. With `Accept: text/event-stream` the answer is a stream: "
    "each event has its revision as its id, and a reader that reconnects with `Last-Event-ID` misses none.",
    reply=api.EventPage,
    query=(AFTER, LIMIT),
    streams="text/event-stream",
)
WATCH = Route(
    "watch",
    "GET",
    "/v1/jobs/{job}/members/{member}/watch",
    Scope.JOIN,
    "Wait for an update of a member's view. If the client closes the connection, the coordinator suspects that the "
    "member is dead.",
    reply=ViewUpdate,
    query=(AFTER, WAIT),
)
ORDERS = Route(
    "orders",
    "GET",
    "/v1/jobs/{job}/agents/{agent}/watch",
    Scope.JOIN,
    "Wait for new orders for an agent.",
    reply=api.Orders,
    query=(AFTER, WAIT),
)
RENEW = Route("renew", "POST", "/v1/jobs/{job}/renew", Scope.JOIN, "Renew a member's lease.", body=api.Renew)
RENEW_AGENT = Route(
    "renew-agent", "POST", "/v1/jobs/{job}/renew-agent", Scope.JOIN, "Renew an agent's lease.", body=api.RenewAgent
)
POOL = Route(
    "pool",
    "GET",
    "/v1/pool",
    Scope.READ,
    "Return the pool and the jobs that share it, each with its grant or its position and the reason.",
    reply=api.PoolStatus,
)
POOL_SET = Route(
    "pool-set",
    "POST",
    "/v1/pool",
    Scope.ADMIN,
    "Set the pool that jobs with a queue share: its slots, how many of them are spot, and the queues.",
    body=Pool,
    reply=api.PoolStatus,
)
MACHINE = Route(
    "machine",
    "POST",
    "/v1/pool/machines",
    Scope.JOIN,
    "Report about a machine that is lent to the pool: the job of each slot. Repeat it every second. The answer has the "
    "job of each slot as it should be.",
    body=LentMachine,
    reply=api.MachineOrders,
)
CLUSTER = Route(
    "cluster",
    "POST",
    "/v1/pool/cluster",
    Scope.ADMIN,
    "Report the slots that the nodes of a Kubernetes cluster lend. Only a pool of lent machines takes them.",
    body=api.ClusterReport,
    reply=api.PoolStatus,
)
SUBMIT = Route(
    "submit",
    "POST",
    "/v1/submissions",
    Scope.SUBMIT,
    "Submit a job to the cluster: an image, a command and numbers. The coordinator must accept submissions and the "
    "image. The same request again has no effect.",
    body=Submission,
    reply=api.SubmissionLine,
)
SUBMISSION = Route(
    "submission",
    "GET",
    "/v1/submissions/{task}",
    Scope.SUBMIT,
    "Return what became of a submission.",
    reply=api.SubmissionLine,
)
SUBMISSION_STOP = Route(
    "submission-stop",
    "POST",
    "/v1/submissions/{task}/stop",
    Scope.SUBMIT,
    "Stop the job of a submission and delete it, with the token that submitted it.",
    body=api.SubmissionStop,
    reply=api.SubmissionLine,
)
SUBMISSIONS = Route(
    "submissions",
    "GET",
    "/v1/submissions",
    Scope.ADMIN,
    "List the submissions that are not over, for the operator.",
    reply=api.SubmissionList,
)
SUBMISSION_REPORT = Route(
    "submission-report",
    "POST",
    "/v1/submissions/{task}/report",
    Scope.ADMIN,
    "Report what became of a submission, as the operator.",
    body=api.SubmissionReport,
    reply=api.SubmissionLine,
)
OPERATOR_METRICS = Route(
    "operator-metrics",
    "POST",
    "/v1/operator/metrics",
    Scope.ADMIN,
    "Report the operator's metrics, which `/metrics` returns with the coordinator's own for a minute.",
    body=api.OperatorReport,
)
TOKENS = Route("tokens", "GET", "/v1/tokens", Scope.ADMIN, "List tokens, without their secrets.", reply=api.TokenList)
TOKEN = Route(
    "token", "POST", "/v1/tokens", Scope.ADMIN, "Create a token.", body=api.TokenRequest, reply=api.CreatedToken
)
TOKEN_END = Route(
    "token-end",
    "POST",
    "/v1/tokens/end",
    Scope.ADMIN,
    "Revoke a token, now or after an overlap.",
    body=api.TokenRevocation,
    reply=api.TokenLine,
)


def _command(name: str, scope: Scope, body: type[m.Command], about: str) -> Route:
    return Route(name, "POST", f"/v1/jobs/{{job}}/{name}", scope, about, body=body)


COMMANDS: dict[type, Route] = {
    m.Create: CREATE,
    m.Resize: _command("resize", Scope.ADMIN, m.Resize, "Change the target: a number of workers, or a placement."),
    m.Cancel: _command("cancel", Scope.ADMIN, m.Cancel, "End a job."),
    m.Drain: _command("drain", Scope.JOIN, m.Drain, "Let a member leave at the next boundary."),
    m.DrainAgent: _command("drain-agent", Scope.JOIN, m.DrainAgent, "Let all members on an agent leave."),
    m.AgentJoin: _command("agent-join", Scope.JOIN, m.AgentJoin, "Register an agent and its capacity."),
    m.AgentReady: _command("agent-ready", Scope.JOIN, m.AgentReady, "Report that all workers of an agent have ended."),
    m.AgentLeave: _command("agent-leave", Scope.JOIN, m.AgentLeave, "Remove an agent that leaves."),
    m.Join: _command("join", Scope.JOIN, m.Join, "Join a job as a member."),
    m.Leave: _command("leave", Scope.JOIN, m.Leave, "Remove a member that leaves."),
    m.Exited: _command("exited", Scope.JOIN, m.Exited, "Report the end of a worker's process."),
    m.Report: _command("report", Scope.JOIN, m.Report, "Report committed steps."),
    m.Stopped: _command("stopped", Scope.JOIN, m.Stopped, "Report that a member broke its group and stopped."),
    m.WiringFailed: _command("wiring-failed", Scope.JOIN, m.WiringFailed, "Report that a group could not be built."),
    m.Raised: _command("raised", Scope.JOIN, m.Raised, "Report that user code raised on a slot."),
    m.Publish: _command("publish", Scope.JOIN, m.Publish, "Report that a part of a checkpoint is written."),
    m.PartNotWritten: _command(
        "not-written", Scope.JOIN, m.PartNotWritten, "Report that a part of a checkpoint will never be written."
    ),
    m.NotReadable: _command("unreadable", Scope.JOIN, m.NotReadable, "Report that a checkpoint cannot be read."),
    t.JoinTasks: _command("join-tasks", Scope.JOIN, t.JoinTasks, "Join a task queue as a member."),
    t.TakeShards: _command("take-shards", Scope.JOIN, t.TakeShards, "Take shards of a task queue."),
    t.AdvanceShard: _command("advance-shard", Scope.JOIN, t.AdvanceShard, "Report the processed records of a shard."),
    t.CompleteShard: _command("complete-shard", Scope.JOIN, t.CompleteShard, "Report that a shard is done."),
    t.FailShard: _command("fail-shard", Scope.JOIN, t.FailShard, "Report that user code raised on a shard."),
    t.GrowData: _command("grow-data", Scope.JOIN, t.GrowData, "Report how many records growing data has."),
    t.SaveModel: _command("save-model", Scope.JOIN, t.SaveModel, "Report that the mean of models is saved."),
    p.JoinServers: _command("join-servers", Scope.JOIN, p.JoinServers, "Join a task queue as a parameter server."),
    p.ReportCopied: _command("copied", Scope.JOIN, p.ReportCopied, "Report that copies of buckets are filled."),
    m.RequestCheckpoint: _command(
        "checkpoint", Scope.ADMIN, m.RequestCheckpoint, "Save the state at the next boundary."
    ),
}
"""Routes by command. Commands of the coordinator itself, such as `Expire` and `Suspect`, have none."""

ROUTES: tuple[Route, ...] = (
    HEALTH,
    READY,
    METRICS,
    ABOUT,
    OPENAPI,
    JOBS,
    JOB,
    DELETE,
    EVENTS,
    WATCH,
    ORDERS,
    RENEW,
    RENEW_AGENT,
    *COMMANDS.values(),
    POOL,
    MACHINE,
    POOL_SET,
    CLUSTER,
    SUBMIT,
    SUBMISSION,
    SUBMISSION_STOP,
    SUBMISSIONS,
    SUBMISSION_REPORT,
    OPERATOR_METRICS,
    TOKENS,
    TOKEN,
    TOKEN_END,
)
