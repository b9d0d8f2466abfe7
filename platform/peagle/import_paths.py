"""Dotted paths by which Ray, vLLM, the chart and the command line import parts of peagle."""

from collections.abc import Mapping

APP_BUILDER = "peagle.serve.app:build_app"
"""Ray Serve's `import_path`; the chart sets it in its RayService."""
EDGE_MIDDLEWARES = "peagle.api.edge.middlewares"
"""Middleware around the application of Ray Serve's proxy; the chart sets it for every pod."""
TRACE_EXPORTER = "peagle.tracing:processors"
"""Ray Serve's span exporter; the chart sets it for every pod."""
REQUEST_ROUTER = "peagle.serve.routing.request_router.PolicyRouter"
"""Ray Serve's request router for a model's replicas."""
DRAIN_AWARE_ROUTER = "peagle.serve.routing.draining.DrainAwareRouter"
"""Ray Serve's request router for deployments that only have to avoid leaving nodes."""
SCHEDULER = "peagle.engine.plugin.scheduler"
"""vLLM's `scheduler_cls`, resolved in the engine core process."""
WORKER_EXTENSION = "peagle.engine.worker.WorkerExtension"
"""vLLM's `worker_extension_cls`, resolved in each worker process."""
EXECUTOR = "peagle.engine.executor.InProcessExecutor"
"""vLLM's `distributed_executor_backend` on a CPU, resolved when vLLM builds its configuration."""
COMMAND_GROUPS: Mapping[str, str] = {
    "dashboards": "peagle.observe.dashboards_cli:app",
    "drafter": "peagle.drafter.drafter_cli:app",
    "bench": "peagle.bench.bench_cli:app",
    "cluster": "peagle.cluster.cluster_cli:app",
}
"""Command groups of `peagle` by name; each is imported only when it is called."""
POD_LEAVES = "peagle.cluster.leave"
"""Module that a worker pod runs before it stops, in the chart's preStop hook."""
UNINSTALLS = "peagle.cluster.remove"
"""Module that runs before the chart is uninstalled, in the chart's pre-delete hook."""
