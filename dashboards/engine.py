"""vLLM's batches, cache and latencies."""

from grafana_foundation_sdk.models import units

from dashboards.boards import OF_REPLICA, SPACE, Board
from dashboards.panels import NO_RAY, Panel, Query, Row, Shape
from dashboards.promql import WINDOW, quantile, rate, ratio
from peagle.metrics import FINISH
from peagle.palette import BAD, WARN

_REPLICA = "{{model}} {{replica}}"
_BY_REPLICA = "model, replica"


def _p95(histogram: str) -> tuple[Query, ...]:
    return (Query(quantile(0.95, histogram, OF_REPLICA, _BY_REPLICA), _REPLICA),)


BATCH = (
    Panel(
        "Batch size",
        "Running requests.",
        units.Short,
        (Query(f"peagle_replica_running_requests{{{OF_REPLICA}}}", _REPLICA),),
        width=6,
    ),
    Panel(
        "KV cache in use",
        "A full cache makes requests wait, and causes preemptions.",
        units.PercentUnit,
        (Query(f"peagle_replica_kv_usage_ratio{{{OF_REPLICA}}}", _REPLICA),),
        limits=((0.9, WARN), (0.98, BAD)),
        highest=1,
        width=6,
    ),
    Panel(
        "Preemptions",
        "Requests preempted because the KV cache was full; they are recomputed.",
        units.RequestsPerSecond,
        (Query(rate("peagle_replica_preemptions_total", OF_REPLICA, _BY_REPLICA), _REPLICA),),
        width=6,
    ),
    Panel(
        "Slow grammars",
        "Requests ended because their grammar became slower than `api.grammar.max_mask_s`.",
        units.RequestsPerSecond,
        (Query(rate("peagle_replica_slow_grammars_total", OF_REPLICA, _BY_REPLICA), _REPLICA),),
        width=6,
    ),
    Panel(
        "Tokens in and out",
        "Prompt tokens, those of them found in the prefix cache, and generated tokens.",
        units.Short,
        (
            Query(rate("peagle_replica_prompt_tokens_total", OF_REPLICA), "{{model}} in"),
            Query(rate("peagle_replica_generation_tokens_total", OF_REPLICA), "{{model}} out"),
        ),
    ),
    Panel(
        "Prefix cache hits",
        "Share of prompt tokens found in the prefix cache.",
        units.PercentUnit,
        (
            Query(
                ratio(
                    "peagle_replica_prefix_hit_tokens_total",
                    "peagle_replica_prefix_query_tokens_total",
                    OF_REPLICA,
                    _BY_REPLICA,
                ),
                _REPLICA,
            ),
        ),
        highest=1,
    ),
    Panel(
        "Requests by finish reason",
        "`length` is an answer that reached its token limit. Clients that disconnected are not included: see Router.",
        units.RequestsPerSecond,
        (Query(rate("peagle_replica_requests_total", OF_REPLICA, "reason"), "{{reason}}"),),
        Shape.STACK,
        names=tuple(sorted(FINISH.values)),
    ),
)

LATENCY = (
    Panel("Time to first token, p95", "In the engine.", units.Seconds, _p95("peagle_replica_ttft_seconds")),
    Panel(
        "Time in the queue, p95",
        "From arrival in the engine to the first step.",
        units.Seconds,
        _p95("peagle_replica_queue_seconds"),
    ),
    Panel("Whole requests, p95", "In the engine.", units.Seconds, _p95("peagle_replica_e2e_seconds")),
    Panel(
        "Time between outputs",
        "Time between two outputs of a request, each of which may hold several tokens.",
        units.Seconds,
        (Query(f"sum by (le) (increase(peagle_replica_itl_seconds_bucket{{{OF_REPLICA}}}[{WINDOW}]))", "{{le}}"),),
        Shape.BUCKETS,
        12,
        lowest=None,
    ),
    Panel(
        "Time per output token",
        "Mean of each request, after its first token.",
        units.Seconds,
        (Query(f"sum by (le) (increase(peagle_replica_tpot_seconds_bucket{{{OF_REPLICA}}}[{WINDOW}]))", "{{le}}"),),
        Shape.BUCKETS,
        12,
        lowest=None,
    ),
)

# vLLM's series come through Ray's agent, which has its own labels for model and replica.
_VLLM = f'{SPACE}, model_name=~"$model", ReplicaId=~"$replica"'
VLLM = (
    Panel(
        "Requests, as vLLM counts them",
        "vLLM's own series; they agree with those above.",
        units.Short,
        (
            Query(f"sum by (model_name) (ray_vllm_num_requests_running{{{_VLLM}}})", "{{model_name}} running"),
            Query(f"sum by (model_name) (ray_vllm_num_requests_waiting{{{_VLLM}}})", "{{model_name}} waiting"),
        ),
        none=NO_RAY,
    ),
    Panel(
        "Prefill, p95",
        "vLLM's own series: from the first step to the first token.",
        units.Seconds,
        (
            Query(
                quantile(0.95, "ray_vllm_request_prefill_time_seconds", _VLLM, "model_name"),
                "{{model_name}}",
            ),
        ),
        none=NO_RAY,
    ),
    Panel(
        "Decode, p95",
        "vLLM's own series: from the first token to the last.",
        units.Seconds,
        (
            Query(
                quantile(0.95, "ray_vllm_request_decode_time_seconds", _VLLM, "model_name"),
                "{{model_name}}",
            ),
        ),
        none=NO_RAY,
    ),
)

BOARD = Board(
    "peagle-engine",
    "peagle / Engine",
    "vLLM's batches, cache and latencies.",
    (Row("Batch and cache", BATCH), Row("Latency", LATENCY), Row("vLLM's own", VLLM)),
)
