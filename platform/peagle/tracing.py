"""OpenTelemetry tracing: the environment that switches it on, and the export of spans.

OpenTelemetry's standard variables define where spans are sent and which requests are traced; `environment` sets them
for an address. OpenTelemetry is imported only when a process with tracing enabled makes its first span.
"""

import os
from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from peagle.errors import ConfigError
from peagle.import_paths import TRACE_EXPORTER

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Tracer

GRPC, HTTP = "grpc", "http/protobuf"
PROTOCOLS = (GRPC, HTTP)
HTTP_PORT, HTTP_PATH = 4318, "/v1/traces"

ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTER_VARIABLE = "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH"

# Set for every collector.
ENVIRONMENT: Mapping[str, str] = {
    EXPORTER_VARIABLE: TRACE_EXPORTER,
    # Otherwise each Serve process would sample again and start traces within a request; the edge decides once.
    "RAY_SERVE_TRACING_SAMPLING_RATIO": "0",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
}
SERVICE_NAME = "peagle"


def environment(url: str, ratio: float, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make every process send its spans to `url`.

    Args:
        url: A collector: `http://collector:4317` for gRPC, `http://collector:4318/v1/traces` for HTTP. A path or port
            4318 selects HTTP, unless one of `PROTOCOL_VARIABLES` is given.
        ratio: Share of requests to trace, 0 to 1, among those whose client has not decided.
        given: The environment to add to; its protocol and service name are kept.

    Raises:
        ConfigError: `url` is not a valid collector address.
    """
    parts, port = _parsed(url)
    protocol = protocol_in(given, HTTP if parts.path.strip("/") or port == HTTP_PORT else GRPC)
    if protocol == GRPC and port is None:
        raise ConfigError("--traces-to", url, "it has no port", f"Write {parts.scheme}://{parts.hostname}:4317.")
    if protocol == HTTP and not parts.path.strip("/"):
        parts = parts._replace(path=HTTP_PATH)
    return {
        **ENVIRONMENT,
        ENDPOINT: parts.geturl(),
        PROTOCOL_VARIABLES[0]: protocol,
        "OTEL_TRACES_SAMPLER_ARG": str(ratio),
        "OTEL_SERVICE_NAME": given.get("OTEL_SERVICE_NAME", SERVICE_NAME),
    }


def _parsed(url: str) -> tuple[SplitResult, int | None]:
    fix = "Write http://HOST:4317 for gRPC, or http://HOST:4318/v1/traces for HTTP."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError("--traces-to", url, str(error), fix) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("--traces-to", url, "it is not an http or https URL with a host", fix)
    return parts, port


def protocol_in(given: Mapping[str, str], otherwise: str = GRPC) -> str:
    """Return the protocol set in the environment `given`. Raises ConfigError if it is unknown."""
    for name in PROTOCOL_VARIABLES:
        if protocol := given.get(name):
            if protocol not in PROTOCOLS:
                raise ConfigError(name, protocol, "unknown protocol for spans", f"Use {' or '.join(PROTOCOLS)}.")
            return protocol
    return otherwise


def is_on() -> bool:
    """Whether tracing is enabled in this process: Serve makes spans and passes them to `processors`."""
    return os.environ.get(EXPORTER_VARIABLE) == TRACE_EXPORTER


def processors() -> "list[SpanProcessor]":
    """Return the span processors; Serve calls this in each of its processes with tracing enabled."""
    return [processor()]


@cache
def processor() -> "SpanProcessor":
    """Return this process's exporter: it sends in a thread, and drops spans rather than delay a request."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    exporter: SpanExporter
    if protocol_in(os.environ) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter = HttpExporter()
    return BatchSpanProcessor(exporter)


@cache
def request_tracer() -> "Tracer":
    """Return the tracer of each request's first span; its sampler decides for all later spans."""
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    provider.add_span_processor(processor())
    return provider.get_tracer("peagle")


def context_of(headers: Mapping[str, str]) -> Any:
    """Return the trace context in `headers`; an empty context if there is none or it is malformed."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers)


def continue_in(headers: MutableMapping[str, str], context: Any = None) -> None:
    """Write `context` (default: the current one) into `headers`; outside a trace, `headers` stay unchanged."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    TraceContextTextMapPropagator().inject(headers, context)
