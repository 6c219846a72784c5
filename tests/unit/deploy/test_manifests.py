"""The Kubernetes manifests: against Kubernetes' own schemas, and against what the served models really offer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[3]
BASE = ROOT / "deploy" / "kubernetes" / "base"
VERSIONS = ("1.29", "1.33")
"""Oldest and newest release that the manifests are meant for."""


def manifests() -> dict[str, dict[str, Any]]:
    """Every manifest by its kind."""
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    documents = [yaml.safe_load((BASE / name).read_text()) for name in names]
    return {document["kind"]: document for document in documents}


def container() -> dict[str, Any]:
    """The server's container."""
    (found,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget"])
def test_a_manifest_is_what_kubernetes_understands(kind: str, version: str) -> None:
    kubernetes_validate.validate(manifests()[kind], version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    service = manifests()["Service"]
    service["spec"]["prots"] = service["spec"].pop("ports")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, VERSIONS[0], strict=True)


def test_every_file_is_listed() -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in BASE.glob("*.yaml")} == {*listed, "kustomization.yaml"}


def test_the_service_and_the_budget_select_the_pods() -> None:
    found = manifests()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["Deployment"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()


def test_the_service_leads_to_ports_of_the_container() -> None:
    named = {port["name"]: port["containerPort"] for port in container()["ports"]}
    ports = manifests()["Service"]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in ports} == named
    annotations = manifests()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == named["metrics"]


def test_every_mount_has_its_volume() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    assert {mount["name"] for mount in container()["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    claims = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert [claim["claimName"] for claim in claims] == [manifests()["PersistentVolumeClaim"]["metadata"]["name"]]


def test_a_pod_has_time_to_stop_in_order() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (exit_timeout,) = [int(text.partition("=")[2]) for text in container()["args"] if "--exit-timeout-secs" in text]
    sleep = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert exit_timeout + sleep < pod["terminationGracePeriodSeconds"]


def test_the_image_is_the_users_to_name() -> None:
    example = yaml.safe_load((ROOT / "deploy/kubernetes/example/kustomization.yaml").read_text())
    assert [image["name"] for image in example["images"]] == [container()["image"]]
    assert (ROOT / "deploy/kubernetes/example" / example["resources"][0]).resolve() == BASE
    assert "/" not in container()["image"]
    dockerfile = (ROOT / "deploy/container/Dockerfile").read_text().splitlines()
    assert [line for line in dockerfile if line.startswith(("FROM", "ARG"))] == [
        "ARG TRITON_IMAGE",
        "FROM ${TRITON_IMAGE}",
    ]
