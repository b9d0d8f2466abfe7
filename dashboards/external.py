"""Series of other exporters that dashboards and rules may use; the platform itself exports none of them."""

PROMETHEUS = frozenset({"up", "ALERTS"})

# vLLM's own, through Ray's agent on each node.
VLLM = frozenset(
    {
        "ray_vllm_num_requests_running",
        "ray_vllm_num_requests_waiting",
        "ray_vllm_request_prefill_time_seconds_bucket",
        "ray_vllm_request_decode_time_seconds_bucket",
    }
)

RAY = frozenset(
    {
        "ray_node_cpu_utilization",
        "ray_node_mem_used",
        "ray_node_mem_total",
        "ray_node_disk_usage",
        "ray_node_gpus_utilization",
    }
)

# NVIDIA's exporter on GPU nodes.
DCGM = frozenset(
    {
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
    }
)

# kube-state-metrics, Kubernetes' exporter of object states.
KUBE_STATE = frozenset({"kube_pod_container_status_restarts_total"})

SERIES = PROMETHEUS | VLLM | RAY | DCGM | KUBE_STATE
