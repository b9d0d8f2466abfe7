"""Checks a cluster against a release's requirements. Pure: values and facts in, checks out."""

import re
from collections.abc import Iterator, Mapping, Sequence

from peagle.cluster.preflight.capacity import check_capacity
from peagle.cluster.preflight.facts import CrdFacts, Facts, Known, OperatorFacts, crds_needed, secrets_needed
from peagle.cluster.preflight.gpu_driver import check_drivers
from peagle.cluster.preflight.outcome import Check, Outcome, failed, passed, unknown, warned
from peagle.cluster.preflight.values import Values
from peagle.errors import ClusterError

__all__ = ["Check", "Outcome", "check_all"]

# RayService fields that the chart sets. An older KubeRay would drop them silently.
RAYSERVICE_FIELDS = (
    "rayClusterDeletionDelaySeconds",
    "excludeHeadPodFromServeSvc",
    "upgradeStrategy",
    "rayClusterConfig.gcsFaultToleranceOptions",
)
# First KubeRay version that accepts a release's own token.
TOKEN_FIELD = "rayClusterConfig.authOptions.secretName"
TOKEN_VERSION = (1, 6)
TOKEN_FIX = "or set ray.auth.mode: disabled"
INSTALL_OPERATOR = "helm install kuberay-operator kuberay/kuberay-operator, or set kuberay-operator.enabled."
LEVEL = "pod-security.kubernetes.io/enforce"


def check_all(values: Values, facts: Facts, scale_up: bool = False) -> list[Check]:
    """Run every check, in the order in which to fix problems. With `scale_up`, missing capacity only warns."""
    return [
        *_version(values, facts),
        *_rights(facts),
        *_crds(values, facts),
        *_operator(values, facts),
        *_namespace(values, facts),
        *check_capacity(values, facts, scale_up),
        *check_drivers(values, facts),
        *_storage(values, facts),
        *_secrets(values, facts),
        *_classes(facts),
    ]


def _version(values: Values, facts: Facts) -> Iterator[Check]:
    least, has = _numbers(values.minimum_kubernetes), _numbers(facts.version)
    if has < least:
        yield failed(
            "Kubernetes", f"{facts.version}; the chart needs {values.minimum_kubernetes}", "Upgrade the cluster."
        )
    else:
        yield passed("Kubernetes", facts.version)


def _numbers(version: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _rights(facts: Facts) -> Iterator[Check]:
    lacking = [name for name, allowed in facts.rights.items() if not allowed]
    if lacking:
        fix = "Have an administrator install it or grant the permission; only drain.watcher.enabled needs ClusterRoles."
        yield failed("rights", f"this account may not create {', '.join(lacking)} in {facts.namespace}", fix)
    else:
        yield passed("rights", f"this account may create what the chart installs in {facts.namespace}")


def _crds(values: Values, facts: Facts) -> Iterator[Check]:
    for name in crds_needed(values):
        found: Known[CrdFacts | None] = facts.crds[name]
        is_ray = name.endswith(".ray.io")
        if isinstance(found, ClusterError):
            yield unknown(name, found)
        elif found is None and is_ray and values.operator.enabled:
            yield passed(name, "comes with the operator in this release")
        elif found is None:
            fix = (
                f"Run: {INSTALL_OPERATOR}"
                if is_ray
                else "Install the operator that provides it, or disable the value that needs it."
            )
            yield failed(name, "the cluster does not have this resource", fix)
        elif "v1" not in found.versions:
            yield failed(
                name, f"v1 is not served, only {', '.join(found.versions)}", "Upgrade the operator that provides it."
            )
        else:
            yield _fields(values, name, found) if name.startswith("rayservices.") else passed(name, "v1 is served")


def _fields(values: Values, name: str, found: CrdFacts) -> Check:
    lacking = [field for field in RAYSERVICE_FIELDS if field not in found.fields]
    if lacking:
        return failed(name, f"does not know {', '.join(lacking)}", "Upgrade KubeRay's CRDs and operator.")
    if values.ray.auth.mode == "token" and TOKEN_FIELD not in found.fields:
        detail = f"does not know {TOKEN_FIELD}, which ray.auth.mode token needs: it is older than KubeRay 1.6"
        return failed(name, detail, f"Upgrade KubeRay's CRDs and operator, {TOKEN_FIX}.")
    return passed(name, "v1 is served")


def _operator(values: Values, facts: Facts) -> Iterator[Check]:
    subject = "KubeRay operator"
    if isinstance(facts.operators, ClusterError):
        yield unknown(subject, facts.operators)
        return
    others = [each for each in facts.operators if not each.is_own]
    images = ", ".join(each.image for each in others)
    namespace = values.network_policy.operator_namespace or facts.namespace
    homes = {facts.namespace} if values.operator.enabled else {each.namespace for each in others}
    if values.operator.enabled and others:
        detail = f"already running ({images}), and this release would install another"
        yield failed(subject, detail, "Set kuberay-operator.enabled: false.")
    elif not homes:
        yield failed(subject, "not running in the cluster", f"Run: {INSTALL_OPERATOR}")
    elif values.network_policy.enabled and namespace not in homes:
        detail = f"it is in {', '.join(sorted(homes))}, but the network policy admits it only from {namespace}"
        yield failed(subject, detail, f"Set networkPolicy.operatorNamespace: {min(homes)}.")
    elif values.ray.auth.mode == "token" and (old := _without_tokens(others, namespace)):
        detail = f"{old} is running, but ray.auth.mode token needs 1.6 or newer"
        yield failed(subject, detail, f"Upgrade the operator, {TOKEN_FIX}.")
    else:
        yield passed(subject, "comes with this release" if values.operator.enabled else images)


def _without_tokens(operators: Sequence[OperatorFacts], namespace: str) -> str:
    """Return the image of an operator too old for Ray's token; if there are several, those in `namespace` count."""
    near = [each for each in operators if each.namespace == namespace] or operators
    tags = {each.image: each.image.partition("@")[0].rpartition("/")[2].partition(":")[2] for each in near}
    # A tag that is not a version, such as nightly, says nothing about its age.
    return next((image for image, tag in tags.items() if (0, 0) < _numbers(tag) < TOKEN_VERSION), "")


def _namespace(values: Values, facts: Facts) -> Iterator[Check]:
    subject, labels = f"namespace {facts.namespace}", facts.namespace_labels
    if isinstance(labels, ClusterError):
        yield unknown(subject, labels)
    elif labels is None:
        yield warned(subject, "it does not exist yet", "Pass --create-namespace to helm install.")
    else:
        yield from _pod_security(values, subject, labels)
    if isinstance(facts.quotas, ClusterError):
        yield unknown("quotas", facts.quotas)
    elif facts.quotas:
        yield warned(
            "quotas", f"{', '.join(facts.quotas)} may refuse pods", "Compare them with the capacity checks below."
        )


def _pod_security(values: Values, subject: str, labels: Mapping[str, str]) -> Iterator[Check]:
    level = labels.get(LEVEL, "privileged")
    rdma = [name for name, group in values.groups.items() if group.rdma_devices]
    if values.model_cache.type == "hostPath" and level in ("baseline", "restricted"):
        fix = "Choose another modelCache.type, or another namespace."
        yield failed(subject, f"pod security {level} refuses modelCache.type hostPath", fix)
    elif rdma and level in ("baseline", "restricted"):
        fix = "Disable RDMA there, or use another namespace."
        yield failed(subject, f"pod security {level} refuses IPC_LOCK, which RDMA of {', '.join(rdma)} needs", fix)
    else:
        yield passed(subject, f"pod security {level}")


def _storage(values: Values, facts: Facts) -> Iterator[Check]:
    cache = values.model_cache
    if cache.type == "pvc" and cache.existing_claim:
        modes = facts.claims[cache.existing_claim]
        subject = f"claim {cache.existing_claim}"
        pods = 1 + sum(group.max_replicas for group in values.groups.values())  # the head mounts it too
        if isinstance(modes, ClusterError):
            yield unknown(subject, modes)
        elif modes is None:
            yield failed(subject, "it does not exist", "Create it, or leave modelCache.existingClaim empty.")
        elif pods > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
            yield warned(
                subject, f"{pods} pods share it, but it is {', '.join(modes)}", "Use a claim with ReadWriteMany."
            )
        else:
            yield passed(subject, ", ".join(modes))
    elif cache.type in ("pvc", "ephemeral"):
        yield _class("modelCache.storageClassName", cache.storage_class_name, facts)
    if values.gcs.store == "bundled":
        yield _class("gcs.bundled.storageClassName", values.gcs.bundled.storage_class_name, facts)


def _class(field: str, name: str, facts: Facts) -> Check:
    subject, classes = f"storage class {name or '(default)'}", facts.storage_classes
    if isinstance(classes, ClusterError):
        return unknown(subject, classes)
    there = ", ".join(classes) or "none"
    if name and name not in classes:
        return failed(subject, f"it does not exist; available: {there}", f"Set {field} to one of these.")
    if not name and not any(classes.values()):
        return failed(subject, f"the cluster has no default; available: {there}", f"Set {field}.")
    return passed(subject, name or next(each for each, is_default in classes.items() if is_default))


def _secrets(values: Values, facts: Facts) -> Iterator[Check]:
    for name, needed in secrets_needed(values).items():
        keys, subject = facts.secrets[name], f"secret {name}"
        literals = " ".join(f"--from-literal={key}=..." for key in sorted(needed) or ["NAME"])
        make = f"Run: kubectl create secret generic {name} -n {facts.namespace} {literals}"
        if isinstance(keys, ClusterError):
            yield unknown(subject, keys)
        elif keys is None:
            yield failed(subject, f"it is not in {facts.namespace}", make)
        elif missing := needed - keys:
            lacks = f"it has no key {' or '.join(sorted(missing))}, only {', '.join(sorted(keys)) or 'none'}"
            yield failed(subject, lacks, make)
        else:
            yield passed(subject, f"has the key {' and '.join(sorted(needed))}" if needed else "is there")


def _classes(facts: Facts) -> Iterator[Check]:
    for kind, found in (("priority class", facts.priority_classes), ("runtime class", facts.runtime_classes)):
        for name, exists in found.items():
            subject = f"{kind} {name}"
            if isinstance(exists, ClusterError):
                yield unknown(subject, exists)
            elif exists:
                yield passed(subject, "it is there")
            else:
                yield failed(subject, "it does not exist", "Create it, or leave the value empty.")
