"""Nodes from Ray's agents, and GPUs from NVIDIA's exporter (DCGM).

Ray's series are filtered by namespace. NVIDIA's have the exporter's own namespace, so they are not filtered.
"""

from grafana_foundation_sdk.models import units

from dashboards.boards import SPACE, Board
from dashboards.panels import NO_GPU, NO_RAY, Panel, Query, Row, Shape
from peagle.palette import BAD, WARN

_NODE, _GPU = "{{ip}}", "{{Hostname}} {{gpu}}"


def _ray(part: str) -> str:
    return f"ray_node_{part}{{{SPACE}}}"


def _gpu(title: str, text: str, unit: str, expr: str, highest: float | None = None) -> Panel:
    return Panel(title, text, unit, (Query(expr, _GPU),), highest=highest, none=NO_GPU)


NODES = (
    Panel(
        "CPU",
        "Per node, all cores together.",
        units.Percent,
        (Query(_ray("cpu_utilization"), _NODE),),
        width=6,
        highest=100,
        none=NO_RAY,
    ),
    Panel(
        "Memory",
        "In use; Ray ends processes above 95 %.",
        units.PercentUnit,
        (Query(f"{_ray('mem_used')} / {_ray('mem_total')}", _NODE),),
        width=6,
        limits=((0.85, WARN), (0.95, BAD)),
        highest=1,
        none=NO_RAY,
    ),
    Panel(
        "Disk", "In use.", units.BytesIEC, (Query(f"sum by (ip) ({_ray('disk_usage')})", _NODE),), width=6, none=NO_RAY
    ),
    Panel(
        "GPUs, from Ray's agents",
        "For nodes without NVIDIA's exporter.",
        units.Percent,
        (Query(_ray("gpus_utilization"), "{{ip}} {{GpuIndex}}"),),
        width=6,
        highest=100,
        none="No GPU, or Prometheus does not scrape Ray's agents.",
    ),
)

GPUS = (
    _gpu("Utilization", "Share of time with any kernel running.", units.Percent, "DCGM_FI_DEV_GPU_UTIL", 100),
    _gpu("Engines active", "Share of time with work on graphics or compute engines.", units.PercentUnit,
         "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1),
    _gpu("Tensor cores active", "Share of time in matrix products; low if memory bandwidth is the bottleneck.",
         units.PercentUnit, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1),
    _gpu("Memory bandwidth", "Share of cycles in which memory transfers data: the bottleneck of small batches.",
         units.PercentUnit, "DCGM_FI_PROF_DRAM_ACTIVE", 1),
    _gpu("Memory in use", "Weights, KV cache and graphs; vLLM allocates its share at start.", units.PercentUnit,
         "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", 1),
    _gpu("NVLink", "Between tensor-parallel ranks, in both directions.", units.BytesPerSecondIEC,
         "DCGM_FI_PROF_NVLINK_TX_BYTES + DCGM_FI_PROF_NVLINK_RX_BYTES"),
    _gpu("Power", "Drawn now.", units.Watt, "DCGM_FI_DEV_POWER_USAGE"),
    Panel("Temperature", "Of the chip.", units.Celsius, (Query("DCGM_FI_DEV_GPU_TEMP", _GPU),),
          limits=((85, WARN), (92, BAD)), none=NO_GPU),
    _gpu("SM clock", "A fall under load is throttling.", units.Hertz,
         "DCGM_FI_DEV_SM_CLOCK * 1e6"),
    Panel("Errors (XID)", "The last XID of each GPU; if it is not 0, check the node's kernel log.", units.Short,
          (Query("max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS)", _GPU),), Shape.STAT, 24, ((1, BAD),), none=NO_GPU),
)  # fmt: skip

BOARD = Board(
    "peagle-nodes",
    "peagle / Nodes and GPUs",
    "Nodes of the selected namespace from Ray's agents, and all GPUs from NVIDIA's exporter (DCGM).",
    (Row("Nodes", NODES), Row("GPUs", GPUS)),
    ("namespace",),
)
