"""The `peagle` command. Heavy libraries load only inside the command that needs them, so that help is instant."""

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

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Deployment files, one for each model.")]
Url = Annotated[
    str, typer.Option(help="Where the server listens.", envvar="PEAGLE_URL", parser=http_url, metavar="URL")
]
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def serve(
    files: Files,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join, such as ray://head:10001; without it one starts here.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Web origin that browsers may call from; repeat it for more. None by default."),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            help="File of API keys, one on each line or YAML with names and limits, of which clients have to send one. "
            "Without it anyone may ask.",
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
            help="Collector to send OpenTelemetry spans to: http://collector:4317 for gRPC, or "
            "http://collector:4318/v1/traces for HTTP. OTEL_EXPORTER_OTLP_TRACES_PROTOCOL (grpc or http/protobuf) "
            "decides; where it is not set, a path or port 4318 says HTTP. No spans by default.",
        ),
    ] = None,
    traces_ratio: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of requests that are traced; a client's traceparent decides for its own."
        ),
    ] = 1.0,
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Count and time requests; /metrics has the figures.")
    ] = True,
) -> None:
    """Serve models over an OpenAI-compatible API.

    Runs until Ctrl-C. Checks the files and, on one machine, the checkpoints and the machine; starts every replica and
    prints the address once all of them answer. Several files make one server with several models.

    Example: peagle serve deployments/embedded.yaml --port 8000
    """
    from peagle.serve.launch import run

    keys = str(keys_file) if keys_file else None
    api = {"cors_origins": cors_origin or [], "keys_file": keys, "metrics": metrics}
    traces = (traces_to, traces_ratio) if traces_to is not None else None
    raise typer.Exit(run.run(files, host=host, port=port, api=api, address=address, traces=traces))


@app.command()
def sagemaker() -> None:
    """Serve as Amazon SageMaker runs a container.

    Listens on port 8080 of every address, where /ping tells whether it is ready and /invocations takes chats and
    completions. The model is SM_VLLM_MODEL, else the one that the endpoint was given; other arguments of vLLM are
    SM_VLLM_ and their name, as for vLLM's own images. SM_VLLM_SPECULATIVE_CONFIG (JSON) names the drafter. Prints the
    deployment file that comes of it.

    Example: SM_VLLM_MODEL=openai/gpt-oss-20b peagle sagemaker
    """
    from peagle.serve.launch.sagemaker import serve_sagemaker

    raise typer.Exit(serve_sagemaker())


@app.command()
def validate(files: Files) -> None:
    """Check deployment files.

    Needs no GPU and downloads nothing. Reads every field, names and types of engine arguments, whose values vLLM checks
    itself, and for local checkpoints compares the drafter with its target: hidden size, vocabulary, mask token, tapped
    layers, trained depth. Lists what was checked and what is wrong; exits with 2 if anything is.

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
    model: Annotated[str | None, typer.Option(help="Model to talk to; by default the first one served.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, max=2.0, help="0 always takes the likeliest token; default: the model's own."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message that leads the conversation.")] = None,
) -> None:
    """Talk to a served model in the terminal.

    After each answer: tokens per second, time to first token, and how many tokens each verification step gave
    (acceptance length). Ctrl-C stops an answer, Ctrl-D leaves. Reads lines from a pipe as well. PEAGLE_API_KEY is the
    key where the server asks for one.

    Example: echo 'def fibonacci(n):' | peagle chat --temperature 0
    """
    from peagle.cli.chat import run_chat

    raise typer.Exit(run_chat(url, model, max_tokens=max_tokens, temperature=temperature, system=system))


@app.command()
def status(
    url: Url = DEFAULT_URL,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between two reads.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as JSON and leave.")] = False,
) -> None:
    """Show models and replicas: state, K, load, speed.

    K is the draft depth asked for and the one in effect; AL is the acceptance length, the tokens that one verification
    step gives. Speed is counted between two reads, so the table takes one interval to appear.

    Example: peagle status --watch
    """
    from peagle.cli.status import run_status

    run_status(url, watch=watch, interval_s=interval, as_json=as_json)


@app.command()
def load(
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model to ask; by default the first one served.")] = None,
    per_second: Annotated[
        str, typer.Option(help="Requests each second, on average; several numbers with commas come in turn.")
    ] = "2",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="How long at each of them.")] = 60.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, max=2, help="Of sampling; 0 as the benchmarks have it. The higher, the fewer drafts are right."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same requests at the same times.")] = 0,
) -> None:
    """Send requests at random times, so that there is something to look at.

    Streams completions of the prompts that the benchmarks use, whether or not earlier ones are answered, and prints
    what came of them. PEAGLE_API_KEY is the key where the server asks for one.

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
    """Start Prometheus, and Grafana where there is one, on a running server.

    Both listen on this machine alone, with rules and dashboards in place. Runs until Ctrl-C, and keeps nothing.

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
    """Measure what speculation gives on this machine.

    Example: peagle bench speculation deployments/embedded.yaml
    """
    _forward("bench", context)


@app.command(context_settings=FORWARD, add_help_option=False)
def cluster(context: typer.Context) -> None:
    """Check a Kubernetes cluster, look at a release, drain nodes.

    Example: peagle cluster preflight -f helm/peagle/values/gpt-oss-20b.yaml
    """
    _forward("cluster", context)


@app.command()
def version(
    seams: Annotated[
        bool, typer.Option("--seams", help="Print what is replaced in vLLM and Ray, or private there and used.")
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
    """Hand the rest of the command line to a command group that is imported only now."""
    module, _, name = COMMAND_GROUPS[command].partition(":")
    group: typer.Typer = getattr(import_module(module), name)
    group(args=context.args or ["--help"], prog_name=context.command_path)


def main() -> None:
    """Run the command line. A mistake that a user can mend is one line on stderr: exit 2 for configuration, else 1."""
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
