"""Preflight of KubeRay: its CRDs, its operator, and network access of the operator."""

import pytest

from peagle.cluster.preflight.outcome import Outcome
from peagle.cluster.preflight.release_checks import RAYSERVICE_FIELDS, TOKEN_FIELD
from support.kubernetes.kubernetes_api import KubernetesApi
from support.kubernetes.preflight_cluster import checks, crd, only, operator, values


async def test_without_kuberay_the_fix_installs_it(server: KubernetesApi) -> None:
    await server.remove("customresourcedefinitions", "rayservices.ray.io")
    await server.remove("deployments", "op", "kuberay")
    failed = [check for check in await checks(server) if check.outcome is Outcome.FAIL]
    assert [check.subject for check in failed] == ["rayservices.ray.io", "KubeRay operator"]
    assert all("helm install kuberay-operator" in check.fix for check in failed)
    await server.remove("customresourcedefinitions", "rayclusters.ray.io")
    with_operator = await checks(server, values(**{"kuberay-operator": {"enabled": True}}))
    assert all(check.outcome is Outcome.PASS for check in with_operator)


async def test_a_second_operator_is_refused(server: KubernetesApi) -> None:
    with_operator = values(**{"kuberay-operator": {"enabled": True}})
    found = await only(server, with_operator)
    assert found.fix == "Set kuberay-operator.enabled: false."
    # An upgrade finds the operator that the release itself installed.
    await server.remove("deployments", "op", "kuberay")
    await server.put("deployments", operator("serving", "r"))
    assert all(check.outcome is Outcome.PASS for check in await checks(server, with_operator))
    await server.put("deployments", operator("serving", "another"))
    assert (await only(server, with_operator)).fix == "Set kuberay-operator.enabled: false."


async def test_an_operator_that_the_network_policy_keeps_out_is_refused(server: KubernetesApi) -> None:
    found = await only(server, values(networkPolicy={"enabled": True}))
    assert found.fix == "Set networkPolicy.operatorNamespace: kuberay."
    for policy in ({"enabled": True, "operatorNamespace": "kuberay"}, {"enabled": False}):
        assert all(check.outcome is Outcome.PASS for check in await checks(server, values(networkPolicy=policy)))
    await server.remove("deployments", "op", "kuberay")
    policy = {"enabled": True, "operatorNamespace": "kuberay"}
    found = await only(server, values(networkPolicy=policy, **{"kuberay-operator": {"enabled": True}}))
    assert "admits it only from kuberay" in found.detail


async def test_a_kuberay_that_would_drop_fields_is_refused(server: KubernetesApi) -> None:
    await server.put("customresourcedefinitions", crd("rayservices.ray.io", fields=("upgradeStrategy",)))
    assert "rayClusterConfig.gcsFaultToleranceOptions" in (await only(server)).detail


async def test_ray_s_token_needs_kuberay_1_6(server: KubernetesApi) -> None:
    """CRDs and operator are upgraded separately, and either may be older."""
    token, none = ({"ray": {"auth": {"mode": mode}}} for mode in ("token", "disabled"))
    await server.put("customresourcedefinitions", crd("rayservices.ray.io", fields=RAYSERVICE_FIELDS))
    found = await only(server, values(**token))
    assert (found.outcome, TOKEN_FIELD in found.detail, "1.6" in found.detail) == (Outcome.FAIL, True, True)
    assert found.fix.endswith("or set ray.auth.mode: disabled.")
    assert all(check.outcome is Outcome.PASS for check in await checks(server, values(**none)))


@pytest.mark.parametrize(
    ("image", "is_old"),
    [
        ("quay.io/kuberay/operator:v1.5.1", True),
        ("registry:5000/kuberay/operator:1.5.0", True),
        (f"quay.io/kuberay/operator:v1.5.1@sha256:{'0' * 64}", True),
        ("quay.io/kuberay/operator:v1.6.0", False),
        ("quay.io/kuberay/operator:v1.10.0", False),
        ("quay.io/kuberay/operator:nightly", False),
        (f"registry:5000/kuberay/operator@sha256:{'1' * 64}", False),
        ("quay.io/kuberay/operator", False),
        ("1.2.3.4:5000/operator", False),
    ],
)
async def test_an_operator_too_old_for_ray_s_token_is_refused(server: KubernetesApi, image: str, is_old: bool) -> None:
    await server.put("deployments", operator("kuberay", "kuberay", image))
    token, none = ({"ray": {"auth": {"mode": mode}}} for mode in ("token", "disabled"))
    assert all(check.outcome is Outcome.PASS for check in await checks(server, values(**none)))
    found = [check for check in await checks(server, values(**token)) if check.outcome is not Outcome.PASS]
    assert bool(found) is is_old
    for check in found:
        assert (check.subject, check.outcome) == ("KubeRay operator", Outcome.FAIL)
        assert check.detail == f"{image} is running, but ray.auth.mode token needs 1.6 or newer"


async def test_of_two_operators_the_one_that_is_let_in_is_asked(server: KubernetesApi) -> None:
    old = operator("elsewhere", "old", "kuberay/operator:v1.5.1")
    await server.put("deployments", {**old, "metadata": {**old["metadata"], "name": "old"}})
    token = {"ray": {"auth": {"mode": "token"}}}
    policy = {"enabled": True, "operatorNamespace": "kuberay"}
    assert all(check.outcome is Outcome.PASS for check in await checks(server, values(networkPolicy=policy, **token)))
    policy = {"enabled": True, "operatorNamespace": "elsewhere"}
    assert "v1.5.1 is running" in (await only(server, values(networkPolicy=policy, **token))).detail
