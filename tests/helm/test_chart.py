"""The chart as a whole: Kubernetes accepts every object, and the platform reads its settings."""

import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, lint

import peagle
from peagle.api.api_settings import read_settings
from peagle.serve.launch.ray_cluster import ENVIRONMENT, TRANSPORT
from peagle.serve.launch.serving_arguments import read_deployments
from support.kubernetes.chart_schemas import CUSTOM, KUBERNETES, WITHOUT_SCHEMA, validator_of
from support.kubernetes.rendered_chart import (
    CHART,
    FULLNAME,
    MINIMAL,
    NAMESPACE,
    READY,
    RELEASE,
    REPOSITORY,
    Rendered,
    at,
    laid_over,
    ready_values,
    render,
    schema,
)

RECIPES = REPOSITORY / "deployments"
IN_IMAGE = "/srv/peagle/deployments/"

# Everything that is off by default, on.
EVERYTHING: Mapping[str, Any] = {
    "ingress": {"enabled": True, "tlsSecret": "tls"},
    "autoscaling": {"enabled": True},
    "modelCache": {"type": "pvc"},
    "huggingFace": {"existingSecret": "hugging-face"},
    "apiKeys": {"existingSecret": "keys"},
    "monitoring": {name: {"enabled": True} for name in ("podMonitors", "alerts", "dashboards")},
    "workerGroups": {"b200": {"minReplicas": 2, "maxReplicas": 4}},
}
# A switch at a time: what it changes from MINIMAL.
SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "everything": EVERYTHING,
    "route": {"gatewayRoute": {"enabled": True, "gateway": {"name": "g"}}},
    "no store": at("gcs.store", "none"),
    "bundled store with password": at("gcs.bundled.existingSecret", "s"),
    "external store": {"gcs": {"store": "external", "external": {"address": "r:1", "existingSecret": "s"}}},
    "ephemeral cache": at("modelCache.type", "ephemeral"),
    "node cache": {"modelCache": {"type": "hostPath", "hostPath": "/models"}},
    "parts of CPUs": {
        "head": {"resources": {"requests": {"cpu": 0.5, "memory": 1 << 31}, "limits": {"cpu": 1.5}}},
        "autoscaling": {"enabled": True, "resources": {"limits": {"cpu": 0.5}}},
        "drain": {"watcher": {"resources": {"limits": {"cpu": 0.5}}}},
        "gcs": {"bundled": {"resources": {"limits": {"cpu": 0.5}}}},
        "workerGroupDefaults": {"cpus": 2.5, "cpuRequest": 0.5},
    },
    "RDMA": at("workerGroupDefaults.rdmaDevices", 8),
    "no network policy": at("networkPolicy.enabled", False),
    "no drain watcher": at("drain.watcher.enabled", False),
    "no accounts": at("serviceAccount.create", False),
    "no Ray token": at("ray.auth.mode", "disabled"),
    "closed network": {"networkPolicy": {"clients": [{"podSelector": {}}], "download": [], "monitoring": []}},
}
CASES = {**{name: ready_values(name) for name in READY}, **{k: laid_over(MINIMAL, v) for k, v in SWITCHES.items()}}


@cache
def case(name: str) -> Rendered:
    return render(CASES[name])


@pytest.fixture(params=CASES)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return case(request.param)


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_core_object_is_one_that_kubernetes_takes(rendered: Rendered, version: str) -> None:
    core = [found for found in rendered.objects if found["kind"] not in CUSTOM | WITHOUT_SCHEMA]
    assert core
    for found in core:
        kubernetes_validate.validate(found, version, strict=True)


def test_every_pod_inside_a_custom_object_is_one_that_kubernetes_takes(rendered: Rendered) -> None:
    for name, template in rendered.pods():
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name.replace(" ", "-")},
            "spec": template["spec"],
        }
        kubernetes_validate.validate(pod, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize("kind", sorted(CUSTOM))
def test_every_custom_object_fits_its_definition(kind: str) -> None:
    found = [(found["apiVersion"], found) for name in CASES for found in case(name).all(kind)]
    assert found
    validator = validator_of(found[0][0], kind)
    for _, each in found:
        validator.validate(each)


def test_the_schemas_at_hand_refuse_what_an_api_server_would_drop() -> None:
    """The check above can fail: a field that KubeRay does not know, inside the pods of a group too."""
    service = render(MINIMAL).one("RayService")
    validator = validator_of("ray.io/v1", "RayService")
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelectors"] = {}
    with pytest.raises(jsonschema.ValidationError, match="nodeSelectors"):
        validator.validate(service)


def test_lint_finds_nothing(tmp_path: Path) -> None:
    for name, values in CASES.items():
        report = lint(with_operator(tmp_path / name.replace(" ", "-")), values, strict=True, kube_version="v1.34.0")
        told = [message for message in report["messages"] if message["severity"] > 1]
        assert not told, name


def with_operator(folder: Path) -> Path:
    """A copy of the chart with something in the operator's place, since nothing is downloaded here."""
    copied = Path(shutil.copytree(CHART, folder / "peagle", dirs_exist_ok=True))
    operator = copied / "charts" / "kuberay-operator"
    if operator.exists():
        shutil.rmtree(operator)
    (operator / "templates").mkdir(parents=True)
    (dependency,) = yaml.safe_load((copied / "Chart.yaml").read_text(encoding="utf-8"))["dependencies"]
    metadata = {"apiVersion": "v2", "name": "kuberay-operator", "version": dependency["version"]}
    (operator / "Chart.yaml").write_text(yaml.safe_dump(metadata), encoding="utf-8")
    account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: kuberay-operator}\n"
    (operator / "templates" / "account.yaml").write_text(account, encoding="utf-8")
    return copied


@pytest.mark.parametrize("enabled", [True, False])
def test_the_operator_comes_with_the_release_only_if_asked_for(tmp_path: Path, enabled: bool) -> None:
    values = laid_over(MINIMAL, at("kuberay-operator.enabled", enabled))
    with Chart.load(with_operator(tmp_path)) as chart:
        texts = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    assert any("kuberay-operator/templates" in path for path in texts) is enabled


def test_an_operator_that_was_fetched_is_part_of_the_chart(tmp_path: Path) -> None:
    """As `helm dependency update` leaves it: packed, in charts/."""
    copied = with_operator(tmp_path)
    with tarfile.open(copied / "charts" / "kuberay-operator-1.7.0.tgz", "w:gz") as packed:
        packed.add(copied / "charts" / "kuberay-operator", "kuberay-operator")
    shutil.rmtree(copied / "charts" / "kuberay-operator")
    with Chart.load(copied) as chart:
        assert any("kuberay-operator/templates" in path for path in chart.render({}, name=RELEASE, namespace=NAMESPACE))


def test_the_lock_holds_the_dependency_as_it_is_asked_for() -> None:
    """Helm's own digest: of the dependencies and of what they were resolved to, as Go writes JSON."""
    asked = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["dependencies"]
    locked = yaml.safe_load((CHART / "Chart.lock").read_text(encoding="utf-8"))
    order = ("name", "version", "repository", "condition")
    both = [
        [{key: each[key] for key in order if key in each} for each in part] for part in (asked, locked["dependencies"])
    ]
    digest = hashlib.sha256(json.dumps(both, separators=(",", ":")).encode()).hexdigest()
    assert locked["digest"] == f"sha256:{digest}"


def test_without_any_values_the_embedded_model_is_served() -> None:
    defaults, ready = render({}), render(ready_values("embedded-cpu"))
    # The first has a token of its own, the other no need to say what is served.
    differ = {Path(path).name for path, text in defaults.texts.items() if ready.texts[path] != text}
    assert differ <= {"ray-auth.yaml", "NOTES.txt"}
    assert defaults.container["image"].endswith("-cpu")
    assert "It is the embedded model" in defaults.notes
    assert "It is the embedded model" not in render(MINIMAL).notes
    assert render(MINIMAL).container["image"].endswith("-gpu")


@pytest.mark.parametrize(("workers", "is_left_out"), [(1, False), (2, True)])
def test_the_head_passes_requests_on_where_there_is_one_worker(workers: int, is_left_out: bool) -> None:
    values = laid_over(MINIMAL, at("workerGroups.b200", {"minReplicas": workers, "maxReplicas": workers}))
    assert render(values).service["excludeHeadPodFromServeSvc"] is is_left_out


def test_an_uninstall_begins_with_a_job_that_is_gone_with_it() -> None:
    rendered = render(MINIMAL)
    (job,) = rendered.all("Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert importlib.util.find_spec(container["command"][2]) is not None
    role = rendered.one("Role", f"{FULLNAME}-uninstall")
    before = [each for each in rendered.objects if each["metadata"]["name"] == role["metadata"]["name"]]
    assert {each["kind"] for each in before if each["kind"] != "NetworkPolicy"} == {
        "ServiceAccount", "Role", "RoleBinding", "Job"
    }  # fmt: skip
    for each in before:
        hook = each["metadata"].get("annotations", {}).get("helm.sh/hook")
        assert hook == (None if each["kind"] == "NetworkPolicy" else "pre-delete"), each["kind"]


def test_where_the_operator_stays_nothing_has_to_come_before_an_uninstall() -> None:
    rendered = render(laid_over(MINIMAL, {"kuberay-operator": {"enabled": False}}))
    assert not rendered.all("Job")
    assert not [each for each in rendered.objects if each["metadata"]["name"].endswith("-uninstall")]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_schema", REPOSITORY / "helm" / "schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_derived_is_current() -> None:
    stale = [path.name for path, text in script().generated().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run make helm-schema"


def undescribed(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the path of every value below `node` that no comment of values.yaml describes."""
    for name, child in node.get("properties", {}).items():
        yield from undescribed(child, f"{path}.{name}".lstrip("."))
    if "properties" not in node and "description" not in node:
        yield path


def test_every_value_is_described() -> None:
    # Helm itself hands `global` to every chart.
    assert list(undescribed(schema(), "")) == ["global"]


def test_chart_image_and_package_have_one_version() -> None:
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert metadata["version"] == metadata["appVersion"] == peagle.__version__
    assert metadata["annotations"]["peagle/rayVersion"] == importlib.metadata.version("ray")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"ray[serve]=={metadata['annotations']['peagle/rayVersion']}" in project["dependencies"]


@pytest.mark.parametrize("name", READY)
def test_a_ready_file_serves_a_recipe_as_it_is(name: str) -> None:
    """Only how many replicas there are may differ, the GPU, and what of the engine is for the recipe's GPU alone."""
    recipes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RECIPES.glob("*.yaml")]
    for model in ready_values(name)["models"].values():
        text = json.dumps(model["deployment"]).replace(IN_IMAGE, "./")
        deployment = json.loads(text)
        (recipe,) = [recipe for recipe in recipes if recipe["name"] == deployment["name"]]
        deployment.pop("replicas", None)
        recipe.pop("replicas", None)
        if deployment["resources"].pop("accelerator_type", None) != recipe["resources"].pop("accelerator_type", None):
            # MXFP8 activations are Blackwell's.
            recipe["engine"].pop("quantization_config", None)
        assert deployment == recipe


def test_the_application_builder_takes_what_is_rendered(rendered: Rendered) -> None:
    arguments = rendered.arguments
    assert set(arguments) <= {"deployments", "api"}
    read_settings(arguments.get("api"))
    names = [deployment.name for deployment in read_deployments(arguments["deployments"])]
    assert names == [model["name"] for model in arguments["deployments"]]
    assert rendered.serve["applications"][0]["import_path"] == "peagle.serve.app:build_app"


def test_a_deployment_arrives_as_it_was_written() -> None:
    """Helm reads every number as a float: none may come out as 1e+06, and no integer as a fraction."""
    engine = {"max_model_len": 1048576, "kv_cache_memory_bytes": 1 << 40, "gpu_memory_utilization": 0.925, "x": None}
    engine |= {"limit": 10_000_000, "flag": False, "text": "1e3", "list": [1, 2.5], "map": {"a": {"b": 1}}}
    values = laid_over(MINIMAL, at("models.small.deployment.engine", engine))
    (deployment,) = render(values).arguments["deployments"]
    assert deployment["engine"] == engine
    assert read_deployments([deployment])[0].engine["kv_cache_memory_bytes"] == 1 << 40


def test_caches_of_every_library_lie_in_the_model_cache() -> None:
    """The root is read-only, and what Triton, FlashInfer and vLLM compile is to outlive the container."""
    for template in (render(MINIMAL).head, render(MINIMAL).worker):
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        cache = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "model-cache")
        assert env["HOME"] == env["XDG_CACHE_HOME"] == cache


# Wanted on a machine of one's own and not in a cluster: one log for all, a first failure told at once.
LOCAL_ONLY = {
    "RAY_DEDUP_LOGS",
    "RAY_COLOR_PREFIX",
    "RAY_prestart_worker_first_driver",
    "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT",
}


def test_rays_processes_have_the_environment_that_peagle_serve_gives_them() -> None:
    wanted = {name: value for name, value in {**ENVIRONMENT, **TRANSPORT}.items() if name not in LOCAL_ONLY}
    for template in (render(MINIMAL).head, render(MINIMAL).worker):
        (container,) = template["spec"]["containers"]
        given = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert wanted.items() <= given.items()


def test_no_pod_takes_the_labels_by_which_kuberay_finds_its_own(rendered: Rendered) -> None:
    for template in (rendered.head, *(group["template"] for group in rendered.cluster["workerGroupSpecs"])):
        assert not {"app.kubernetes.io/name", "app.kubernetes.io/created-by"} & set(template["metadata"]["labels"])


def test_the_service_is_found_under_the_release_and_named_as_it(rendered: Rendered) -> None:
    labels = rendered.one("RayService")["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "peagle"
    assert labels["app.kubernetes.io/instance"] == RELEASE
    assert rendered.service["serveService"]["metadata"]["name"] == FULLNAME
    # KubeRay makes no service without a port of this name on the head.
    assert "serve" in {port["name"] for port in rendered.head["spec"]["containers"][0]["ports"]}


def test_loading_a_large_model_ends_no_pod() -> None:
    """No probe that can restart a pod asks for a model, and the pod has half an hour or its own start is slow."""
    for pod in (render(MINIMAL).head, render(MINIMAL).worker):
        (container,) = pod["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["path"] in {"/api/gcs_healthz", "/api/local_raylet_healthz"}
    assert render(MINIMAL).container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": 8000}


def test_a_worker_has_the_time_to_finish_what_it_has() -> None:
    rendered = render(MINIMAL)
    command = rendered.container["lifecycle"]["preStop"]["exec"]["command"]
    assert importlib.util.find_spec(command[2]) is not None
    assert float(command[4]) >= read_settings(None).request_timeout_s
    assert rendered.worker["spec"]["terminationGracePeriodSeconds"] > float(command[4])


def test_notes_name_the_next_commands(rendered: Rendered) -> None:
    status = f"peagle cluster status --release {RELEASE} -n {NAMESPACE}"
    for command in ("kubectl get rayservice,pods", f"helm test {RELEASE}", f"service/{FULLNAME} 8000", "curl", status):
        assert command in rendered.notes


def test_notes_say_how_to_see_why_a_pod_has_no_node() -> None:
    (command,) = (line for line in render({}).notes.splitlines() if "PodScheduled" in line)
    assert f"-n {NAMESPACE} -l app.kubernetes.io/instance={RELEASE} --field-selector status.phase=Pending" in command


def test_notes_name_the_namespace_that_the_operator_has_to_be_in() -> None:
    elsewhere = laid_over(MINIMAL, {"kuberay-operator": {"enabled": False}})
    assert f"expected in namespace {NAMESPACE}, the only one" in render(elsewhere).notes
    named = laid_over(elsewhere, at("networkPolicy.operatorNamespace", "ray-system"))
    assert "expected in namespace ray-system, the only one" in render(named).notes
    assert "expected" not in render(MINIMAL).notes


def test_with_keys_the_notes_command_sends_one() -> None:
    (command,) = (
        line
        for line in render(laid_over(MINIMAL, at("apiKeys.existingSecret", "team-keys"))).notes.splitlines()
        if "curl " in line
    )
    assert '-H "Authorization: Bearer A_KEY"' in command
    assert "team-keys" in command
