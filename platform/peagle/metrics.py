"""Every metric of the platform, declared once: `/metrics` exports these, dashboards and alerts name no others.

One answer of `/metrics` speaks for the whole fleet, so the same series are not pushed through Ray's metrics too: summed
there, they would count twice. vLLM's and Ray's own series stay with Ray's agent on each node, as `ray_vllm_*` and
`ray_serve_*`.
"""

from peagle.metric_types import OTHER, Kind, Label, Metric, Unit

__all__ = ["METRICS", "OTHER", "Kind", "Label", "Metric", "Unit"]

# From a probe's answer to a long generation.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# From one step of a small model to a stall that a reader sees.
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)

METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
OK, CLIENT_ERROR, SHED, FAILED, LEFT = "ok", "client-error", "shed", "failed", "left"

MODEL = Label("model", "the models served")
REPLICA = Label("replica", "the replicas that run; the name of one that is gone is not used again")
INGRESS = Label("ingress", "the ingress processes that run")
METHOD = Label("method", "HTTP's methods", METHODS)
ROUTE = Label("route", "templates of the API's routes; `unmatched` for all others")
STATUS = Label("status", "HTTP's status codes")
OUTCOME = Label("outcome", "how a request ends", frozenset({OK, CLIENT_ERROR, SHED, FAILED, LEFT}))
POSITION = Label("position", "1 to the deepest K")
DEPTH = Label("depth", "0 to the deepest K")
FINISH = Label(
    "reason", "vLLM's reasons to end an answer", frozenset({"stop", "length", "abort", "error", "repetition"})
)
MODE = Label(
    "mode",
    "what may govern a depth table",
    frozenset({"static", "adaptive", "probing", "paused", "pinned", "fallback"}),
)
CAUSE = Label(
    "cause",
    "why a depth may change",
    frozenset({"gain", "latency", "load", "limits", "pin", "guard", "resumed"})
    | {"probe", "probe_adopted", "probe_reverted"},
)
GRAPH = Label("graph", "what a step runs as on a GPU", frozenset({"full", "piecewise", "none"}))
PART = Label("part", "what a first guess of step times is derived from", frozenset({"target", "device"}))
DISPATCH = Label("reason", "why a replica is chosen, or none is yet: `peagle.router.dispatch.DECISION_REASONS`")
CLIENT = Label("client", "names of API keys, 256 for each ingress process; `other` for more")
TOKEN_KIND = Label(
    "kind", "what a request's tokens are", frozenset({"prompt", "cached", "output", "drafted", "accepted"})
)
LIMIT = Label(
    "limit",
    "limits of an API key",
    frozenset({"requests_per_minute", "tokens_per_minute", "requests_at_once", "tokens_waiting"}),
)
STATE = Label(
    "state",
    "Ray Serve's states of a replica",
    frozenset({"starting", "updating", "recovering", "running", "stopping", "stopped", "pending_migration"}),
)
OF_MODEL, OF_REPLICA = (MODEL,), (MODEL, REPLICA)


def _counter(name: str, unit: Unit, labels: tuple[Label, ...], text: str, field: str | None = None) -> Metric:
    return Metric(name, Kind.COUNTER, unit, labels, text, field)


def _gauge(name: str, unit: Unit, labels: tuple[Label, ...], text: str, field: str | None = None) -> Metric:
    return Metric(name, Kind.GAUGE, unit, labels, text, field)


def _seconds(
    name: str,
    labels: tuple[Label, ...],
    text: str,
    field: str | None = None,
    buckets: tuple[float, ...] = SECONDS,
) -> Metric:
    return Metric(f"{name}_seconds", Kind.HISTOGRAM, Unit.SECONDS, labels, text, field, buckets)


# What ingress processes see of their clients.
HTTP_REQUESTS = _counter(
    "peagle_http_requests",
    Unit.REQUESTS,
    (INGRESS, METHOD, ROUTE, STATUS),
    "Requests answered; status 499 is a client that left.",
)
HTTP_REQUEST = _seconds("peagle_http_request", (INGRESS, METHOD, ROUTE), "Time until the last byte of the answer.")
REQUESTS = _counter(
    "peagle_requests", Unit.REQUESTS, (INGRESS, MODEL, OUTCOME), "Requests to a model, by how they ended."
)
REQUESTS_OPEN = _gauge(
    "peagle_requests_open", Unit.REQUESTS, (INGRESS, MODEL), "Requests to a model that are not answered yet."
)
REQUEST_TTFT = _seconds("peagle_request_ttft", (INGRESS, MODEL), "From a request's arrival to its first token.")
REQUEST_ITL = _seconds(
    "peagle_request_itl",
    (INGRESS, MODEL),
    "Between two pieces of a streamed answer, as they are sent.",
    None,
    TOKEN_SECONDS,
)
REQUEST_E2E = _seconds(
    "peagle_request_e2e", (INGRESS, MODEL), "From a request's arrival to its last byte, if all well."
)
RETRIES = _counter(
    "peagle_request_retries",
    Unit.REQUESTS,
    (INGRESS, MODEL),
    "Requests sent to another replica, as theirs was lost before its first token.",
)
DECISIONS = _counter(
    "peagle_dispatch_decisions",
    Unit.REQUESTS,
    (INGRESS, MODEL, DISPATCH),
    "Requests sent to a replica, by why it was that one; `wait-` where none could take it at once.",
)
LOOP_STALL = _seconds(
    "peagle_ingress_loop_stall",
    (INGRESS,),
    "How late the event loop of an ingress process came to a timer: meanwhile it relayed nothing.",
)
CLIENT_REQUESTS = _counter(
    "peagle_client_requests",
    Unit.REQUESTS,
    (INGRESS, CLIENT, MODEL),
    "Requests of an API key that were admitted and are over.",
)
CLIENT_TOKENS = _counter(
    "peagle_client_tokens",
    Unit.TOKENS,
    (INGRESS, CLIENT, MODEL, TOKEN_KIND),
    "Tokens of those, as engines count them; cached ones are prompt tokens too, and accepted ones drafted and output.",
)
CLIENT_REFUSALS = _counter(
    "peagle_client_refusals", Unit.REQUESTS, (INGRESS, CLIENT, LIMIT), "Requests beyond a limit of their API key."
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

# What the whole fleet is.
REPLICAS_ANSWERING = _gauge("peagle_replicas_answering", Unit.REPLICAS, OF_MODEL, "Replicas that answered this scrape.")
REPLICAS = _gauge("peagle_replicas", Unit.REPLICAS, (MODEL, STATE), "Replicas, by what Ray Serve says of them.")
FLEET_METRICS = (REPLICAS_ANSWERING, REPLICAS)

# What a replica says of itself, or the Router of it: `field` is the key in its answer. A dictionary there has the last
# label's values as keys, a list is by position, and a histogram is a mapping of bounds, counts and sum.
REPLICA_METRICS = (
    _gauge("peagle_replica_running_requests", Unit.REQUESTS, OF_REPLICA, "Requests in the batch.", "running_requests"),
    _gauge("peagle_replica_waiting_requests", Unit.REQUESTS, OF_REPLICA, "Requests in the queue.", "waiting_requests"),
    _counter("peagle_replica_engine_stalls", Unit.EVENTS, OF_REPLICA, "Times its engine fell silent.", "engine_stalls"),
    _counter(
        "peagle_replica_slow_grammars",
        Unit.REQUESTS,
        OF_REPLICA,
        "Requests that the engine ended because their grammar had become slow: `api.grammar.max_mask_s`.",
        "slow_grammars",
    ),
    _gauge("peagle_replica_kv_usage_ratio", Unit.RATIO, OF_REPLICA, "KV cache in use, 0 to 1.", "kv_usage_ratio"),
    _gauge(
        "peagle_replica_devices",
        Unit.DEVICES,
        OF_REPLICA,
        "Accelerators it runs on; the CPUs of one without are one.",
        "devices",
    ),
    _gauge(
        "peagle_replica_warm_up_seconds",
        Unit.SECONDS,
        OF_REPLICA,
        "From the engine's start to its being warm: what compiles at first use has run.",
        "warm_up_s",
    ),
    _counter(
        "peagle_replica_requests",
        Unit.REQUESTS,
        (*OF_REPLICA, FINISH),
        "Requests that the engine ended; not those whose client left.",
        "finished",
    ),
    _counter("peagle_replica_prompt_tokens", Unit.TOKENS, OF_REPLICA, "Tokens of prompts.", "prompt_tokens"),
    _counter("peagle_replica_generation_tokens", Unit.TOKENS, OF_REPLICA, "Tokens generated.", "generation_tokens"),
    _counter(
        "peagle_replica_prefix_query_tokens",
        Unit.TOKENS,
        OF_REPLICA,
        "Tokens of prompts that were looked for in the prefix cache.",
        "prefix_query_tokens",
    ),
    _counter(
        "peagle_replica_prefix_hit_tokens", Unit.TOKENS, OF_REPLICA, "Those that were found there.", "prefix_hit_tokens"
    ),
    _counter(
        "peagle_replica_preemptions",
        Unit.REQUESTS,
        OF_REPLICA,
        "Requests that lost their place in the batch for want of cache.",
        "preemptions",
    ),
    _seconds("peagle_replica_ttft", OF_REPLICA, "From the engine's receipt of a request to its first token.", "ttft"),
    _seconds(
        "peagle_replica_itl",
        OF_REPLICA,
        "Between two outputs of a request; with speculation one output may hold several tokens.",
        "itl",
        TOKEN_SECONDS,
    ),
    _seconds(
        "peagle_replica_tpot",
        OF_REPLICA,
        "A request's mean time for each token after its first.",
        "tpot",
        TOKEN_SECONDS,
    ),
    _seconds("peagle_replica_e2e", OF_REPLICA, "From the engine's receipt of a request to its last token.", "e2e"),
    _seconds("peagle_replica_queue", OF_REPLICA, "From the engine's queue to a place in the batch.", "queue"),
    _seconds(
        "peagle_replica_loop_stall",
        OF_REPLICA,
        "How late the event loop of a replica came to a timer: meanwhile it relayed nothing.",
        "loop_stall",
    ),
    _gauge("peagle_replica_depth_version", Unit.VERSION, OF_REPLICA, "Version of the depth table.", "depth_version"),
    _gauge("peagle_replica_plan_age_seconds", Unit.SECONDS, OF_REPLICA, "Since the Router's last plan.", "plan_age_s"),
    _gauge(
        "peagle_replica_depth_effective",
        Unit.TOKENS,
        OF_REPLICA,
        "Draft tokens verified for each draft, over the engine's life.",
        "depth_effective",
    ),
    _gauge(
        "peagle_replica_depth_planned",
        Unit.TOKENS,
        OF_REPLICA,
        "K of the plan at the batch sizes with the most load.",
        "depth_planned",
    ),
    _gauge(
        "peagle_replica_depth_mode", Unit.FLAG, (*OF_REPLICA, MODE), "1 at what governs the depth table.", "depth_modes"
    ),
    _counter(
        "peagle_replica_depth_changes",
        Unit.EVENTS,
        (*OF_REPLICA, CAUSE),
        "Changes of K for a run of batch sizes.",
        "depth_changes",
    ),
    _counter(
        "peagle_replica_depth_fallbacks",
        Unit.EVENTS,
        OF_REPLICA,
        "Times that the guard went back to the configured K.",
        "depth_fallbacks",
    ),
    _counter(
        "peagle_replica_depth_steps", Unit.EVENTS, (*OF_REPLICA, DEPTH), "Decode steps at each K.", "steps_by_depth"
    ),
    _counter(
        "peagle_replica_graph_steps",
        Unit.EVENTS,
        (*OF_REPLICA, GRAPH),
        "Decode steps by the CUDA graph that they ran as: a full one, pieces, or none.",
        "steps_by_graph",
    ),
    _gauge(
        "peagle_replica_acceptance_length",
        Unit.TOKENS,
        OF_REPLICA,
        "Tokens for each verification, over the engine's life.",
        "acceptance_length",
    ),
    _counter("peagle_replica_drafts", Unit.EVENTS, OF_REPLICA, "Drafts verified in steps that only decode.", "drafts"),
    _counter(
        "peagle_replica_drafting_steps",
        Unit.EVENTS,
        OF_REPLICA,
        "Requests asked for a draft, summed over steps.",
        "drafting_steps",
    ),
    _counter(
        "peagle_replica_verified_rows",
        Unit.TOKENS,
        OF_REPLICA,
        "Rows that the target passed over: tokens of prompts, tokens of its own, drafts that it checked.",
        "rows_verified",
    ),
    _counter(
        "peagle_replica_drafted_rows",
        Unit.TOKENS,
        OF_REPLICA,
        "Rows that the drafter passed over: the same, and those that it drafts from.",
        "rows_drafted",
    ),
    _counter(
        "peagle_replica_unfitted_rows",
        Unit.TOKENS,
        OF_REPLICA,
        "Of those, rows that vLLM laid out for the largest K, as the kernel for it failed its check at start.",
        "rows_unfitted",
    ),
    _counter(
        "peagle_replica_requested_draft_tokens",
        Unit.TOKENS,
        OF_REPLICA,
        "Draft tokens at the K that these were asked for.",
        "requested",
    ),
    _counter(
        "peagle_replica_draft_tokens", Unit.TOKENS, OF_REPLICA, "Draft tokens verified in those steps.", "drafted"
    ),
    _counter(
        "peagle_replica_accepted_tokens", Unit.TOKENS, OF_REPLICA, "Draft tokens accepted in those steps.", "accepted"
    ),
    _counter(
        "peagle_replica_position_draft_tokens",
        Unit.TOKENS,
        (*OF_REPLICA, POSITION),
        "Draft tokens verified, by position.",
        "drafted_by_position",
    ),
    _counter(
        "peagle_replica_position_accepted_tokens",
        Unit.TOKENS,
        (*OF_REPLICA, POSITION),
        "Draft tokens accepted, by position.",
        "accepted_by_position",
    ),
    _gauge(
        "peagle_replica_predicted_tokens_per_second",
        Unit.TOKENS_PER_SECOND,
        OF_REPLICA,
        "What the plan promises of a whole batch at the batch sizes with the most load.",
        "predicted_tokens_per_s",
    ),
    _gauge(
        "peagle_replica_measured_tokens_per_second",
        Unit.TOKENS_PER_SECOND,
        OF_REPLICA,
        "What the last report showed at those batch sizes.",
        "measured_tokens_per_s",
    ),
    _gauge(
        "peagle_replica_goodput_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Tokens per second over those predicted, lately; the guard acts on it.",
        "goodput_ratio",
    ),
    _gauge(
        "peagle_replica_depth_prior_assumed",
        Unit.FLAG,
        (*OF_REPLICA, PART),
        "1 where the first guess of step times is that of another target or device, as the own is not known.",
        "prior_assumed",
    ),
    _gauge("peagle_replica_plan_version", Unit.VERSION, OF_REPLICA, "Version of the Router's plan.", "plan_version"),
    _gauge(
        "peagle_replica_speedup_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Estimated tokens per second under the plan over those at K = 0, at the batch sizes with the most load.",
        "speedup_ratio",
    ),
    _gauge(
        "peagle_replica_speedup_low_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Lower end of the 95 % interval of `peagle_replica_speedup_ratio`.",
        "speedup_low",
    ),
    _gauge(
        "peagle_replica_speedup_high_ratio",
        Unit.RATIO,
        OF_REPLICA,
        "Upper end of the 95 % interval of `peagle_replica_speedup_ratio`.",
        "speedup_high",
    ),
)

METRICS = (*INGRESS_METRICS, *FLEET_METRICS, *REPLICA_METRICS)
