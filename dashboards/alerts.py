"""Recording rules, and all alerts except those of objectives."""

from collections.abc import Sequence

from dashboards.objectives import BY, OBJECTIVES
from dashboards.rules import Alert, Recording

_BY_REPLICA = "namespace, model, replica"


def _drafted(least: int) -> str:
    """Condition that a replica drafted more than `least` in ten minutes, enough for a conclusion."""
    return f"sum by ({_BY_REPLICA}) (increase(peagle_replica_drafts_total[10m])) > {least}"


def _of_replica(part: str, whole: str, window: str = "10m") -> str:
    def rate(name: str) -> str:
        return f"sum by ({_BY_REPLICA}) (rate({name}[{window}]))"

    return f"{rate(part)} / {rate(whole)}"


def _moved(past: str = "") -> str:
    """Number of changes of K by the rule in 15 minutes, without trials."""
    causes = '{cause=~"gain|latency|probe_adopted"}'
    return f"sum by ({_BY_REPLICA}) (increase(peagle_replica_depth_changes_total{causes}[15m]{past}))"


FIRST = "replica:peagle_first_position_acceptance:ratio_rate10m"
FIRST_OF_MODEL = "model:peagle_first_position_acceptance:ratio_rate10m"
EFFECTIVE = "replica:peagle_effective_depth:ratio_rate10m"
WAITING = "model:peagle_waiting_requests:sum"
_FIRST_POSITION = '{position="1"}'


def _inter_token(by: str) -> str:
    """Mean seconds between two outputs; no value for a nearly idle replica."""

    def rate(part: str) -> str:
        return f"sum by ({by}) (rate(peagle_replica_itl_seconds_{part}[10m]))"

    return f"({rate('sum')} / ({rate('count')} > 1))"


def _first(by: str) -> str:
    """Acceptance at position 1; no value without drafts, because one NaN would make an average over hours NaN."""

    def rate(name: str) -> str:
        return f"sum by ({by}) (rate(peagle_replica_position_{name}_tokens_total{_FIRST_POSITION}[10m]))"

    return f"{rate('accepted')} / ({rate('draft')} > 0)"


RECORDINGS = (
    *(recording for objective in OBJECTIVES for recording in objective.recordings()),
    Recording(FIRST, _first(_BY_REPLICA)),
    Recording(FIRST_OF_MODEL, _first(BY)),
    Recording(
        EFFECTIVE, _of_replica("peagle_replica_draft_tokens_total", "peagle_replica_requested_draft_tokens_total")
    ),
    # In the engines' queues, in Serve's, and in between.
    Recording(WAITING, f"sum by ({BY}) (peagle_requests_open) - sum by ({BY}) (peagle_replica_running_requests)"),
    Recording("model:peagle_requests:rate5m", f"sum by ({BY}, outcome) (rate(peagle_requests_total[5m]))"),
    Recording(
        "model:peagle_generation_tokens:rate5m",
        f"sum by ({BY}) (rate(peagle_replica_generation_tokens_total[5m]))",
    ),
)


def _outcome_share(outcome: str) -> str:
    rate = "model:peagle_requests:rate5m"
    return f'sum by ({BY}) ({rate}{{outcome="{outcome}"}}) / sum by ({BY}) ({rate})'


SERVING = (
    Alert(
        "PeagleNoReplica",
        f"sum by ({BY}) (peagle_replicas_answering) == 0",
        "5m",
        "critical",
        "No replica of {{ $labels.model }} has answered for 5 minutes.",
        "The model is not served. `kubectl get rayservice,pods` shows missing pods, `peagle status` shows missing "
        "replicas, and the log of Ray Serve's controller shows why a replica does not start. Missing GPUs (check "
        "with `peagle cluster preflight`) and a drafter that does not match (`peagle validate`) are the usual "
        "reasons.",
    ),
    Alert(
        "PeagleReplicaFlaps",
        # A roll-out makes two changes per replica. The weights of a large model take long to load each time.
        "changes(peagle_replicas_answering[2h]) > 6 + 3 * max_over_time(peagle_replicas_answering[2h])",
        "5m",
        "warning",
        "Replicas of {{ $labels.model }} keep starting and stopping.",
        "The number of answering replicas changed more often in two hours than in a roll-out. Either a replica "
        "dies and is restarted repeatedly, or autoscaling oscillates. See Overview for replicas by state, and the "
        "log of the replica that started last. For autoscaling, narrow replicas.min and replicas.max.",
    ),
    Alert(
        "PeagleEngineStalls",
        f"sum by ({_BY_REPLICA}) (increase(peagle_replica_engine_stalls_total[15m])) > 0",
        "0m",
        "warning",
        "The engine of {{ $labels.replica }} stopped responding.",
        "It got no new requests during that time, and requests waiting for a first token went to other replicas. "
        "After replicas.hung_after_s the engine is ended and its replica replaced. See the replica's log, and Nodes "
        "for other load on its cores and for XID errors of its GPU.",
    ),
    Alert(
        "PeagleReplicaDoesNotStart",
        f'sum by ({BY}) (peagle_replicas{{state="starting"}}) > 0',
        "45m",
        "warning",
        "A replica of {{ $labels.model }} has been starting for 45 minutes.",
        "It is waiting for a GPU, downloading or loading weights, or failing and restarting. The log of Ray Serve's "
        "controller shows which, and the replica's log why it fails. If the autoscaler adds no nodes, `kubectl get "
        "pods` shows the pending pods.",
    ),
    Alert(
        "PeagleScrapeLost",
        # By model: after the head pod is replaced, the same series come from another pod.
        "(max by (namespace, model) (max_over_time(peagle_replicas_answering[1h])) "
        "unless max by (namespace, model) (max_over_time(peagle_replicas_answering[5m]))) "
        "or absent_over_time(peagle_replicas_answering[1h])",
        "2m",
        "critical",
        "The platform's metrics are missing{{ with $labels.model }} ({{ . }}){{ end }}.",
        "No scrape has returned a model's series for 5 minutes, so its other alerts cannot fire. If the model was "
        "removed, this alert ends within an hour. Otherwise see the target in Prometheus: the head's proxy may be "
        "down, or a network policy may block Prometheus from port 8000 (networkPolicy.monitoring).",
    ),
    Alert(
        "PeagleScrapeGaps",
        "count_over_time(peagle_replicas_answering[10m]) "
        "< 0.75 * count_over_time(peagle_replicas_answering[10m] offset 1h)",
        "10m",
        "warning",
        "A quarter of the scrapes of {{ $labels.model }} fail.",
        "Fewer samples arrived in ten minutes than an hour before. Scrapes call every replica and wait up to "
        "api.probe_timeout_s: a hanging engine or an overloaded ingress delays them. See the scrape duration of the "
        "target in Prometheus, and Router for requests by ingress process.",
    ),
    Alert(
        "PeagleRequestsFail",
        f"{_outcome_share('failed')} > 0.01",
        "5m",
        "critical",
        "More than 1 % of requests to {{ $labels.model }} fail.",
        "Requests end with a server error, before or during their answer. See Router for retries: many retries mean "
        "that replicas die. The ingress's log has the reason of each failure.",
    ),
    Alert(
        "PeagleRequestsShed",
        f"{_outcome_share('shed')} > 0.05",
        "10m",
        "warning",
        "More than 5 % of requests to {{ $labels.model }} are refused.",
        "No replica has capacity for them, and clients are told to retry. Raise replicas.max, or "
        "routing.max_queued_requests if clients should rather wait.",
    ),
    Alert(
        "PeagleQueueGrows",
        f"min_over_time({WAITING}[10m]) > 0.5 * sum by ({BY}) (peagle_replica_running_requests)",
        "5m",
        "warning",
        "The queue of {{ $labels.model }} is long and does not shrink.",
        "Requests arrive faster than replicas finish them: for 15 minutes, waiting requests have exceeded half of the "
        "running ones, in engines or before them (Router shows both). Raise replicas.max; if no GPUs are left, lower "
        "routing.max_queued_requests, so that clients are refused early.",
    ),
    Alert(
        "PeagleCacheFull",
        "peagle_replica_kv_usage_ratio > 0.95",
        "15m",
        "warning",
        "The KV cache of {{ $labels.replica }} has been full for 15 minutes, so requests have to wait.",
        "See Engine for preemptions: each recomputes a request. Raise the model's replicas.max, or lower "
        "max_model_len or max_num_seqs in its engine section.",
    ),
    Alert(
        "PeagleDispatchIsBlind",
        f'sum by ({BY}) (rate(peagle_dispatch_decisions_total{{reason=~".*least-in-flight"}}[10m])) '
        f"> 0.5 * sum by ({BY}) (rate(peagle_dispatch_decisions_total[10m]))",
        "10m",
        "warning",
        "Most requests to {{ $labels.model }} are dispatched without reports from the replicas.",
        "Ingresses know only the requests that they sent themselves, not long prompts or slow replicas. The Router is "
        "down or unreachable: see its deployment in `serve status`, and its log. Ray restarts it, and reports resume "
        "within seconds.",
    ),
    Alert(
        "PeagleReplicaSlow",
        f"{_inter_token(_BY_REPLICA)} > on ({BY}) group_left 2 * quantile by ({BY}) (0.5, {_inter_token(_BY_REPLICA)})",
        "15m",
        "warning",
        "{{ $labels.replica }} takes twice as long per token as the median of the model's replicas.",
        "Dispatch sends it fewer requests, and its requests are slow. See Nodes for other load on its cores, a full "
        "disk, and the clocks, temperature and XID errors of its GPU. Delete its pod: a replacement starts first.",
    ),
)

NODES = (
    Alert(
        "PeagleRayRestarts",
        'increase(kube_pod_container_status_restarts_total{container=~"ray-head|ray-worker"}[30m]) > 0',
        "1m",
        "warning",
        "The Ray container in {{ $labels.pod }} has restarted.",
        "Its replicas are lost; if it is the head and gcs.store is none, all replicas of the cluster are. `kubectl "
        "describe pod` shows why the last container ended: for OOMKilled, raise the memory of the head or the worker "
        "group; for a failed liveness probe, check the pod's CPU.",
    ),
    Alert(
        "PeagleGpuErrors",
        "changes(DCGM_FI_DEV_XID_ERRORS[15m]) > 0 and DCGM_FI_DEV_XID_ERRORS > 0",
        "1m",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} reports XID {{ $value }}.",
        "NVIDIA's list of XID errors says whether the application, the driver or the board is at fault. 48, 63, 64, "
        "79, 94 and 95 are board errors: cordon the node, which moves its replicas, and have the board checked.",
    ),
)

SPECULATION = (
    Alert(
        "PeagleAcceptanceCollapses",
        # Compared with the model's past, because new replicas of a roll-out have no past.
        f"({FIRST} < on ({BY}) group_left 0.5 * avg_over_time({FIRST_OF_MODEL}[6h] offset 30m)) and ({_drafted(50)})",
        "5m",
        "warning",
        "Acceptance on {{ $labels.replica }} has halved.",
        "The first draft token is accepted half as often as for the whole model in the hours before. A gradual fall "
        "comes from different prompts; "
        "a sudden one on every replica, from a drafter that does not match a new target; on one replica, from a fault "
        "of its engine. See Speculation for acceptance by position. Outputs stay exact; only speed is lost. With "
        "adaptive depth, the rule has already lowered K, and PUT /fleet/models/MODEL/depth can pin it to 0; otherwise "
        "set speculation.depth_static to 0. Compare the checkpoints with `peagle validate`.",
    ),
    Alert(
        "PeagleDepthIsNotApplied",
        f"({EFFECTIVE} < 0.75) and ({_drafted(200)})",
        "10m",
        "warning",
        "The engine of {{ $labels.replica }} verifies fewer draft tokens than planned.",
        "Requested and effective K differ by more than a quarter. It is harmless if answers are short or grammars cut "
        "drafts. Otherwise vLLM drafts less than requested: see the replica's log for live depth, and `/version` for "
        "an unsupported version of vLLM.",
    ),
    Alert(
        "PeagleStepsWithoutGraph",
        f'(sum by ({_BY_REPLICA}) (rate(peagle_replica_graph_steps_total{{graph!="full"}}[10m])) '
        f"> 0.1 * sum by ({_BY_REPLICA}) (rate(peagle_replica_graph_steps_total[10m]))) "
        # On an idle replica, many steps are the first steps of requests.
        f"and sum by ({_BY_REPLICA}) (increase(peagle_replica_graph_steps_total[10m])) > 1000",
        "10m",
        "warning",
        "More than a tenth of the decode steps of {{ $labels.replica }} run without a full CUDA graph.",
        "Each of these steps launches its kernels one by one, and can take more than twice as long. The replica's log "
        "shows the first step of each kind with the reason, and at its start the graphs that were not captured: raise "
        "speculation.graph_s_max and graph_gib_max if these budgets were the reason. If the attention backend replays "
        "only uniform batches, the cause is requests with different K (speculation.by_request, client bounds), or a "
        "pinned K that is not on the ladder.",
    ),
    Alert(
        "PeaglePlanIsNotApplied",
        "peagle_replica_plan_version offset 2m > peagle_replica_depth_version",
        "2m",
        "warning",
        "The engine of {{ $labels.replica }} does not apply the Router's plan.",
        "Its depth table is older than the plan of two minutes ago, so K no longer follows the load. The replica's log "
        "shows why applying it failed; a long engine step only delays it. Speculation shows both versions.",
    ),
    Alert(
        "PeagleDepthOscillates",
        # In two consecutive quarters of an hour: after a change of load, the rule settles within one.
        f"({_moved()} > 15 and {_moved(' offset 15m')} > 15) and on ({_BY_REPLICA}) "
        "stddev_over_time(peagle_replica_running_requests[30m]) "
        "< 0.25 * avg_over_time(peagle_replica_running_requests[30m])",
        "10m",
        "warning",
        "K of {{ $labels.replica }} keeps changing while its load does not.",
        "Two depths are predicted to be equally fast, or step times vary. GET /fleet/replicas/REPLICA/depth shows the "
        "last changes with their inputs. Only a little speed is lost; a floor and a ceiling for K stop it.",
    ),
    Alert(
        "PeaglePlanStale",
        "peagle_replica_plan_age_seconds > 60",
        "2m",
        "warning",
        "{{ $labels.replica }} has not heard from the Router for a minute.",
        "It keeps serving with its last plan, and dispatch uses only what ingresses know. Check whether the Router "
        "deployment is running (`serve status`), and its log. Ray restarts it and its state is rebuilt from reports.",
    ),
    Alert(
        "PeagleGoodputUnderPrediction",
        # The guard withdraws a wrong prediction, and its ratio, within seconds; only the fallback mode lasts.
        f'(sum by ({_BY_REPLICA}) (count_over_time(peagle_replica_depth_mode{{mode="fallback"}}[30m])) '
        f"> 0.5 * sum by ({_BY_REPLICA}) (count_over_time(peagle_replica_running_requests[30m]))) "
        f"or avg by ({_BY_REPLICA}) (avg_over_time(peagle_replica_goodput_ratio[15m])) < 0.9",
        "5m",
        "warning",
        "{{ $labels.replica }} generates less than its plans predict.",
        "For most of 30 minutes the guard has held the configured K because predictions failed, or tokens/s have "
        "stayed below 90 % of the prediction. The step time model does not fit this replica: other load on its cores "
        "or its GPU, throttling (see Nodes and GPUs for clocks), or requests of a new shape. The decision log "
        "(GET /fleet/replicas/REPLICA/depth) shows each fallback with its inputs.",
    ),
    Alert(
        "PeagleDepthFallsBack",
        "increase(peagle_replica_depth_fallbacks_total[1h]) >= 3",
        "1m",
        "warning",
        "The guard of {{ $labels.replica }} fell back to the configured K three times in an hour.",
        "Predictions fail repeatedly on this replica. The replica's log has each reason. Until the cause is found, pin "
        "the K that Speculation shows to be best.",
    ),
    Alert(
        "PeagleSpeculationCosts",
        "peagle_replica_speedup_high_ratio < 1 and peagle_replica_depth_planned > 0",
        "10m",
        "warning",
        "{{ $labels.replica }} would generate more tokens without speculation.",
        "The whole confidence interval of the speedup is below 1, but K is not 0. The rule alone would choose 0, so "
        "something else holds K: an operator's pin, floor or pause, or the guard's fallback to depth_static. `peagle "
        "status` shows which. Remove the limit with DELETE /fleet/replicas/REPLICA/depth or "
        "/fleet/models/MODEL/depth; if the guard falls back repeatedly, pin K to 0.",
    ),
)

OBJECTIVE_ALERTS = tuple(alert for objective in OBJECTIVES for alert in objective.alerts())
ALERTS = (*SERVING, *NODES, *SPECULATION, *OBJECTIVE_ALERTS)

GROUPS: dict[str, dict[str, Sequence[Recording | Alert]]] = {
    "recorded.yaml": {"peagle.recorded": RECORDINGS},
    "alerts.yaml": {
        "peagle.serving": SERVING,
        "peagle.nodes": NODES,
        "peagle.speculation": SPECULATION,
        "peagle.objectives": OBJECTIVE_ALERTS,
    },
}
