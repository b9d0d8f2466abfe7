"""From a collector's address to the environment that switches tracing on."""

import subprocess
import sys
from typing import Any

import pytest

from peagle.errors import ConfigError
from peagle.import_paths import TRACE_EXPORTER
from peagle.serve.launch.run import trace_environment
from peagle.tracing import environment

TRACES = "OTEL_EXPORTER_OTLP_TRACES_"


@pytest.mark.parametrize(
    ("url", "given", "endpoint", "protocol"),
    [
        ("http://collector:4317", {}, "http://collector:4317", "grpc"),
        ("https://collector:443", {}, "https://collector:443", "grpc"),
        ("http://collector:4318", {}, "http://collector:4318/v1/traces", "http/protobuf"),
        ("http://collector:4318/", {}, "http://collector:4318/v1/traces", "http/protobuf"),
        ("https://collector/api/otlp", {}, "https://collector/api/otlp", "http/protobuf"),
        ("http://[::1]:4317", {}, "http://[::1]:4317", "grpc"),
        ("http://c:4318", {f"{TRACES}PROTOCOL": "grpc"}, "http://c:4318", "grpc"),
        ("http://c:4317", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http://c:4317/v1/traces", "http/protobuf"),
    ],
)
def test_the_protocol_is_what_the_environment_says_or_else_the_address(
    url: str, given: dict[str, str], endpoint: str, protocol: str
) -> None:
    found = environment(url, 1.0, given)
    assert (found[f"{TRACES}ENDPOINT"], found[f"{TRACES}PROTOCOL"]) == (endpoint, protocol)


def test_the_edge_alone_decides_what_is_traced() -> None:
    found = environment("http://c:4317", 0.25, {"OTEL_SERVICE_NAME": "mine"})
    assert (found["OTEL_TRACES_SAMPLER"], found["OTEL_TRACES_SAMPLER_ARG"]) == ("parentbased_traceidratio", "0.25")
    assert found["RAY_SERVE_TRACING_SAMPLING_RATIO"] == "0"
    assert found["OTEL_SERVICE_NAME"] == "mine"


@pytest.mark.parametrize(
    ("url", "given", "message"),
    [
        ("collector:4317", {}, r"--traces-to = 'collector:4317': it is not an http or https URL with a host\. Write"),
        ("http://:4317", {}, "it is not an http or https URL with a host"),
        ("http://c:70000", {}, "--traces-to = 'http://c:70000': Port out of range"),
        ("http://[::1", {}, "Invalid IPv6 URL"),
        ("http://collector", {}, r"it has no port\. Write http://collector:4317\."),
        ("http://c:4317", {f"{TRACES}PROTOCOL": "http/json"}, f"{TRACES}PROTOCOL = 'http/json': .* Use grpc or"),
    ],
)
def test_an_address_that_takes_no_spans_is_refused(url: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        environment(url, 1.0, given)


def test_a_cluster_that_runs_already_is_told_by_its_own_environment() -> None:
    assert trace_environment(None, "ray://head:10001") == {}
    with pytest.raises(ConfigError, match=f"RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH={TRACE_EXPORTER}"):
        trace_environment(("http://c:4317", 1.0), "ray://head:10001")


def test_without_tracing_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys; from peagle.api.edge import middlewares; import peagle.serve.launch.run, peagle.tracing\n"
        "assert len(middlewares()) == 1\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("protocol", "kind"), [("grpc", "grpc"), ("http/protobuf", "http")])
def test_serve_gets_one_exporter_of_the_protocol(monkeypatch: pytest.MonkeyPatch, protocol: str, kind: str) -> None:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from ray.serve._private.tracing_utils import _load_span_processors

    from peagle import tracing

    made: list[SpanExporter] = []

    class Batched(BatchSpanProcessor):
        def __init__(self, exporter: SpanExporter, **options: Any) -> None:
            made.append(exporter)
            super().__init__(exporter, **options)

    monkeypatch.setattr("opentelemetry.sdk.trace.export.BatchSpanProcessor", Batched)
    for name, value in environment("http://127.0.0.1:9/x", 1.0, {f"{TRACES}PROTOCOL": protocol}).items():
        monkeypatch.setenv(name, value)
    tracing.processor.cache_clear()
    try:
        (processor,) = _load_span_processors(TRACE_EXPORTER, "unused")
        assert _load_span_processors(TRACE_EXPORTER, "unused") == [processor]
        (exporter,) = made
        assert f".{kind}." in type(exporter).__module__
        processor.shutdown()
    finally:
        tracing.processor.cache_clear()
