"""Kubernetes: checks before an install, release status, and draining of nodes without losing a request.

`peagle cluster preflight` and `peagle cluster status` run on an operator's machine with the operator's permissions.
`peagle cluster drain` runs in the cluster, one process per release, in a Deployment of one replica with its own service
account. Every action is idempotent, so two processes need neither a lease nor an order between them.

    peagle cluster drain --release RELEASE [--namespace NAMESPACE] [--patience S] [--finish S] [--taint KEY ...]

`--namespace` defaults to the pod's own; `--finish` is the `request_timeout_s` of the release's API settings. It needs:

Permissions in the cluster
    nodes: list, watch
Permissions in the release's namespace
    pods: list, watch
    pods/eviction: create
Labels on the Ray pods, head and workers (KubeRay sets the first two; the pod templates set the third)
    ray.io/node-type: head | worker
    ray.io/cluster: the RayCluster
    app.kubernetes.io/instance: RELEASE
Port of the Ray head's pod
    6379 (GCS)
Environment, if Ray requires a token
    RAY_AUTH_MODE=token and RAY_AUTH_TOKEN
A pod disruption budget over the workers, if any, needs `unhealthyPodEvictionPolicy: AlwaysAllow`: a worker is evicted
after its Ray has ended, when it is no longer ready.

A worker pod that Kubernetes itself ends (eviction, scale-down) drains by its preStop hook, `peagle.cluster.leave`. Ray
keeps the first deadline that it receives, so the hook's timeout is at least `--patience` plus `--finish`. Request
routers send nothing more to a draining node, whatever marked it (`peagle.serve.routing.draining`).
"""
