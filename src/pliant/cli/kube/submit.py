"""`pliant submit` and the commands for submitted jobs: image, command and numbers instead of a manifest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pliant.cli.commands.jobs import parse_sizes
from pliant.cli.connect import Flags, connection_options
from pliant.cli.kube.remote import show_remotely, stop_remotely, submit_remotely
from pliant.cli.output import clean, json_option, print_json
from pliant.core.model.job import Mode
from pliant.core.submissions import Submission
from pliant.errors import BadInput, PliantError, Refused

if TYPE_CHECKING:
    from pliant.kube.api import KubeApi

POLL_S = 1.0
NAMESPACE = "default"
ENDED = {"Finished": 0, "Failed": 1, "Cancelled": 1}
LOG_LINES = 100


def parse_pairs(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Parse NAME=VALUE."""
    for text in texts:
        name, sign, _value = text.partition("=")
        if not (name and sign):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
    return tuple((name, value) for name, _, value in (text.partition("=") for text in texts))


def cluster_options(command: Any) -> Any:
    """Add --namespace and --kubeconfig to a command."""
    command = click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Cluster and credentials.  [default: KUBECONFIG, or the file of kubectl]",
    )(command)
    about = f"Namespace.  [default: {NAMESPACE}]"
    return click.option("--namespace", metavar="NAME", help=about)(command)


def uses_coordinator(flags: Flags, namespace: str | None, kubeconfig: Path | None) -> bool:
    """Return whether --coordinator was given: then the coordinator is asked, and not the cluster."""
    if flags.urls and (namespace is not None or kubeconfig is not None):
        raise click.UsageError("--coordinator cannot be combined with --namespace and --kubeconfig.")
    return bool(flags.urls)


def connect(kubeconfig: Path | None) -> KubeApi:
    from pliant.cli.kube.command import require_extra

    require_extra()
    from pliant.kube.api import KubeApi

    return KubeApi.connect(None if kubeconfig is None else str(kubeconfig))


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--image", required=True, metavar="IMAGE", help="Image with the training program.")
@click.option("--task", default="default", show_default=True, metavar="NAME", help="Name of the job.")
@click.option("--workers", type=parse_sizes, required=True, metavar="MIN:MAX", help="Number of workers; 4 means 4:4.")
@click.option("--target", type=click.IntRange(1), metavar="N", help="Workers to start with.  [default: MAX]")
@click.option("--ps-num", type=click.IntRange(0), default=0, metavar="N", help="Parameter servers.  [default: none]")
@click.option(
    "--mode",
    type=click.Choice([str(each) for each in Mode]),
    default=str(Mode.AUTO),
    show_default=True,
    help="As of `pliant run`. With tasks, workers take shards of a queue, and parameter servers are Pliant's own.",
)
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N", help="Workers in each pod."
)
@click.option("--claim", metavar="NAME", help="Claim for checkpoints.")
@click.option("--limit", "limits", multiple=True, callback=parse_pairs, metavar="RESOURCE=AMOUNT", help="Of each pod.")
@click.option("--env", "environment", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="For workers.")
@click.option("--wait", is_flag=True, help="Wait until the job has ended. The exit status is 0 if it finished.")
@click.option("--follow", is_flag=True, help="As --wait, and print each change of its status.")
@json_option
@cluster_options
@connection_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def submit(
    image: str,
    task: str,
    workers: tuple[int, int],
    target: int | None,
    ps_num: int,
    mode: str,
    processes: int,
    claim: str | None,
    limits: tuple[tuple[str, str], ...],
    environment: tuple[tuple[str, str], ...],
    wait: bool,
    follow: bool,
    as_json: bool,
    namespace: str | None,
    kubeconfig: Path | None,
    flags: Flags,
    command: tuple[str, ...],
) -> int:
    """Submit a job to a Kubernetes cluster.

    COMMAND runs in each pod, after `--`; without it, `pliant run --env tf`, which runs the image's exec.py. Submitting
    the same job twice has no effect.

    The job is created with the rights of your kubeconfig. With --coordinator it is sent to the coordinator instead,
    with a token of scope submit.
    """
    wanted = Submission(
        task,
        image,
        *workers,
        command,
        target,
        ps_num,
        processes,
        claim,
        limits=limits,
        environment=environment,
        mode=Mode(mode),
    )
    if uses_coordinator(flags, namespace, kubeconfig):
        return submit_remotely(flags, wanted, waits=wait or follow, shows=follow, as_json=as_json)
    return _submit(wanted, namespace or NAMESPACE, kubeconfig, waits=wait or follow, shows=follow, as_json=as_json)


def _submit(
    wanted: Submission, namespace: str, kubeconfig: Path | None, *, waits: bool, shows: bool, as_json: bool
) -> int:
    """Create the ElasticJob of a submission."""
    from pliant.kube.submission import describe_job, same_submission, submitted_job

    task = wanted.task
    manifest = submitted_job(wanted, namespace)
    api = connect(kubeconfig)
    if not api.create(manifest):
        found = api.get("ElasticJob", namespace, task)
        if found is None or not same_submission(found, manifest):
            raise Refused(f"There is another job {task} in namespace {namespace}. Choose another name with --task.")
    if waits:
        return _wait(api, namespace, task, shows=shows and not as_json, as_json=as_json)
    item = _require(api, namespace, task)
    if as_json:
        print_json({"job": item["metadata"]["name"], "namespace": namespace, "status": item.get("status", {})})
    else:
        click.echo(clean(describe_job(item)))
    return 0


def _require(api: KubeApi, namespace: str, task: str) -> dict[str, Any]:
    item = api.get("ElasticJob", namespace, task)
    if item is None:
        raise Refused(
            f"There is no ElasticJob {task} in namespace {namespace}. `kubectl get elasticjobs -A` lists all; pass its "
            "namespace with --namespace."
        )
    return item


def _wait(api: KubeApi, namespace: str, task: str, *, shows: bool, as_json: bool) -> int:
    """Wait for the end of a job. An API server that does not answer is asked again."""
    from pliant.kube.api import ApiUnreachable
    from pliant.kube.submission import describe_job

    last = ""
    while True:
        try:
            item = _require(api, namespace, task)
        except ApiUnreachable as error:
            click.echo(f"pliant: {clean(error.why)} Trying again.", err=True)
            time.sleep(POLL_S)
            continue
        line, state = describe_job(item), item.get("status", {}).get("state", "")
        if shows and line != last:
            click.echo(clean(line))
        last = line
        if state in ENDED:
            if as_json:
                print_json({"job": task, "namespace": namespace, "status": item["status"]})
            elif not shows:
                click.echo(clean(line))
            return ENDED[state]
        time.sleep(POLL_S)


@click.command()
@click.argument("task")
@json_option
@cluster_options
@connection_options
def status(task: str, as_json: bool, namespace: str | None, kubeconfig: Path | None, flags: Flags) -> None:
    """Show a job of the cluster. With --coordinator, one that was submitted there."""
    if uses_coordinator(flags, namespace, kubeconfig):
        show_remotely(flags, task, as_json=as_json)
        return
    from pliant.kube.submission import describe_job

    namespace = namespace or NAMESPACE
    item = _require(connect(kubeconfig), namespace, task)
    if as_json:
        print_json({"job": task, "namespace": namespace, "status": item.get("status", {})})
        return
    click.echo(clean(describe_job(item)))
    for each in item.get("status", {}).get("conditions", ()):
        click.echo(clean(f"  {each['type']} {each['status']} ({each['reason']}): {each['message']}"))


@click.command()
@click.argument("task")
@json_option
@cluster_options
@connection_options
def stop(task: str, as_json: bool, namespace: str | None, kubeconfig: Path | None, flags: Flags) -> None:
    """Stop a job of the cluster and delete it. Its workers save and leave; checkpoints stay.

    With --coordinator, a job that was submitted there with the same token.
    """
    if uses_coordinator(flags, namespace, kubeconfig):
        stop_remotely(flags, task, as_json=as_json)
        return
    namespace = namespace or NAMESPACE
    api = connect(kubeconfig)
    item = _require(api, namespace, task)
    api.delete("ElasticJob", namespace, task, item["metadata"]["uid"])
    if as_json:
        print_json({"job": task, "namespace": namespace, "stopping": True})
        return
    click.echo(f"Stopping {task}.")


@click.command()
@click.argument("task")
@click.option("--lines", type=click.IntRange(1), default=LOG_LINES, show_default=True, help="Last lines of each pod.")
@json_option
@cluster_options
def logs(task: str, lines: int, as_json: bool, namespace: str | None, kubeconfig: Path | None) -> None:
    """Show the output of the pods of a job."""
    namespace = namespace or NAMESPACE
    api = connect(kubeconfig)
    _require(api, namespace, task)
    pods = api.job_pods(namespace, task)
    if not pods:
        raise BadInput(f"Job {task} has no pods now.")
    for name in pods:
        try:
            text = api.logs(namespace, name, lines)
        except PliantError as error:
            click.echo(f"pliant: {name}: {clean(error.why)}", err=True)
            continue
        for line in text.splitlines():
            if as_json:
                print_json({"pod": name, "line": line})
            else:
                click.echo(f"[{name}] {clean(line)}")
