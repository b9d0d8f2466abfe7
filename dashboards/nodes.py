"""Nodes as Ray's agents see them, and GPUs as NVIDIA's exporter (DCGM) does.

Ray's series are of the namespace that is chosen. NVIDIA's have the exporter's own namespace, so they are not filtered.
"""

from grafana_foundation_sdk.models import units

from dashboards.boards import SPACE, Board
from dashboards.panels import Panel, Query, Row, Shape

_NODE, _GPU = "{{ip}}", "{{Hostname}} {{gpu}}"


def _ray(part: str) -> str:
    return f"ray_node_{part}{{{SPACE}}}"


def _gpu(title: str, text: str, unit: str, expr: str, highest: float | None = None) -> Panel:
    return Panel(title, text, unit, (Query(expr, _GPU),), highest=highest)


NODES = (
    Panel(
        "CPU",
        "Of each node, all cores together.",
        units.Percent,
        (Query(_ray("cpu_utilization"), _NODE),),
        width=6,
        limits=((90, "orange"),),
        highest=100,
    ),
    Panel(
        "Memory",
        "In use; Ray ends processes above 95 %.",
        units.PercentUnit,
        (Query(f"{_ray('mem_used')} / {_ray('mem_total')}", _NODE),),
        width=6,
        limits=((0.85, "orange"), (0.95, "red")),
        highest=1,
    ),
    Panel("Disk", "In use.", units.BytesIEC, (Query(f"sum by (ip) ({_ray('disk_usage')})", _NODE),), width=6),
    Panel(
        "GPUs, as Ray sees them",
        "Where there is no exporter of NVIDIA's.",
        units.Percent,
        (Query(_ray("gpus_utilization"), "{{ip}} {{GpuIndex}}"),),
        width=6,
        highest=100,
    ),
)

GPUS = (
    _gpu("Utilization", "Share of time with any kernel.", units.Percent, "DCGM_FI_DEV_GPU_UTIL", 100),
    _gpu("Engines active", "Share of time with work on graphics or compute engines.", units.PercentUnit,
         "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1),
    _gpu("Tensor cores active", "What a step spends on matrix products; low where memory is the bound.",
         units.PercentUnit, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1),
    _gpu("Memory bandwidth", "Share of cycles in which memory moves data: the bound of small batches.",
         units.PercentUnit, "DCGM_FI_PROF_DRAM_ACTIVE", 1),
    _gpu("Memory in use", "Weights, cache and graphs; vLLM takes its share at the start.", units.PercentUnit,
         "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", 1),
    _gpu("NVLink", "Between tensor-parallel ranks, both ways.", units.BytesPerSecondIEC,
         "DCGM_FI_PROF_NVLINK_TX_BYTES + DCGM_FI_PROF_NVLINK_RX_BYTES"),
    _gpu("Power", "Drawn now.", units.Watt, "DCGM_FI_DEV_POWER_USAGE"),
    Panel("Temperature", "Of the chip.", units.Celsius, (Query("DCGM_FI_DEV_GPU_TEMP", _GPU),),
          limits=((85, "orange"), (92, "red"))),
    _gpu("SM clock", "A fall under load is throttling.", units.Hertz,
         "DCGM_FI_DEV_SM_CLOCK * 1e6"),
    Panel("Errors (XID)", "The last one of each GPU; any but 0 needs a look at the node's log.", units.Short,
          (Query("max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS)", _GPU),), Shape.STAT, 24, ((1, "red"),)),
)  # fmt: skip

BOARD = Board(
    "peagle-nodes",
    "peagle / Nodes and GPUs",
    "Nodes of the chosen namespace as Ray's agents see them, and all GPUs that NVIDIA's exporter (DCGM) sees.",
    (Row("Nodes", NODES), Row("GPUs", GPUS)),
    ("namespace",),
)
