"""The Helm chart and the examples against the manifests that `pliant kube install --print` prints."""

from typing import Any

import yaml

from pliant import __version__
from pliant.kube.manifests.crd import custom_resource_definition
from pliant.kube.manifests.install import Installation, manifests, rules, submission_rules
from tidy.files import ROOT

CHART = ROOT / "deploy" / "chart"


def read(name: str) -> Any:
    return yaml.safe_load((CHART / name).read_text(encoding="utf-8"))


def test_the_chart_has_the_definition_of_today() -> None:
    assert read("crds/elasticjobs.yaml") == custom_resource_definition(), "run: pliant kube crd > deploy/chart/crds/..."


def test_the_chart_gives_the_operator_the_same_rights() -> None:
    assert read("files/rules.yaml") == rules()
    assert read("files/submission-rules.yaml") == submission_rules()


def test_the_chart_starts_the_same_commands_under_the_same_restrictions() -> None:
    text = (CHART / "templates" / "coordinator.yaml").read_text(encoding="utf-8")
    text = text.replace("{{ .Release.Namespace }}", "pliant-system").replace('{{ include "pliant.scheme" . }}', "https")
    text = text.replace('{{ include "pliant.urls" . }}', "https://pliant.pliant-system.svc:7711")
    [deployment] = [each for each in manifests(Installation("pliant:1")) if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    for container in pod["containers"]:
        words = container["args"]
        for name, value in zip(words, [*words[1:], ""], strict=True):
            if name.startswith("--"):
                whole = name if value.startswith("--") or not value else f"{name}={value}"
                assert f"- {whole}\n" in text, f"{container['name']}: {whole}"
    shared = (CHART / "templates" / "_names.tpl").read_text(encoding="utf-8")
    assert f"runAsUser: {pod['securityContext']['runAsUser']}" in text
    assert "readOnlyRootFilesystem: true" in shared
    assert "capabilities: {drop: [ALL]}" in shared


def test_the_chart_and_the_examples_name_the_version_of_today() -> None:
    assert read("Chart.yaml")["appVersion"] == __version__
    assert read("values.yaml")["image"] == f"pliant:{__version__}"
    for example in (ROOT / "examples" / "kubernetes").glob("*.yaml"):
        assert f"pliant-trainer:{__version__}" in example.read_text(encoding="utf-8")
    for name in ("Containerfile", "trainer.Containerfile"):
        assert f":{__version__} -f" in (ROOT / "deploy" / "images" / name).read_text(encoding="utf-8")
