"""torchelastic's etcd: what its URL and torchrun's options mean."""

import click
import pytest

from pliant.cli.connect import Flags
from pliant.cli.run.etcd import EtcdUrl, parse_etcd_url, store_of
from pliant.cli.run.option_types import EndpointAddress, parse_endpoint
from pliant.cli.run.plan import PlannedRun, RunOptions, build_plan
from unit.cli.run.test_plan import around


def planned(**options: object) -> PlannedRun:
    script = __file__
    return build_plan(RunOptions(script=script, **options), around(), Flags())  # type: ignore[arg-type]  # by name


URL = "etcd://127.0.0.1:2380/imagenet?min_workers=1&max_workers=4&timeout=600&last_call_timeout=30"


def test_a_url_gives_the_cluster_the_job_and_the_sizes() -> None:
    assert parse_etcd_url(URL) == EtcdUrl("127.0.0.1:2380", "imagenet", (1, 4), "", 600, ("last_call_timeout",))
    assert parse_endpoint(f" {URL} ") == parse_etcd_url(URL)
    assert parse_etcd_url("etcd://a:1,[::1]:2/x") == EtcdUrl("a:1,[::1]:2", "x")
    assert parse_etcd_url("etcd://h/x?min_workers=3").machines == (3, 3)
    assert parse_etcd_url("etcd://h/x?etcd_prefix=/torchelastic/p2p").prefix == "torchelastic/p2p"


@pytest.mark.parametrize(
    "text", ["etcd://", "etcd:///x", "etcd://h/x?a", "etcd://h/x#y", "etcd://h x/y", "etcd://[::1/x"]
)
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a URL such as etcd://"):
        parse_etcd_url(text)


def test_every_agent_hosts_a_coordinator_on_the_job_s_part_of_etcd() -> None:
    found = planned(rdzv_endpoint=parse_etcd_url(URL), nproc_per_node="2")
    plan = found.plan
    assert found.elsewhere is None
    assert (plan.job, plan.store, plan.listen) == ("imagenet", "etcd:127.0.0.1:2380/pliant/imagenet", ("127.0.0.1", 0))
    assert (plan.spec.size_min, plan.spec.size_max, plan.capacity) == (2, 8, 2)
    assert plan.spec.wait_limit_s == 600
    assert "ignored, for torchrun only: --rdzv-conf last_call_timeout" in found.notes


def test_torchrun_s_options_mean_the_same() -> None:
    for endpoint in (EndpointAddress("127.0.0.1", 2379), parse_endpoint("127.0.0.1")):
        plan = planned(rdzv_kind="etcd", rdzv_endpoint=endpoint, rdzv_id="imagenet", nnodes=(1, 4)).plan
        assert (plan.job, plan.store) == ("imagenet", "etcd:127.0.0.1:2379/pliant/imagenet")
        assert (plan.spec.size_min, plan.spec.size_max) == (1, 4)


def test_options_go_before_the_url() -> None:
    plan = planned(rdzv_endpoint=parse_etcd_url(URL), rdzv_id="other", nnodes=(2, 2)).plan
    assert (plan.job, plan.spec.size_min, plan.spec.size_max) == ("other", 2, 2)
    assert store_of(EtcdUrl("h", prefix="mine"), "other") == "etcd:h/mine/other"
