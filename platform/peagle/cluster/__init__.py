"""Kubernetes: what a cluster lacks before an install, how a release is, and nodes that leave without losing a request.

`peagle cluster preflight` and `peagle cluster status` run on an operator's machine with the operator's own rights.
`peagle cluster drain` runs in the cluster, one process for each release, in a Deployment of one replica with a service
account of its own. Every action may be repeated, so neither a lease nor an order between two of them is needed.

    peagle cluster drain --release RELEASE [--namespace NAMESPACE] [--patience S] [--finish S] [--taint KEY ...]

`--namespace` defaults to the pod's own; `--finish` is the `request_timeout_s` of the release's API settings. It needs:

Rights, of the cluster
    nodes: list, watch
Rights, in the release's namespace
    pods: list, watch
    pods/eviction: create
Labels on the Ray pods, head and workers (KubeRay sets the first two; the pod templates set the third)
    ray.io/node-type: head | worker
    ray.io/cluster: the RayCluster
    app.kubernetes.io/instance: RELEASE
Port of the Ray head's pod
    6379 (GCS)
Environment, where Ray asks for a token
    RAY_AUTH_MODE=token and RAY_AUTH_TOKEN
A pod disruption budget over the workers, if there is one, has `unhealthyPodEvictionPolicy: AlwaysAllow`: a worker is
evicted once its Ray has ended, and by then it is not ready.

A worker pod that Kubernetes itself ends (eviction, scale-down) drains by its preStop hook, `peagle.cluster.leave`. Ray
keeps the first deadline that it is told, so the hook's timeout is at least `--patience` plus `--finish`. Whoever marks
a node as draining, request routers then send nothing more there (`peagle.serve.routing.draining`).
"""
