"""`pliant kube`: run the operator, and print the manifests of an installation."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from pliant.cli.connect import Flags, connection_options
from pliant.cli.kube.submit import logs, status, stop
from pliant.cli.output import print_json
from pliant.errors import BadInput


@click.group()
def kube() -> None:
    """Run elastic jobs on Kubernetes."""


for each in (status, stop, logs):
    kube.add_command(each)


@kube.command()
@click.option(
    "--pods-coordinator",
    metavar="URL,...",
    help="URLs of the coordinators for pods.  [default: that of --coordinator]",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Cluster and credentials.  [default: the pod's own, KUBECONFIG, or the file of kubectl]",
)
@click.option("--submissions", metavar="NAMESPACE", help="Create the jobs that clients submit, in this namespace.")
@click.option("--log-json", is_flag=True, help="Log JSON lines instead of text.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object when the operator starts.")
@connection_options
def operator(
    pods_coordinator: str | None,
    kubeconfig: Path | None,
    submissions: str | None,
    log_json: bool,
    as_json: bool,
    flags: Flags,
) -> None:
    """Run the operator until it is stopped.

    It needs an admin token of the coordinator, and acts only while that coordinator leads. Jobs go on without it.
    """
    from pliant.client import Client
    from pliant.credentials import read_token
    from pliant.telemetry import configure_logging

    require_extra()
    from pliant.kube.api import KubeApi
    from pliant.kube.operator import make_operator, wait_for_token

    configure_logging(sys.stderr, as_json=log_json)
    address = flags.resolve()
    api = KubeApi.connect(None if kubeconfig is None else str(kubeconfig))
    wait_for_token(address.token_file)
    token = read_token(address.token_file)
    url = pods_coordinator or address.urls[0]
    # Its own coordinator alone, so that an operator beside a standby does nothing.
    with Client(address.urls, token, patience_s=2.0, tls=address.tls, follow_leader=False) as client:
        made = make_operator(api, client, url, address.tls.ca_file, submissions)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: made.stop())
        if as_json:
            print_json({"coordinator": address.urls[0], "pods_coordinator": url, "pid": os.getpid()})
        try:
            made.run()
        finally:
            api.close()


@kube.command()
@click.option("--print", "prints", is_flag=True, required=True, help="Print the manifests, for `kubectl apply -f -`.")
@click.option("--image", required=True, metavar="IMAGE", help="Image of the coordinator and the operator.")
@click.option("--namespace", default="pliant-system", show_default=True, metavar="NAME", help="Namespace of both.")
@click.option("--store", metavar="etcd:HOST:PORT,...", help="Store of the coordinator.  [default: SQLite on a volume]")
@click.option(
    "--coordinators",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="Number of coordinators, each with an operator; several need etcd.",
)
@click.option(
    "--etcd-secret", metavar="NAME", help="Secret with ca.crt for TLS to etcd, and with password for --etcd-user."
)
@click.option("--etcd-user", metavar="NAME", help="User of etcd.")
@click.option("--storage", default="1Gi", show_default=True, metavar="SIZE", help="Size of the volume.")
@click.option("--storage-class", metavar="NAME", help="Class of the volume.  [default: that of the cluster]")
@click.option(
    "--tls-secret",
    default="pliant-tls",
    show_default=True,
    metavar="NAME",
    help="Secret with tls.crt, tls.key and ca.crt.",
)
@click.option("--insecure", is_flag=True, help="Serve without TLS. Tokens cross the cluster's network in clear.")
@click.option(
    "--accept-submissions",
    "images",
    multiple=True,
    metavar="IMAGE",
    help="Let clients submit jobs with this image; * stands for any characters. Repeatable.",
)
@click.option(
    "--submissions-namespace", default="default", show_default=True, metavar="NAME", help="Namespace of those jobs."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list object instead of YAML.")
def install(
    prints: bool,  # noqa: ARG001  # required, because nothing else can be done here
    image: str,
    namespace: str,
    store: str | None,
    coordinators: int,
    etcd_secret: str | None,
    etcd_user: str | None,
    storage: str,
    storage_class: str | None,
    tls_secret: str,
    insecure: bool,
    images: tuple[str, ...],
    submissions_namespace: str,
    as_json: bool,
) -> None:
    """Print the manifests of an installation: definition, namespace, rights, Service and Deployment."""
    from pliant.kube.manifests.install import Installation, manifests

    if store is not None and not store.startswith("etcd:"):
        raise BadInput(f"--store must be etcd:HOST:PORT,..., not {store!r}. Without it, a volume has a SQLite store.")
    if coordinators > 1 and store is None:
        raise BadInput(
            f"--coordinators {coordinators} needs --store etcd:HOST:PORT,...: a SQLite store serves one coordinator."
        )
    if store is None and (etcd_secret or etcd_user):
        raise BadInput("--etcd-secret and --etcd-user are for --store etcd:HOST:PORT,...; there is no --store.")
    if etcd_user is not None and etcd_secret is None:
        raise BadInput(f"--etcd-user {etcd_user} needs --etcd-secret, a Secret with ca.crt and password.")
    wanted = Installation(
        image,
        namespace,
        store,
        storage,
        storage_class,
        None if insecure else tls_secret,
        coordinators,
        images,
        submissions_namespace,
        etcd_secret,
        etcd_user,
    )
    found = manifests(wanted)
    click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=2) if as_json else _yaml(found))


@kube.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def crd(as_json: bool) -> None:
    """Print the definition of ElasticJob alone."""
    from pliant.kube.manifests.crd import custom_resource_definition

    found = custom_resource_definition()
    click.echo(json.dumps(found, indent=2) if as_json else _yaml([found]))


def _yaml(documents: list[dict[str, Any]]) -> str:
    require_extra()
    import yaml

    texts = [yaml.safe_dump(each, sort_keys=False, width=120) for each in documents]
    return "---\n".join(texts).rstrip("\n")


def require_extra() -> None:
    """Raise BadInput if the packages of the extra are missing."""
    from importlib.util import find_spec

    if find_spec("lightkube") is None:
        raise BadInput("This command needs the extra `kube`. Install it: pip install 'pliant[kube]'.")
