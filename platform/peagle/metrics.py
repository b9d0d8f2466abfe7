"""Every metric of the platform, declared once: `/metrics` exports these; dashboards and alerts use no others.

One answer of `/metrics` covers the whole fleet. The same series are not pushed through Ray's metrics too, because sums
there would count them twice. vLLM's and Ray's own series stay with Ray's agent on each node, as `ray_vllm_*` and
`ray_serve_*`.
"""

from peagle.metric_types import (
    OTHER,
    QUEUE_SECONDS,
    SECONDS,
    TOKEN_SECONDS,
    Kind,
    Label,
    Metric,
    Unit,
    counter,
    gauge,
    seconds,
)

__all__ = ["METRICS", "OTHER", "QUEUE_SECONDS", "SECONDS", "TOKEN_SECONDS", "Kind", "Label", "Metric", "Unit"]

METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
OK, CLIENT_ERROR, SHED, FAILED, LEFT = "ok", "client-error", "shed", "failed", "left"

MODEL = Label("model", "the models served")
REPLICA = Label("replica", "running replicas; names are never reused")
INGRESS = Label("ingress", "running ingress processes")
METHOD = Label("method", "HTTP methods", METHODS)
ROUTE = Label("route", "templates of the API's routes; `unmatched` for all others")
STATUS = Label("status", "HTTP status codes")
OUTCOME = Label("outcome", "how a request ended", frozenset({OK, CLIENT_ERROR, SHED, FAILED, LEFT}))
POSITION = Label("position", "1 to the largest K")
DEPTH = Label("depth", "0 to the largest K")
FINISH = Label("reason", "vLLM's finish reasons", frozenset({"stop", "length", "abort", "error", "repetition"}))
MODE = Label(
    "mode", "what controls a depth table", frozenset({"static", "adaptive", "probing", "paused", "pinned", "fallback"})
)
CAUSE = Label(
    "cause",
    "why a depth changed",
    frozenset({"gain", "latency", "load", "limits", "pin", "guard", "resumed"})
    | {"probe", "probe_adopted", "probe_reverted"},
)
GRAPH = Label("graph", "CUDA graph mode of a step", frozenset({"full", "piecewise", "none"}))
PART = Label("part", "inputs of the initial step time estimate", frozenset({"target", "device"}))
DISPATCH = Label(
    "reason", "why a replica was chosen, or why the request waits: `peagle.router.dispatch.DECISION_REASONS`"
)
CLIENT = Label("client", "names of API keys, at most 256 per ingress process; `other` beyond that")
TOKEN_KIND = Label(
    "kind", "kinds of tokens in a request", frozenset({"prompt", "cached", "output", "drafted", "accepted"})
)
LIMIT = Label(
    "limit",
    "limits of an API key",
    frozenset({"requests_per_minute", "tokens_per_minute", "requests_at_once", "tokens_waiting"}),
)
STATE = Label(
    "state",
    "Ray Serve's replica states",
    frozenset({"starting", "updating", "recovering", "running", "stopping", "stopped", "pending_migration"}),
)
OF_MODEL, OF_REPLICA = (MODEL,), (MODEL, REPLICA)

# Measured by ingress processes at their clients' side.
HTTP_REQUESTS = counter(
    "peagle_http_requests",
    Unit.REQUESTS,
    (INGRESS, METHOD, ROUTE, STATUS),
    "HTTP requests answered; status 499 means that the client disconnected.",
)
HTTP_REQUEST = seconds("peagle_http_request", (INGRESS, METHOD, ROUTE), "Time to the last byte of the answer.")
REQUESTS = counter("peagle_requests", Unit.REQUESTS, (INGRESS, MODEL, OUTCOME), "Requests to a model, by outcome.")
REQUESTS_OPEN = gauge(
    "peagle_requests_open", Unit.REQUESTS, (INGRESS, MODEL), "Requests to a model that are in progress."
)
REQUEST_TTFT = seconds("peagle_request_ttft", (INGRESS, MODEL), "Time from a request's arrival to its first token.")
REQUEST_ITL = seconds(
    "peagle_request_itl",
    (INGRESS, MODEL),
    "Time between two consecutive chunks of a streamed answer, as sent.",
    None,
    TOKEN_SECONDS,
)
REQUEST_E2E = seconds(
    "peagle_request_e2e", (INGRESS, MODEL), "Time from a request's arrival to its last byte, for successful requests."
)
RETRIES = counter(
    "peagle_request_retries",
    Unit.REQUESTS,
    (INGRESS, MODEL),
    "Requests retried on another replica because theirs was lost before the first token.",
)
DECISIONS = counter(
    "peagle_dispatch_decisions",
    Unit.REQUESTS,
    (INGRESS, MODEL, DISPATCH),
    "Dispatch decisions by reason; reasons that begin with `wait-` mean that no replica could take the request yet.",
)
LOOP_STALL = seconds(
    "peagle_ingress_loop_stall",
    (INGRESS,),
    "Delay of a timer in an ingress process's event loop, during which no tokens are relayed.",
)
CLIENT_REQUESTS = counter(
    "peagle_client_requests",
    Unit.REQUESTS,
    (INGRESS, CLIENT, MODEL),
    "Admitted requests of an API key that have ended.",
)
CLIENT_TOKENS = counter(
    "peagle_client_tokens",
    Unit.TOKENS,
    (INGRESS, CLIENT, MODEL, TOKEN_KIND),
    "Tokens of those requests as engines count them; cached also count as prompt, accepted as drafted and output.",
)
CLIENT_REFUSALS = counter(
    "peagle_client_refusals",
    Unit.REQUESTS,
    (INGRESS, CLIENT, LIMIT),
    "Requests refused because of a limit of their API key.",
)
INGRESS_METRICS = (
    HTTP_REQUESTS,
    HTTP_REQUEST,
    REQUESTS,
    REQUESTS_OPEN,
    REQUEST_TTFT,
    REQUEST_ITL,
    REQUEST_E2E,
    RETRIES,
    DECISIONS,
    LOOP_STALL,
    CLIENT_REQUESTS,
    CLIENT_TOKENS,
    CLIENT_REFUSALS,
)

# State of the whole fleet.
REPLICAS_ANSWERING = gauge("peagle_replicas_answering", Unit.REPLICAS, OF_MODEL, "Replicas that answered this scrape.")
REPLICAS = gauge("peagle_replicas", Unit.REPLICAS, (MODEL, STATE), "Replicas by Ray Serve state.")
FLEET_METRICS = (REPLICAS_ANSWERING, REPLICAS)

# Reported by a replica, or by the Router about it: `field` is the key in the answer. A dictionary there has the last
# label's values as keys, a list is indexed by position, and a histogram is a mapping of bounds, counts and sum.
REPLICA_METRICS = (
    gauge("peagle_replica_running_requests", Unit.REQUESTS, OF_REPLICA, "Running requests.", "running_requests"),
    gauge("peagle_replica_waiting_requests", Unit.REQUESTS, OF_REPLICA, "Waiting requests.", "waiting_requests"),
    counter(
        "peagle_replica_engine_stalls", Unit.EVENTS, OF_REPLICA, "Times the engine stopped responding.", "engine_stalls"
    ),
    counter(
        "peagle_replica_slow_grammars",
        Unit.REQUESTS,
        OF_REPLICA,
        "Requests that the engine ended because their grammar exceeded `api.grammar.max_mask_s`.",
        "slow_grammars",
    ),
    gauge(
        "peagle_replica_kv_usage_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Share of the KV cache in use, 0 to 1.",
        "kv_usage_ratio",
    ),
    gauge(
        "peagle_replica_devices",
        Unit.DEVICES,
        OF_REPLICA,
        "Accelerators that the replica runs on; 1 for a replica on CPUs.",
        "devices",
    ),
    gauge(
        "peagle_replica_warm_up_seconds",
        Unit.SECONDS,
        OF_REPLICA,
        "Time from the engine's start to the end of its warm-up, which compiles everything used lazily.",
        "warm_up_s",
    ),
    counter(
        "peagle_replica_requests",
        Unit.REQUESTS,
        (*OF_REPLICA, FINISH),
        "Requests finished by the engine, without those whose client disconnected.",
        "finished",
    ),
    counter("peagle_replica_prompt_tokens", Unit.TOKENS, OF_REPLICA, "Prompt tokens.", "prompt_tokens"),
    counter("peagle_replica_generation_tokens", Unit.TOKENS, OF_REPLICA, "Generated tokens.", "generation_tokens"),
    counter(
        "peagle_replica_prefix_query_tokens",
        Unit.TOKENS,
        OF_REPLICA,
        "Prompt tokens looked up in the prefix cache.",
        "prefix_query_tokens",
    ),
    counter(
        "peagle_replica_prefix_hit_tokens",
        Unit.TOKENS,
        OF_REPLICA,
        "Prompt tokens found in the prefix cache.",
        "prefix_hit_tokens",
    ),
    counter(
        "peagle_replica_preemptions",
        Unit.REQUESTS,
        OF_REPLICA,
        "Requests preempted because the KV cache was full.",
        "preemptions",
    ),
    seconds(
        "peagle_replica_ttft", OF_REPLICA, "Time from the engine's receipt of a request to its first token.", "ttft"
    ),
    seconds(
        "peagle_replica_itl",
        OF_REPLICA,
        "Time between two outputs of a request; with speculation one output may hold several tokens.",
        "itl",
        TOKEN_SECONDS,
    ),
    seconds(
        "peagle_replica_tpot",
        OF_REPLICA,
        "Mean time per output token of a request, after the first token.",
        "tpot",
        TOKEN_SECONDS,
    ),
    seconds("peagle_replica_e2e", OF_REPLICA, "Time from the engine's receipt of a request to its last token.", "e2e"),
    seconds(
        "peagle_replica_queue", OF_REPLICA, "Time that a request waits in the engine's queue.", "queue", QUEUE_SECONDS
    ),
    seconds(
        "peagle_replica_loop_stall",
        OF_REPLICA,
        "Delay of a timer in a replica's event loop, during which no tokens are relayed.",
        "loop_stall",
    ),
    gauge("peagle_replica_depth_version", Unit.VERSION, OF_REPLICA, "Version of the depth table.", "depth_version"),
    gauge("peagle_replica_plan_age_seconds", Unit.SECONDS, OF_REPLICA, "Age of the Router's last plan.", "plan_age_s"),
    gauge(
        "peagle_replica_depth_effective",
        Unit.TOKENS,
        OF_REPLICA,
        "Draft tokens verified per draft, over the engine's lifetime.",
        "depth_effective",
    ),
    gauge(
        "peagle_replica_depth_planned",
        Unit.TOKENS,
        OF_REPLICA,
        "K of the plan at the batch sizes with the most load.",
        "depth_planned",
    ),
    gauge(
        "peagle_replica_depth_mode",
        Unit.FLAG,
        (*OF_REPLICA, MODE),
        "1 for the mode that controls the depth table.",
        "depth_modes",
    ),
    counter(
        "peagle_replica_depth_changes",
        Unit.EVENTS,
        (*OF_REPLICA, CAUSE),
        "Changes of K for a range of batch sizes.",
        "depth_changes",
    ),
    counter(
        "peagle_replica_depth_fallbacks",
        Unit.EVENTS,
        OF_REPLICA,
        "Times that the guard fell back to the configured K.",
        "depth_fallbacks",
    ),
    counter(
        "peagle_replica_depth_steps", Unit.EVENTS, (*OF_REPLICA, DEPTH), "Decode steps at each K.", "steps_by_depth"
    ),
    counter(
        "peagle_replica_graph_steps",
        Unit.EVENTS,
        (*OF_REPLICA, GRAPH),
        "Decode steps by CUDA graph mode: full, piecewise or none.",
        "steps_by_graph",
    ),
    gauge(
        "peagle_replica_acceptance_length",
        Unit.TOKENS,
        OF_REPLICA,
        "Tokens emitted per verification, over the engine's lifetime.",
        "acceptance_length",
    ),
    counter("peagle_replica_drafts", Unit.EVENTS, OF_REPLICA, "Drafts verified in decode-only steps.", "drafts"),
    counter(
        "peagle_replica_drafting_steps",
        Unit.EVENTS,
        OF_REPLICA,
        "Requests drafted for, summed over steps.",
        "drafting_steps",
    ),
    counter(
        "peagle_replica_verified_rows",
        Unit.TOKENS,
        OF_REPLICA,
        "Rows in the target's forward passes: prompt tokens, its own tokens, and draft tokens to verify.",
        "rows_verified",
    ),
    counter(
        "peagle_replica_drafted_rows",
        Unit.TOKENS,
        OF_REPLICA,
        "Rows in the drafter's forward passes: the same, and the rows that it drafts from.",
        "rows_drafted",
    ),
    counter(
        "peagle_replica_unfitted_rows",
        Unit.TOKENS,
        OF_REPLICA,
        "Drafter rows laid out for the largest K because the layout kernel failed its start-up check.",
        "rows_unfitted",
    ),
    counter(
        "peagle_replica_requested_draft_tokens",
        Unit.TOKENS,
        OF_REPLICA,
        "Draft tokens requested: the planned K, summed over drafts.",
        "requested",
    ),
    counter("peagle_replica_draft_tokens", Unit.TOKENS, OF_REPLICA, "Draft tokens verified in those steps.", "drafted"),
    counter(
        "peagle_replica_accepted_tokens", Unit.TOKENS, OF_REPLICA, "Draft tokens accepted in those steps.", "accepted"
    ),
    counter(
        "peagle_replica_position_draft_tokens",
        Unit.TOKENS,
        (*OF_REPLICA, POSITION),
        "Draft tokens verified, by position.",
        "drafted_by_position",
    ),
    counter(
        "peagle_replica_position_accepted_tokens",
        Unit.TOKENS,
        (*OF_REPLICA, POSITION),
        "Draft tokens accepted, by position.",
        "accepted_by_position",
    ),
    gauge(
        "peagle_replica_predicted_tokens_per_second",
        Unit.TOKENS_PER_SECOND,
        OF_REPLICA,
        "Tokens per second that the plan predicts for a whole batch, at the batch sizes with the most load.",
        "predicted_tokens_per_s",
    ),
    gauge(
        "peagle_replica_measured_tokens_per_second",
        Unit.TOKENS_PER_SECOND,
        OF_REPLICA,
        "Tokens per second measured in the last report, at the same batch sizes.",
        "measured_tokens_per_s",
    ),
    gauge(
        "peagle_replica_goodput_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Recent measured tokens per second divided by predicted tokens per second; the guard acts on it.",
        "goodput_ratio",
    ),
    gauge(
        "peagle_replica_depth_prior_assumed",
        Unit.FLAG,
        (*OF_REPLICA, PART),
        "1 if the initial step times are those of another target or device, because this one is unknown.",
        "prior_assumed",
    ),
    gauge("peagle_replica_plan_version", Unit.VERSION, OF_REPLICA, "Version of the Router's plan.", "plan_version"),
    gauge(
        "peagle_replica_speedup_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Estimated tokens per second under the plan over those at K = 0, at the batch sizes with the most load.",
        "speedup_ratio",
    ),
    gauge(
        "peagle_replica_speedup_low_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Lower end of the 95 % interval of `peagle_replica_speedup_ratio`.",
        "speedup_low",
    ),
    gauge(
        "peagle_replica_speedup_high_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Upper end of the 95 % interval of `peagle_replica_speedup_ratio`.",
        "speedup_high",
    ),
)

METRICS = (*INGRESS_METRICS, *FLEET_METRICS, *REPLICA_METRICS)
