"""Recording rules, and the alerts besides those of objectives."""

from collections.abc import Sequence

from dashboards.objectives import BY, OBJECTIVES
from dashboards.rules import Alert, Recording

_BY_REPLICA = "namespace, model, replica"


def _drafted(least: int) -> str:
    """Fewer drafts than this in ten minutes prove nothing."""
    return f"sum by ({_BY_REPLICA}) (increase(peagle_replica_drafts_total[10m])) > {least}"


def _of_replica(part: str, whole: str, window: str = "10m") -> str:
    def rate(name: str) -> str:
        return f"sum by ({_BY_REPLICA}) (rate({name}[{window}]))"

    return f"{rate(part)} / {rate(whole)}"


def _moved(past: str = "") -> str:
    """How often the rule changed K in a quarter of an hour, trials aside."""
    causes = '{cause=~"gain|latency|probe_adopted"}'
    return f"sum by ({_BY_REPLICA}) (increase(peagle_replica_depth_changes_total{causes}[15m]{past}))"


FIRST = "replica:peagle_first_position_acceptance:ratio_rate10m"
FIRST_OF_MODEL = "model:peagle_first_position_acceptance:ratio_rate10m"
EFFECTIVE = "replica:peagle_effective_depth:ratio_rate10m"
WAITING = "model:peagle_waiting_requests:sum"
_FIRST_POSITION = '{position="1"}'


def _inter_token(by: str) -> str:
    """Mean seconds between two tokens; nothing for a replica that gave hardly any."""

    def rate(part: str) -> str:
        return f"sum by ({by}) (rate(peagle_replica_itl_seconds_{part}[10m]))"

    return f"({rate('sum')} / ({rate('count')} > 1))"


def _first(by: str) -> str:
    """Nothing where nothing was drafted: one value that is no number would make an average over hours none."""

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
    # In engines' queues, in Serve's and between them.
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
        "Nothing of this model is served. `kubectl get rayservice,pods` shows whether pods are missing, `peagle "
        "status` whether replicas are, and the log of Ray Serve's controller why one does not start. Missing GPUs "
        "(`peagle cluster preflight` tells) and a drafter that does not match (`peagle validate`) are the usual "
        "reasons.",
    ),
    Alert(
        "PeagleReplicaFlaps",
        # A roll-out is two changes for each replica. The weights of a large model take long to load, each time.
        "changes(peagle_replicas_answering[2h]) > 6 + 3 * max_over_time(peagle_replicas_answering[2h])",
        "5m",
        "warning",
        "Replicas of {{ $labels.model }} come and go.",
        "The number of answering replicas changed more often in two hours than a roll-out makes it. That is a "
        "replica that dies and is started again, or autoscaling that cannot settle. See Overview for replicas by "
        "state, and the log of the replica that starts last. For autoscaling, narrow replicas.min and replicas.max.",
    ),
    Alert(
        "PeagleEngineStalls",
        f"sum by ({_BY_REPLICA}) (increase(peagle_replica_engine_stalls_total[15m])) > 0",
        "0m",
        "warning",
        "The engine of {{ $labels.replica }} has given no sign of life for a while.",
        "It got nothing new meanwhile, and what waited for a first token went to other replicas. After "
        "replicas.hung_after_s it is ended, and its replica replaced. See the replica's log, and Nodes for a process "
        "that is starved of its cores, and for XID errors of its GPU.",
    ),
    Alert(
        "PeagleReplicaDoesNotStart",
        f'sum by ({BY}) (peagle_replicas{{state="starting"}}) > 0',
        "45m",
        "warning",
        "A replica of {{ $labels.model }} has been starting for three quarters of an hour.",
        "It waits for a GPU, downloads or loads its weights, or fails and is started over and over. The log of Ray "
        "Serve's controller tells which, and the replica's own why it fails. Nodes that do not come are the "
        "autoscaler's: `kubectl get pods` shows those that are pending.",
    ),
    Alert(
        "PeagleScrapeLost",
        # By model: after the head's pod was replaced the same series come from another one.
        "(max by (namespace, model) (max_over_time(peagle_replicas_answering[1h])) "
        "unless max by (namespace, model) (max_over_time(peagle_replicas_answering[5m]))) "
        "or absent_over_time(peagle_replicas_answering[1h])",
        "2m",
        "critical",
        "The platform's metrics are gone{{ with $labels.model }} ({{ . }}){{ end }}.",
        "No scrape has brought a model's series for 5 minutes, so no other alert of it can fire. If the model was "
        "taken out of service this ends within the hour. Otherwise see the target in Prometheus: the head's proxy may "
        "be down, or a network policy may close port 8000 to Prometheus (networkPolicy.monitoring).",
    ),
    Alert(
        "PeagleScrapeGaps",
        "count_over_time(peagle_replicas_answering[10m]) "
        "< 0.75 * count_over_time(peagle_replicas_answering[10m] offset 1h)",
        "10m",
        "warning",
        "A quarter of the scrapes of {{ $labels.model }} fails.",
        "Fewer samples came in ten minutes than an hour before. Scrapes ask every replica and wait up to "
        "api.probe_timeout_s: an engine that hangs, or an overloaded ingress, makes them late. See the target's "
        "duration in Prometheus, and Router for requests by ingress process.",
    ),
    Alert(
        "PeagleRequestsFail",
        f"{_outcome_share('failed')} > 0.01",
        "5m",
        "critical",
        "More than 1 % of requests to {{ $labels.model }} fail.",
        "Requests end with a server's error, before or in the middle of their answer. See Router for retries: many of "
        "them mean replicas that die. The ingress' log has each failure's reason.",
    ),
    Alert(
        "PeagleRequestsShed",
        f"{_outcome_share('shed')} > 0.05",
        "10m",
        "warning",
        "More than 5 % of requests to {{ $labels.model }} are refused.",
        "Nothing can take them, and clients are told to come back. Raise replicas.max, or routing.max_queued_requests "
        "where clients would rather wait.",
    ),
    Alert(
        "PeagleQueueGrows",
        f"min_over_time({WAITING}[10m]) > 0.5 * sum by ({BY}) (peagle_replica_running_requests)",
        "5m",
        "warning",
        "The queue of {{ $labels.model }} has grown and stays.",
        "More requests come than replicas finish: for a quarter of an hour half as many have waited as run, in engines "
        "or before them (Router shows both). Raise replicas.max; at the most GPUs there are, lower "
        "routing.max_queued_requests, so that clients are told early.",
    ),
    Alert(
        "PeagleCacheFull",
        "peagle_replica_kv_usage_ratio > 0.95",
        "15m",
        "warning",
        "The key-value cache of {{ $labels.replica }} has been full for 15 minutes, so requests wait for room.",
        "See Engine for preemptions: each computes a request anew. Raise replicas.max of the model, or lower "
        "max_model_len or max_num_seqs in its engine section.",
    ),
    Alert(
        "PeagleDispatchIsBlind",
        f'sum by ({BY}) (rate(peagle_dispatch_decisions_total{{reason=~".*least-in-flight"}}[10m])) '
        f"> 0.5 * sum by ({BY}) (rate(peagle_dispatch_decisions_total[10m]))",
        "10m",
        "warning",
        "Most requests to {{ $labels.model }} are dispatched without a report of the replicas.",
        "Ingresses go by what they have sent themselves, so long prompts and slow replicas are not seen. The Router is "
        "gone or not reached: see its deployment in `serve status`, and its log. Ray starts it anew, and reports come "
        "back within seconds.",
    ),
    Alert(
        "PeagleReplicaSlow",
        f"{_inter_token(_BY_REPLICA)} > on ({BY}) group_left 2 * quantile by ({BY}) (0.5, {_inter_token(_BY_REPLICA)})",
        "15m",
        "warning",
        "{{ $labels.replica }} takes twice as long for a token as half of the model's replicas.",
        "Dispatch sends it less, and what it has is late. See Nodes for a neighbour on its cores or a full disk, and "
        "the clocks, temperature and XID errors of its GPU. Delete its pod: another replica starts before it is gone.",
    ),
)

NODES = (
    Alert(
        "PeagleRayRestarts",
        'increase(kube_pod_container_status_restarts_total{container=~"ray-head|ray-worker"}[30m]) > 0',
        "1m",
        "warning",
        "Ray's container in {{ $labels.pod }} has restarted.",
        "Its replicas are gone, and those of the whole cluster where it is the head and gcs.store is none. "
        "`kubectl describe pod` says why the last one ended: OOMKilled asks for more memory in the values of the head "
        "or the worker group, and a failed liveness probe for a look at the pod's CPU.",
    ),
    Alert(
        "PeagleGpuErrors",
        "changes(DCGM_FI_DEV_XID_ERRORS[15m]) > 0 and DCGM_FI_DEV_XID_ERRORS > 0",
        "1m",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} reports XID {{ $value }}.",
        "NVIDIA's list of XID errors says whether the application, the driver or the board is at fault. 48, 63, 64, "
        "79, 94 and 95 are the board's: cordon the node, which moves its replicas, and have it looked at.",
    ),
)

SPECULATION = (
    Alert(
        "PeagleAcceptanceCollapses",
        # Against the model's past: a roll-out brings replicas that have none of their own.
        f"({FIRST} < on ({BY}) group_left 0.5 * avg_over_time({FIRST_OF_MODEL}[6h] offset 30m)) and ({_drafted(50)})",
        "5m",
        "warning",
        "The drafts of {{ $labels.replica }} are right half as often as they were.",
        "The first draft token is accepted half as often as the model's was in the hours before. Different prompts do "
        "that by degrees; "
        "at once, on every replica, it is a drafter that does not match a new target; on one replica, a fault of that "
        "engine. See Speculation for acceptance by position. Outputs are the target's own all the same; speed is lost. "
        "Where depth adapts, the rule already answers with a shallow K, and PUT /fleet/models/MODEL/depth pins it to "
        "0; elsewhere set speculation.depth_static to 0. Compare the checkpoints with `peagle validate`.",
    ),
    Alert(
        "PeagleDepthIsNotApplied",
        f"({EFFECTIVE} < 0.75) and ({_drafted(200)})",
        "10m",
        "warning",
        "The engine of {{ $labels.replica }} verifies fewer draft tokens than its plan asks for.",
        "Requested and effective K differ by more than a quarter. Short answers end inside a draft and grammars cut "
        "drafts, which is harmless; otherwise vLLM drafts less than it is asked to: see the replica's log for live "
        "depth, and `/version` for a vLLM that it was not made for.",
    ),
    Alert(
        "PeagleStepsWithoutGraph",
        f'(sum by ({_BY_REPLICA}) (rate(peagle_replica_graph_steps_total{{graph!="full"}}[10m])) '
        f"> 0.1 * sum by ({_BY_REPLICA}) (rate(peagle_replica_graph_steps_total[10m]))) "
        # Of an idle replica's steps many are the first ones of requests.
        f"and sum by ({_BY_REPLICA}) (increase(peagle_replica_graph_steps_total[10m])) > 1000",
        "10m",
        "warning",
        "More than a tenth of the decode steps of {{ $labels.replica }} run without a full CUDA graph.",
        "Each of them launches its kernels one by one, and can take more than twice as long. The replica's log names "
        "the first of each kind with the reason, and at the start which graphs were left out: raise "
        "speculation.graph_s_max and graph_gib_max if it was for their budget. Where the attention backend replays "
        "uniform batches only, requests that differ in K are at fault (speculation.by_request, bounds of clients), or "
        "a K pinned that is not on the ladder.",
    ),
    Alert(
        "PeaglePlanIsNotApplied",
        "peagle_replica_plan_version offset 2m > peagle_replica_depth_version",
        "2m",
        "warning",
        "The engine of {{ $labels.replica }} does not take the Router's plan.",
        "Its depth table is older than the plan of two minutes ago, so K no longer follows the load. The replica's log "
        "says what setting it failed with; a long step of the engine only delays it. Speculation shows both versions.",
    ),
    Alert(
        "PeagleDepthOscillates",
        # In two quarters of an hour: what a new load makes the rule learn comes within one.
        f"({_moved()} > 15 and {_moved(' offset 15m')} > 15) and on ({_BY_REPLICA}) "
        "stddev_over_time(peagle_replica_running_requests[30m]) "
        "< 0.25 * avg_over_time(peagle_replica_running_requests[30m])",
        "10m",
        "warning",
        "K of {{ $labels.replica }} keeps changing while its load does not.",
        "Two depths promise the same, or step times jump. GET /fleet/replicas/REPLICA/depth has the last changes with "
        "what they were decided on. Nothing is lost but a little speed; a floor and a ceiling for K end it.",
    ),
    Alert(
        "PeaglePlanStale",
        "peagle_replica_plan_age_seconds > 60",
        "2m",
        "warning",
        "{{ $labels.replica }} has had no word of the Router for a minute.",
        "It serves on with its last plan, and dispatch goes by what ingresses know themselves. See whether the Router "
        "deployment runs (`serve status`), and its log. Ray starts it anew, and its state is rebuilt from reports.",
    ),
    Alert(
        "PeagleGoodputUnderPrediction",
        # The guard takes a prediction back within seconds, and the ratio with it; what lasts is that it has to.
        f'(sum by ({_BY_REPLICA}) (count_over_time(peagle_replica_depth_mode{{mode="fallback"}}[30m])) '
        f"> 0.5 * sum by ({_BY_REPLICA}) (count_over_time(peagle_replica_running_requests[30m]))) "
        f"or avg by ({_BY_REPLICA}) (avg_over_time(peagle_replica_goodput_ratio[15m])) < 0.9",
        "5m",
        "warning",
        "{{ $labels.replica }} generates less than its plans predict, and has mostly been without one.",
        "For most of half an hour the guard has held the configured K, since no prediction came true; or tokens/s have "
        "stayed under nine tenths of it. The model of step times does not fit this replica: a neighbour on its cores "
        "or its GPU, throttling (see Nodes and GPUs for clocks), or requests of a new shape. The log of decisions "
        "(GET /fleet/replicas/REPLICA/depth) has each fallback with what it was decided on.",
    ),
    Alert(
        "PeagleDepthFallsBack",
        "increase(peagle_replica_depth_fallbacks_total[1h]) >= 3",
        "1m",
        "warning",
        "The guard of {{ $labels.replica }} has gone back to the configured K three times in an hour.",
        "Predictions do not hold on this replica, again and again. The replica's log has each reason. Until the cause "
        "is found, pin the K that Speculation shows to be best.",
    ),
    Alert(
        "PeagleSpeculationCosts",
        "peagle_replica_speedup_high_ratio < 1 and peagle_replica_depth_planned > 0",
        "10m",
        "warning",
        "{{ $labels.replica }} drafts at a loss: without speculation it would generate more.",
        "The whole interval of the estimated gain lies below 1, and K is not 0. The rule by itself would have gone to "
        "0, so something keeps it: an operator's pin, floor or pause, or the guard's fallback to depth_static. `peagle "
        "status` says which. Take the limit back with DELETE /fleet/replicas/REPLICA/depth, or that of "
        "/fleet/models/MODEL/depth; where the guard falls back again and again, pin K to 0.",
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
