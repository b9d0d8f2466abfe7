"""Ray symbols that are overridden, or read although they are private. Plain data: Ray is not imported.

Rows for `api/` and `cluster/` are here as well, so that there is one table for Ray.
"""

from functools import partial

from peagle.upstream import Kind, Process, Seam

RAY_VERSIONS = ("2.60",)

_LLM = "ray.llm._internal"
_MODELS = f"{_LLM}.serve.core.configs.openai_api_models"
_INGRESS = f"{_LLM}.serve.core.ingress.ingress:OpenAiIngress"
_SERVER = f"{_LLM}.serve.core.server.llm_server:LLMServer"
_ENGINE = f"{_LLM}.serve.engines.vllm.vllm_engine:VLLMEngine"
_ROUTER = "ray.serve._private.request_router.request_router:RequestRouter"

_reads = partial(Seam, kind=Kind.READS, versions=RAY_VERSIONS)
_overrides = partial(Seam, kind=Kind.OVERRIDES, versions=RAY_VERSIONS)

_PUBLIC = "Ray exports it from a public module"
_PUBLIC_DRAIN = "Ray has a public call that lists and drains nodes"
_PUBLIC_ENGINE = "ray.serve.llm has a public way to set up an engine"
_PUBLIC_ROUTER = "Ray's request routers are told of requests that are cancelled before they are sent"

_INTERFACES = (
    *(
        _reads(f"{_MODELS}:{name}", why="The ingress parses bodies and answers in it.", removed_when=_PUBLIC)
        for name in (
            "ChatCompletionRequest",
            "CompletionRequest",
            "DetokenizeRequest",
            "ErrorInfo",
            "ErrorResponse",
            "ModelCard",
            "TokenizeChatRequest",
            "TokenizeCompletionRequest",
        )
    ),
    _reads(f"{_MODELS}:to_model_metadata", why="The ingress gets a card for each model.", removed_when=_PUBLIC),
    _reads(
        f"{_LLM}.serve.core.ingress.ingress:make_fastapi_ingress",
        why="It binds routes of peagle's own application to the ingress.",
        removed_when=_PUBLIC,
    ),
    _reads(_INGRESS, why="The ingress is a subclass.", removed_when=_PUBLIC),
    _reads(
        f"{_INGRESS}._default_serve_handles",
        why="Handles of every model, for calls to all replicas.",
        removed_when=_PUBLIC,
    ),
    _reads(f"{_INGRESS}._model_cards", why="The served models.", removed_when=_PUBLIC),
    _reads(f"{_INGRESS}._get_configured_serve_handle", why="A cached handle that streams.", removed_when=_PUBLIC),
    _overrides(
        f"{_INGRESS}._get_model_id",
        why="A missing or unknown model is answered with OpenAI's error object.",
        removed_when="Ray's ingress answers with OpenAI's error object",
    ),
    _reads(
        f"{_LLM}.serve.core.protocol:RawRequestInfo",
        why="It carries a client's headers to a replica.",
        removed_when=_PUBLIC,
    ),
    _reads(
        "ray.serve._private.http_util:ASGIAppReplicaWrapper.app",
        why="The ingress reads the counters of its application's middleware.",
        removed_when=_PUBLIC,
    ),
    _reads(
        "ray.serve._private.http_util:session_id_from_headers",
        why="Requests of one session go to one replica, whatever their header is called.",
        removed_when="Serve passes a session on to the second deployment",
    ),
    _reads(
        f"{_LLM}.common.callbacks.base:CallbackBase",
        why="A local checkpoint needs no download process.",
        removed_when=_PUBLIC,
    ),
    *(
        _reads(f"{_LLM}.common.errors:{name}", why="They distinguish vLLM's errors.", removed_when=_PUBLIC)
        for name in ("VLLM_CLIENT_ERRORS", "VLLM_FATAL_ERRORS")
    ),
)
_REPLICA = (
    _overrides(f"{_SERVER}._get_default_engine_class", why="The engine is a subclass.", removed_when=_PUBLIC_ENGINE),
    _overrides(
        f"{_SERVER}._start_engine",
        why="Ray's own reports usage through an extra process that imports all of vLLM.",
        removed_when="Ray reports usage without it",
    ),
    _overrides(
        f"{_SERVER}._run_request",
        why="A request whose engine has died goes to another, its errors are in the ingress's form, and its "
        "trace continues.",
        removed_when="Ray's server ends streams of a dead engine",
    ),
    _reads(_ENGINE, why="The engine is a subclass.", removed_when=_PUBLIC_ENGINE),
    _overrides(
        f"{_ENGINE}._prepare_engine_config",
        why="On CPU, Ray overwrites the requested executor with its own.",
        removed_when="Ray keeps `distributed_executor_backend` on CPU",
    ),
    *(
        _overrides(
            f"{_ENGINE}.{name}",
            why="Ray's own parses every number of an answer in the event loop, and has no rerank.",
            removed_when="Ray passes vLLM's bytes on",
        )
        for name in ("embeddings", "score")
    ),
    _reads(f"{_ENGINE}._engine_client", why="Depths and step times pass through vLLM's client.", removed_when=_PUBLIC),
    *(
        _reads(
            f"{_ENGINE}.{name}",
            why="Ray looks up vLLM's tokenizer endpoints under a name that vLLM 0.29 has changed.",
            removed_when="Ray finds them under `serving_tokenization`",
        )
        for name in ("_oai_serving_tokenization", "_app_state")
    ),
)
_ROUTING = (
    _overrides(
        f"{_ROUTER}._choose_replica_for_request",
        why="Requests of several clients take turns and wait for a bounded time; a cancelled request is removed.",
        removed_when=_PUBLIC_ROUTER,
    ),
    *(
        _overrides(
            f"{_ROUTER}.{name}",
            why="Requests of several clients get places in turn.",
            removed_when="Ray's request routers have a public way to order waiting requests",
        )
        for name in ("_get_next_pending_request_to_route", "_fulfill_next_pending_request")
    ),
    _reads(
        f"{_ROUTER}._pending_requests_to_route",
        why="A request taken out of turn is removed from the queue.",
        removed_when="Ray's request routers have a public way to order waiting requests",
    ),
    _reads(f"{_ROUTER}._replicas_list", why="The replicas as Serve last listed them.", removed_when=_PUBLIC_ROUTER),
    _reads(f"{_ROUTER}._event_loop", why="Events come from a Ray thread.", removed_when=_PUBLIC_ROUTER),
    _reads(
        "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter",
        why="Ray's own choice, without replicas on draining nodes.",
        removed_when=_PUBLIC,
    ),
    *(
        _reads(
            f"ray.serve._private.tracing_utils:{name}",
            why="Serve's span of a request records why its replica was chosen.",
            removed_when=_PUBLIC,
        )
        for name in ("is_span_recording", "set_span_attributes")
    ),
    _reads(
        "ray.serve.handle:DeploymentHandle._init",
        why="A request router asks the Router from a thread, whichever event loop Serve routes on.",
        removed_when="a handle's event loop can be chosen with its public options",
    ),
    _reads(
        "ray.serve.handle:DeploymentBroadcastResponse._fetch_replica_results_async",
        why="Each replica's answer has its own timeout; `results_async` discards all answers if one is slow.",
        removed_when="a broadcast's answers can be awaited individually",
    ),
    _reads(
        "ray.serve.context:_get_global_client",
        why="The controller's details report replica states in half the time of `serve.status`.",
        removed_when="`serve.status` is as quick",
    ),
)
_PORTS = (
    Seam(
        "ray.serve._private.replica:add_port_to_grpc_server",
        kind=Kind.REPLACES,
        why="In a one-machine cluster, replicas accept calls, which are pickled, only from that machine.",
        removed_when="Serve binds the port to the node's address, or asks for Ray's token",
        versions=RAY_VERSIONS,
        installed_by="peagle.api.loopback:answer_on_loopback",
        process=Process.SERVE,
    ),
)
_NODES = (
    _reads("ray._raylet:GcsClient", why="Draining nodes are read and drained through it.", removed_when=_PUBLIC_DRAIN),
    _reads(
        "ray.core.generated.gcs_pb2:GcsNodeInfo", why="It defines the states of a node.", removed_when=_PUBLIC_DRAIN
    ),
    _reads(
        "ray.core.generated.autoscaler_pb2:DrainNodeReason",
        why="A busy node accepts only this drain reason.",
        removed_when=_PUBLIC_DRAIN,
    ),
)
RAY_SEAMS: tuple[Seam, ...] = (*_INTERFACES, *_REPLICA, *_ROUTING, *_PORTS, *_NODES)
