"""One real cluster for all tests of this folder, with Pliant installed as its users install it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.__main__ import FOLDER
from kube.acceptance.installed import Installed, undisturbed
from kube.cluster import lab
from kube.cluster.cluster import KubeCluster, kube_cluster


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once: the other tests take half an hour."""
    if report.failed:
        print(f"\n{report.longreprtext}", flush=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubeCluster]:
    """Three real nodes; `make kube` starts the lab that they need."""
    if not lab.is_inside():
        pytest.skip("these tests need a lab of their own: run `make kube`")
    # The API server sends requests for an added API to the addresses of its Service, not to the Service's own.
    with kube_cluster(Path(os.environ[FOLDER]), server_options=("--enable-aggregator-routing",)) as started:
        print(f"  the cluster started in {started.start_s:.1f} s", flush=True)
        yield started


@pytest.fixture(scope="session")
def installed(cluster: KubeCluster) -> Installed:
    """Pliant in the namespace `pliant-system`."""
    folder = Path(os.environ[FOLDER]) / "installed"
    folder.mkdir()
    found = Installed(cluster, folder)
    found.install()
    return found


@pytest.fixture(scope="session")
def expected() -> str:
    """The hash of the weights of a training that nothing happens to."""
    return undisturbed()
