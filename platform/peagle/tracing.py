"""OpenTelemetry tracing: the environment that switches it on, and what the processes that have it do with their spans.

OpenTelemetry's standard variables say where spans go and which requests are traced; `environment` writes them for an
address. Nothing of OpenTelemetry is imported here until a process that has tracing on makes its first span.
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

# What holds wherever spans go.
ENVIRONMENT: Mapping[str, str] = {
    EXPORTER_VARIABLE: TRACE_EXPORTER,
    # Each of Serve's processes would draw anew, and start a trace in the middle of a request; the edge draws for all.
    "RAY_SERVE_TRACING_SAMPLING_RATIO": "0",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
}
SERVICE_NAME = "peagle"


def environment(url: str, ratio: float, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables under which every process of the platform sends its spans to `url`.

    Args:
        url: A collector: `http://collector:4317` for gRPC, `http://collector:4318/v1/traces` for HTTP. A path or port
            4318 says HTTP, unless one of `PROTOCOL_VARIABLES` is given.
        ratio: Share of the requests that are traced, of those whose client has not decided it, 0 to 1.
        given: The environment to add to; what it says of protocol and service name stays.

    Raises:
        ConfigError: No spans can be sent there.
    """
    parts, port = _parsed(url)
    protocol = protocol_in(given, HTTP if parts.path.strip("/") or port == HTTP_PORT else GRPC)
    if protocol == GRPC and port is None:
        raise ConfigError("--traces-to", url, "it names no port", f"Write {parts.scheme}://{parts.hostname}:4317.")
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
        raise ConfigError("--traces-to", url, "it is no URL with http or https and a host", fix)
    return parts, port


def protocol_in(given: Mapping[str, str], otherwise: str = GRPC) -> str:
    """Return the protocol that `given`, an environment, asks for. Raises ConfigError where it is unknown."""
    for name in PROTOCOL_VARIABLES:
        if protocol := given.get(name):
            if protocol not in PROTOCOLS:
                raise ConfigError(name, protocol, "spans cannot be sent that way", f"Use {' or '.join(PROTOCOLS)}.")
            return protocol
    return otherwise


def is_on() -> bool:
    """Whether tracing is on here: Serve makes spans in this process, and hands them to `processors`."""
    return os.environ.get(EXPORTER_VARIABLE) == TRACE_EXPORTER


def processors() -> "list[SpanProcessor]":
    """What Serve hands its spans to; it calls this in each of its processes that has tracing on."""
    return [processor()]


@cache
def processor() -> "SpanProcessor":
    """The one exporter of this process: it sends in a thread, and drops spans rather than let a request wait."""
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
    """Makes the first span of each request, and by its sampler decides for all the others."""
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    provider.add_span_processor(processor())
    return provider.get_tracer("peagle")


def context_of(headers: Mapping[str, str]) -> Any:
    """Return the trace context that `headers` carry; an empty one where they carry none that is well-formed."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers)


def continue_in(headers: MutableMapping[str, str], context: Any = None) -> None:
    """Write `context`, by default the current one, into `headers`; one that is in no trace leaves them as they are."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    TraceContextTextMapPropagator().inject(headers, context)
