"""Every dotted path by which others import a part of peagle: Ray, vLLM, the chart and the command line."""

from collections.abc import Mapping

APP_BUILDER = "peagle.serve.app:build_app"
"""Ray Serve's `import_path`; the chart writes it into its RayService."""
EDGE_MIDDLEWARES = "peagle.api.edge.middlewares"
"""What Ray Serve's proxy wraps its own application in; the chart sets it for every pod."""
TRACE_EXPORTER = "peagle.tracing:processors"
"""Where Ray Serve sends spans; the chart sets it for every pod."""
REQUEST_ROUTER = "peagle.serve.routing.request_router.PolicyRouter"
"""Ray Serve's request router of a model's replicas."""
DRAIN_AWARE_ROUTER = "peagle.serve.routing.draining.DrainAwareRouter"
"""Ray Serve's request router where nothing is to be decided but which nodes stay."""
SCHEDULER = "peagle.engine.plugin.scheduler"
"""vLLM's `scheduler_cls`, resolved in the engine core process."""
WORKER_EXTENSION = "peagle.engine.worker.WorkerExtension"
"""vLLM's `worker_extension_cls`, resolved in each worker process."""
EXECUTOR = "peagle.engine.executor.InProcessExecutor"
"""vLLM's `distributed_executor_backend` on a CPU, resolved as it builds its configuration."""
COMMAND_GROUPS: Mapping[str, str] = {
    "dashboards": "peagle.observe.dashboards_cli:app",
    "drafter": "peagle.drafter.drafter_cli:app",
    "bench": "peagle.bench.bench_cli:app",
    "cluster": "peagle.cluster.cluster_cli:app",
}
"""Command groups that `peagle` forwards to, by name: each loads only when it is called."""
POD_LEAVES = "peagle.cluster.leave"
"""The module that a worker pod runs before it ends; in the chart's preStop hook."""
UNINSTALLS = "peagle.cluster.remove"
"""The module that runs before the chart is uninstalled; in its hook."""
