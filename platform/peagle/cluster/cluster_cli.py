"""`peagle cluster`: cluster checks, release status and node draining."""

import asyncio
import json
import logging
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_FAILED = 1

app = typer.Typer(
    name="cluster",
    help="Kubernetes: check a cluster before an install, inspect a release, drain nodes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; by default the current one.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; by default the context's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def preflight(
    values: Annotated[
        list[Path] | None,
        typer.Option("--values", "-f", metavar="FILE", help="Helm values, as for helm install; repeatable."),
    ] = None,
    chart: Annotated[Path, typer.Option(metavar="FOLDER", help="The chart, for its default values.")] = Path(
        "helm/peagle"
    ),
    release: Annotated[
        str, typer.Option(help="Name of the release: the resources of its own pods count as free.")
    ] = "peagle",
    namespace: Namespace = None,
    context: Context = None,
    scale_up: Annotated[
        bool, typer.Option("--scale-up", help="Nodes are added on demand: too few now is only a warning.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a cluster can run a release with these values.

    Only reads: versions, CRDs, GPU nodes, free capacity, storage, secrets (that a key exists, never its value) and
    policies. Each check passes, warns or fails, with the fix; exits with 1 if one fails.

    Example: peagle cluster preflight -f helm/peagle/values/gpt-oss-20b.yaml -n serving
    """
    from peagle.cluster.kube import connect
    from peagle.cluster.preflight.facts import gather
    from peagle.cluster.preflight.release_checks import Outcome, check_all
    from peagle.cluster.preflight.values import load_values
    from peagle.cluster.table import print_checks

    wanted = load_values(chart, values or [])

    async def look() -> Any:
        async with connect(context, namespace) as api:
            return await gather(api, wanted, release)

    checks = check_all(wanted, asyncio.run(look()), scale_up=scale_up)
    if as_json:
        typer.echo(json.dumps([check.as_json() for check in checks], indent=2))
    else:
        print_checks(checks)
    if any(check.outcome is Outcome.FAIL for check in checks):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def status(
    release: Annotated[str, typer.Option(help="Name of the release.")] = "peagle",
    namespace: Namespace = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Show a release: its RayService, pods and their nodes, and every replica with its K.

    The replicas' state is read in the head pod, so that no port has to be forwarded; this needs permission to run
    commands there (pods/exec).

    Example: peagle cluster status -n serving
    """
    from peagle.cluster.kube import connect
    from peagle.cluster.release_status import read_status
    from peagle.cluster.table import print_status

    async def look() -> Any:
        async with connect(context, namespace) as api:
            return await read_status(api, release)

    found = asyncio.run(look())
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        print_status(found)


@app.command()
def drain(
    release: Annotated[str, typer.Option(help="Name of the release whose workers to drain.")] = "peagle",
    namespace: Namespace = None,
    context: Context = None,
    patience: Annotated[
        float,
        typer.Option(min=0, metavar="S", help="Longest wait for replacements before replicas on a cordoned node stop."),
    ] = 900.0,
    finish: Annotated[
        float,
        typer.Option(min=1, metavar="S", help="Longest time for running requests to finish; api.request_timeout_s."),
    ] = 600.0,
    taint: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Additional taint that announces a node's removal; repeatable."),
    ] = None,
) -> None:
    """Drain nodes that are cordoned or about to be removed.

    Runs in the cluster until it is stopped. Within seconds such a node gets no new requests if its models also run
    elsewhere; replacements start, running requests finish, and the pod is evicted.

    Example: peagle cluster drain --release peagle --namespace serving
    """
    from peagle.cluster.drain.drain_actions import TERMINATION_TAINTS, DrainPolicy
    from peagle.cluster.drain.drainer import Drainer
    from peagle.cluster.drain.ray_nodes import Gcs
    from peagle.cluster.kube import connect

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    policy = DrainPolicy(patience, finish, frozenset((*TERMINATION_TAINTS, *(taint or ()))))

    async def work() -> None:
        async with connect(context, namespace) as api:
            await Drainer(api, release, policy, Gcs).run()

    asyncio.run(_until_stopped(work()))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or the process is asked to stop, which is not a failure."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("Stopped; draining nodes continue to drain")
