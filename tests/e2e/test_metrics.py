"""`pliant run --metrics-port`, scraped as Prometheus would with the configuration of the docs."""

import re
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from e2e.launched import TRAINER, Launched
from tidy.files import ROOT
from unit.cli.program import environment, free_port, real

CONFIG = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/operating/metrics.md").read_text(encoding="utf-8"), re.DOTALL)


def configured(key: str) -> str:
    """A value of the configuration on the page."""
    assert CONFIG is not None
    found = re.search(rf"\b{key}: (\S+)", CONFIG[1])
    assert found is not None, key
    return found[1].strip('[]"')


def test_prometheus_scrapes_a_job_with_the_configuration_of_the_docs(tmp_path: Path) -> None:
    port = free_port()
    with Launched(tmp_path, "--workers", "1:2", "--metrics-port", str(port), str(TRAINER), "go") as run:
        run.has_members(2)
        run.sees(f"metrics: http://127.0.0.1:{port}/metrics, with the token in {run.folder / 'metrics-token'}")
        url = f"http://{configured('targets').replace('9711', str(port))}/metrics"
        token_file = tmp_path / configured("credentials_file").partition("/pliant/")[2].replace("digits", run.job)
        token = token_file.read_text().strip()
        assert configured("honor_labels") == "true"
        assert httpx2.get(url, trust_env=False).status_code == 401
        page = httpx2.get(url, headers={"authorization": f"{configured('type')} {token}"}, trust_env=False)
        found = {
            each.name: each.value
            for family in text_string_to_metric_families(page.text)
            for each in family.samples
            if each.labels.get("job") == "demo"
        }
        assert (found["pliant_job_target"], found["pliant_job_step"]) == (2, 0)
        assert found["pliant_job_failures_total"] == 0
        assert len(page.text.splitlines()) < 400  # and not an empty histogram for each route
        changed = httpx2.post(
            url.replace("/metrics", "/v1/jobs/demo/cancel"), headers={"authorization": f"Bearer {token}"}, json={}
        )
        assert changed.status_code == 403
        (run.folder / "checkpoints" / "go").touch()
        assert run.ended() == 0
    assert (
        "--metrics-port cannot be combined"
        in real(
            environment(tmp_path), "run", "--metrics-port", "9711", "--rdzv-endpoint", "127.0.0.1:29400", str(TRAINER)
        ).err
    )
