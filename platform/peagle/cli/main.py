"""The `peagle` command. Heavy libraries are imported only in the commands that need them, so that help is instant."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from peagle import __version__
from peagle.client.server_url import http_url
from peagle.errors import ConfigError, PeagleError
from peagle.import_paths import COMMAND_GROUPS

EXIT_STARTUP, EXIT_CONFIGURATION = 1, 2
EXTRAS = {
    "vllm": "peagle[cpu] or peagle[gpu]",
    "torch": "peagle[cpu] or peagle[gpu]",
    "speculators": "peagle[train]",
    "kubernetes": "peagle[kubernetes]",
    "matplotlib": "peagle[observe]",
}
DEFAULT_URL = "http://127.0.0.1:8000"

app = typer.Typer(
    name="peagle",
    help="Serve large language models with vLLM and P-EAGLE speculative decoding on Ray Serve.",
    epilog="Start here: peagle serve deployments/embedded.yaml, then peagle chat in another terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Deployment files, one per model.")]
Url = Annotated[str, typer.Option(help="URL of the server.", envvar="PEAGLE_URL", parser=http_url, metavar="URL")]
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def serve(
    files: Files,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join, such as ray://head:10001; by default one is started here.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Web origin that browsers may call from; repeatable. None by default."),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            help="File of API keys that clients must send: one per line, or YAML with names and limits. "
            "By default no key is required.",
            exists=True,
            dir_okay=False,
            readable=True,
            resolve_path=True,
        ),
    ] = None,
    traces_to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Collector for OpenTelemetry spans: http://collector:4317 for gRPC, or "
            "http://collector:4318/v1/traces for HTTP. OTEL_EXPORTER_OTLP_TRACES_PROTOCOL (grpc or http/protobuf) "
            "selects the protocol; if unset, a path or port 4318 means HTTP. No spans by default.",
        ),
    ] = None,
    traces_ratio: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of requests to trace, 0 to 1; a client's traceparent takes precedence."
        ),
    ] = 1.0,
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Count and time requests for /metrics.")
    ] = True,
) -> None:
    """Serve models over an OpenAI-compatible API.

    Runs until Ctrl-C. Checks the files and, on one machine, the checkpoints and the machine; starts every replica and
    prints the URL once all of them answer. Several files make one server with several models.

    Example: peagle serve deployments/embedded.yaml --port 8000
    """
    from peagle.serve.launch import run

    keys = str(keys_file) if keys_file else None
    api = {"cors_origins": cors_origin or [], "keys_file": keys, "metrics": metrics}
    traces = (traces_to, traces_ratio) if traces_to is not None else None
    raise typer.Exit(run.run(files, host=host, port=port, api=api, address=address, traces=traces))


@app.command()
def sagemaker() -> None:
    """Serve as a container of Amazon SageMaker.

    Listens on port 8080 of every address: /ping reports readiness, and /invocations takes chats and completions. The
    model is SM_VLLM_MODEL, or else the endpoint's model; other vLLM arguments are SM_VLLM_ plus their name, as in
    vLLM's own images. SM_VLLM_SPECULATIVE_CONFIG (JSON) names the drafter. Prints the resulting deployment file.

    Example: SM_VLLM_MODEL=openai/gpt-oss-20b peagle sagemaker
    """
    from peagle.serve.launch.sagemaker import serve_sagemaker

    raise typer.Exit(serve_sagemaker())


@app.command()
def validate(files: Files) -> None:
    """Check deployment files.

    Needs no GPU and downloads nothing. Checks every field, and names and types of engine arguments; vLLM checks their
    values at start. For local checkpoints it compares the drafter with its target: hidden size, vocabulary, mask token,
    tapped layers, trained depth. Lists all checks and problems; exits with 2 if there is a problem.

    Example: peagle validate deployments/*.yaml
    """
    from peagle.engine.checks.validate import validate_file

    failed = False
    for path in files:
        report = validate_file(path)
        failed = failed or bool(report.problems)
        typer.echo(f"{path}: {'wrong' if report.problems else 'ok'}")
        for check in report.checks:
            typer.echo(f"  {check.outcome:<12} {check.subject:<8} {check.name}: {check.detail}")
        for problem in report.problems:
            typer.echo(f"  {problem}")
    if failed:
        raise typer.Exit(EXIT_CONFIGURATION)


@app.command()
def chat(
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model to chat with; by default the first one served.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, max=2.0, help="Sampling temperature; 0 is greedy. Default: the model's own."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None,
) -> None:
    """Chat with a served model in the terminal.

    After each answer it prints tokens per second, time to first token, and acceptance length (tokens per verification
    step). Ctrl-C stops an answer, Ctrl-D exits. Also reads lines from a pipe. Set PEAGLE_API_KEY if the server requires
    a key.

    Example: echo 'def fibonacci(n):' | peagle chat --temperature 0
    """
    from peagle.cli.chat import run_chat

    raise typer.Exit(run_chat(url, model, max_tokens=max_tokens, temperature=temperature, system=system))


@app.command()
def status(
    url: Url = DEFAULT_URL,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between refreshes.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as JSON and exit.")] = False,
) -> None:
    """Show models and replicas: state, K, load, speed.

    K is the requested and the effective draft depth; AL is the acceptance length (tokens per verification). Speed
    is measured over one interval, which the table takes to appear.

    Example: peagle status --watch
    """
    from peagle.cli.status import run_status

    run_status(url, watch=watch, interval_s=interval, as_json=as_json)


@app.command()
def load(
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model to use; by default the first one served.")] = None,
    per_second: Annotated[
        str, typer.Option(help="Mean requests per second; several comma-separated rates are used in turn.")
    ] = "2",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds at each rate.")] = 60.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, max=2, help="Sampling temperature; 0 as in the benchmarks. Higher values lower the acceptance."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed sends the same requests at the same times.")] = 0,
) -> None:
    """Send requests at random times, to put load on a server.

    Streams completions of the benchmarks' prompts, without waiting for earlier answers, and prints the results. Set
    PEAGLE_API_KEY if the server requires a key.

    Example: peagle load --per-second 1,8,2 --seconds 60
    """
    from peagle.observe.request_load import run_load

    run_load(url, model, per_second, seconds, max_tokens, temperature, seed)


@app.command()
def observe(
    url: Url = DEFAULT_URL,
    dashboards: Annotated[Path, typer.Option(help="Folder of dashboards and rules.")] = Path("dashboards/generated"),
    prometheus_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Prometheus.")] = 9090,
    grafana_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Grafana.")] = 3000,
) -> None:
    """Start Prometheus, and Grafana if installed, for a running server.

    Both listen on this machine only, with rules and dashboards set up. Runs until Ctrl-C and stores no data after that.

    Example: peagle observe --url http://127.0.0.1:8000
    """
    from peagle.observe.services import run_observe

    run_observe(url, dashboards, prometheus_port, grafana_port)


@app.command(context_settings=FORWARD, add_help_option=False)
def dashboards(context: typer.Context) -> None:
    """Draw the dashboards without Grafana.

    Example: peagle dashboards preview
    """
    _forward("dashboards", context)


@app.command(context_settings=FORWARD, add_help_option=False)
def drafter(context: typer.Context) -> None:
    """Train P-EAGLE and EAGLE-3 draft heads.

    Example: peagle drafter --help
    """
    _forward("drafter", context)


@app.command(context_settings=FORWARD, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure speculation on this machine.

    Example: peagle bench speculation deployments/embedded.yaml
    """
    _forward("bench", context)


@app.command(context_settings=FORWARD, add_help_option=False)
def cluster(context: typer.Context) -> None:
    """Check a Kubernetes cluster, inspect a release, drain nodes.

    Example: peagle cluster preflight -f helm/peagle/values/gpt-oss-20b.yaml
    """
    _forward("cluster", context)


@app.command()
def version(
    seams: Annotated[
        bool, typer.Option("--seams", help="List the replaced and private symbols of vLLM and Ray.")
    ] = False,
) -> None:
    """Print the version.

    Example: peagle version
    """
    if seams:
        from peagle.cli.seams import print_seams

        print_seams()
    else:
        typer.echo(__version__)


def _forward(command: str, context: typer.Context) -> None:
    """Pass the rest of the command line to a command group, which is imported only now."""
    module, _, name = COMMAND_GROUPS[command].partition(":")
    group: typer.Typer = getattr(import_module(module), name)
    group(args=context.args or ["--help"], prog_name=context.command_path)


def main() -> None:
    """Run the command line. An error that a user can fix is one line on stderr: exit 2 for configuration, else 1."""
    try:
        app()
    except PeagleError as error:
        print(f"peagle: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIGURATION if isinstance(error, ConfigError) else EXIT_STARTUP)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"peagle: {error.name} is not installed. Install {extra}.", file=sys.stderr)
        sys.exit(EXIT_STARTUP)


if __name__ == "__main__":
    main()
