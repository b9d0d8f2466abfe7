"""`peagle drafter`: trains draft heads for a target, and the embedded model from scratch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from peagle.host.folders import make_folder

if TYPE_CHECKING:
    from peagle.drafter.train.compute import Compute
    from peagle.drafter.train.prepare import Job
    from peagle.drafter.train.training import Progress as TrainingProgress

app = typer.Typer(
    no_args_is_help=True,
    help="Train draft heads. From scratch: target, generate, train (once per method), evaluate, prompts.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
console = Console(stderr=True)

TARGET = Annotated[
    str, typer.Argument(help="The target model: its folder, or a Hugging Face repository as org/name[@revision].")
]
OUT = Annotated[Path, typer.Option(help="Folder of the result; an interrupted run in it continues.")]
STEPS = Annotated[int | None, typer.Option(help="Optimizer steps; by default the plan's.", min=1)]
PROMPTS = Annotated[int | None, typer.Option(help="Number of prompts; by default the plan's.", min=1)]
FILE = Annotated[Path, typer.Option(help="The file to write.", dir_okay=False, writable=True)]
THREADS = Annotated[int, typer.Option(help="CPU threads to use; 0 for PyTorch's default.", min=0)]


@app.command()
def target(out: OUT, threads: THREADS = 0) -> None:
    """Train the embedded model on the standard library of this Python.

    Example: peagle drafter target --out deployments/embedded/target
    """
    from peagle.drafter.data.corpus import standard_library
    from peagle.drafter.train.target_training import TargetPlan, train_target

    make_folder("--out", out)
    _use_threads(threads)
    plan = TargetPlan()
    corpus = standard_library()
    console.print(f"{corpus.source}: {len(corpus.train)} files to train on, {len(corpus.held_out)} held out")
    with _Bar("target", plan.steps) as bar:
        loss = train_target(corpus, out, plan, bar.report)
    console.print(f"held-out loss {loss:.3f} nats per token; {out} is ready")


@app.command()
def generate(
    target: TARGET,
    out: FILE,
    prompts: PROMPTS = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Generate greedily, from the standard library's held-out files: text to evaluate a head on. A FILE of"
            " your own should then hold text that no training uses.",
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Random seed; by default the plan's.", min=0)] = None,
    prompts_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text to continue: prompts and chats, one JSON object a line, in a .jsonl; or any UTF-8 text. By"
            " default Python's standard library.",
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send a .jsonl's texts as user messages of chats.")] = False,
    row_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens of a row, prompt and answer; by default the plan's.", min=32)
    ] = None,
    tensor_parallel: Annotated[int, typer.Option(help="GPUs across which to split the target.", min=1)] = 1,
) -> None:
    """Let the target continue prompts: the text on which its heads are trained or evaluated.

    Example: peagle drafter generate deployments/embedded/target --out generated.npz
    Example: peagle drafter generate deployments/embedded/target --held-out --prompts 256 --out held_out.npz
    Example: peagle drafter generate org/name --prompts-from chats.jsonl --row-tokens 2048 --out generated.npz
    """
    from dataclasses import replace

    from peagle.drafter.data.corpus import read_tokenizer
    from peagle.drafter.data.repository import local_target

    folder = local_target(target, "TARGET")
    tokenizer = read_tokenizer(folder)

    # Errors up to here are reported at once; these imports take seconds.
    from peagle.drafter.data.generation import generate as generate_rows
    from peagle.drafter.data.prompt_source import GenerationPlan, ask
    from peagle.drafter.train.prepare import target_shape
    from peagle.engine.checkpoint import Folder

    plan = GenerationPlan()
    plan = replace(
        plan,
        prompts=prompts or plan.prompts,
        row_tokens=row_tokens or plan.row_tokens,
        greedy_ratio=1.0 if held_out else plan.greedy_ratio,
        seed=plan.seed if seed is None else seed,
    )
    plan.check(target_shape(Folder(folder, "target"), tokenizer).context_tokens)
    make_folder("--out", out.parent)
    asked = ask(folder, tokenizer, plan, prompts_from, as_chat=chat, held_out=held_out)
    text, left_out = generate_rows(folder, asked, plan, tensor_parallel)
    text.save(out)
    console.print(f"{len(text.tokens)} rows of {text.written.size} tokens in {out}; left out: {left_out}")


@app.command()
def train(
    target: Annotated[
        str | None, typer.Argument(help="The target model: its folder, or a repository as org/name[@revision].")
    ] = None,
    generated: Annotated[Path | None, typer.Argument(help="Rows from `peagle drafter generate`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the head; an interrupted run in it continues.")] = None,
    plan: Annotated[Path | None, typer.Option(help="YAML file with all of these settings, and more.")] = None,
    method: Annotated[str | None, typer.Option(help="p-eagle (the default) or eagle3.")] = None,
    layers: Annotated[int | None, typer.Option(help="By default 4 for p-eagle, 1 for eagle3.", min=1)] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a head from whose weights to continue; optimizers and schedule start from the beginning."
        ),
    ] = None,
    steps: STEPS = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads to use; 0 for PyTorch's default.", min=0)] = None,
) -> None:
    """Train a draft head for a target, on the target's own text and a share of the corpus.

    Text, tokenizer, mask token, tapped layers and memory are checked before the long part. Training uses a GPU if there
    is one (see training.device in the plan). With torchrun several processes, one for each GPU, share the rows of every
    step; the head is the same.

    Example: peagle drafter train deployments/embedded/target generated.npz --out deployments/embedded/p-eagle
    Example: peagle drafter train TARGET generated.npz --start HEAD --out head
    Example: peagle drafter train --plan deployments/embedded/p-eagle-training.yaml
    Example: torchrun --nproc-per-node 8 -m peagle.cli drafter train --plan plan.yaml
    """
    from peagle.drafter.train.compute import joined
    from peagle.drafter.train.prepare import Job

    if plan is not None:
        from peagle.drafter.train.plan_file import load_training

        _only_the_plan(target, generated, out, method, layers, start, steps, threads)
        file = load_training(plan)
        job, threads = Job.of(file), file.training.threads
    else:
        job = _job(target, generated, out, method or "p-eagle", layers, start, steps)
    make_folder("out" if plan is not None else "--out", job.out)
    _use_threads(threads or 0)
    with joined(job.device, "training.device") as compute:
        _train(job, compute)


def _train(job: "Job", compute: "Compute") -> None:
    from peagle.drafter.train.prepare import prepare, train_job
    from peagle.drafter.train.training import checkpoint_step

    material = compute.agree(lambda: prepare(job, compute))
    console.quiet = not compute.leads
    if done := checkpoint_step(job.out):
        console.print(f"Continuing in {job.out}: {done} of {job.plan.steps} steps are done.")
    with _Bar(job.plan.method, job.plan.steps) as bar:
        train_job(job, material, bar.report, compute)
    console.print(f"{job.out} is ready")


def _only_the_plan(*others: object) -> None:
    from peagle.errors import ConfigError

    if any(other is not None for other in others):
        raise ConfigError("--plan", None, "the plan contains all settings", "Remove the other options and arguments.")


def _job(
    target: str | None,
    generated: Path | None,
    out: Path | None,
    method: str,
    layers: int | None,
    start: Path | None,
    steps: int | None,
) -> "Job":
    from dataclasses import replace

    from peagle.drafter.data.repository import local_target
    from peagle.drafter.train.head_plan import HEAD_PLANS
    from peagle.drafter.train.prepare import Job
    from peagle.drafter.train.pretrained import read_plan
    from peagle.errors import ConfigError

    if target is None or generated is None or out is None:
        fix = "Name TARGET, GENERATED and --out, or a --plan."
        raise ConfigError("peagle drafter train", None, "target, rows or output folder is missing", fix)
    if not generated.exists():
        raise ConfigError("GENERATED", str(generated), "there is no such path", "Name an existing file.")
    if method not in HEAD_PLANS:
        raise ConfigError("--method", method, "there is no such method", f"Write {' or '.join(HEAD_PLANS)}.")
    plan = HEAD_PLANS[method]
    if start is not None:
        known = read_plan(start, "--start")
        plan = replace(
            plan,
            layers=known.layers,
            trained_depth=known.trained_depth,
            markov_rank=known.markov_rank or plan.markov_rank,
            ngram_bias_nats=known.ngram_bias_nats if known.markov_rank else plan.ngram_bias_nats,
            tapped_layers=known.tapped_layers,
            start=str(start.resolve()),
        )
    plan = replace(plan, layers=layers or plan.layers, steps=steps or plan.steps)
    return Job(local_target(target, "TARGET"), generated, out, plan)


@app.command()
def evaluate(
    target: TARGET,
    head: Annotated[Path, typer.Argument(help="Folder of the draft head.", exists=True, file_okay=False)],
    generated: Annotated[Path, typer.Argument(help="Rows from `peagle drafter generate --held-out`.", exists=True)],
    depth: Annotated[int | None, typer.Option(help="Tokens to draft (K); by default the trained depth.", min=1)] = None,
    rows: Annotated[int | None, typer.Option(help="Number of rows to use; by default all.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto uses a GPU if there is one.")] = "auto",
    threads: THREADS = 0,
) -> None:
    """Measure how many of a head's drafts its target would accept, without an engine.

    AL is the acceptance length, the tokens that one verification step yields. Drafts are greedy, and accepted if the
    target wrote the same tokens; an engine's arithmetic may differ in a few tokens.

    Example: peagle drafter evaluate deployments/embedded/target deployments/embedded/p-eagle held_out.npz
    """
    from peagle.drafter.data.generated_text import GeneratedText
    from peagle.drafter.data.repository import local_target
    from peagle.drafter.evaluate import evaluate as evaluate_rows
    from peagle.drafter.train.compute import device_of

    place = device_of(device, "--device")
    text = GeneratedText.load(generated).first(rows)
    folder = local_target(target, "TARGET")
    _use_threads(threads)
    with Progress(TextColumn("rows"), BarColumn(), TextColumn("{task.completed}/{task.total}"), console=console) as bar:
        task = bar.add_task("rows", total=len(text.tokens))
        found = evaluate_rows(folder, head, text, depth, lambda done: bar.update(task, completed=done), place)
    if as_json:
        typer.echo(found.as_json())
        return
    table = Table("position", "accepted", "share of drafts", title=f"{found.method}, K = {found.depth}")
    for position, count in enumerate(found.accepted_steps):
        table.add_row(str(position + 1), str(count), f"{found.acceptance_by_position[position]:.3f}")
    Console().print(table)
    typer.echo(
        f"AL {found.acceptance_length:.2f} over {found.steps} drafts, {found.rows - found.rows_left_out} rows"
        f" ({found.rows_left_out} more are not greedy text of this target)"
    )


@app.command()
def prompts(out: FILE, count: Annotated[int, typer.Option(min=1)] = 384) -> None:
    """Write held-out prompts for tests and benchmarks, one JSON object a line.

    Example: peagle drafter prompts --out platform/peagle/bench/data/held_out.jsonl
    """
    from peagle.drafter.data.corpus import standard_library
    from peagle.drafter.data.held_out_prompts import held_out_prompts

    make_folder("--out", out.parent)
    lines = [json.dumps({"prompt": prompt}) for prompt in held_out_prompts(standard_library(), count)]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    console.print(f"{len(lines)} prompts in {out}")


def _use_threads(threads: int) -> None:
    import torch

    if threads:
        torch.set_num_threads(threads)


class _Bar:
    """A progress bar that shows loss, speed and, for a head, accuracy by draft position; one log line in a pipe."""

    def __init__(self, name: str, steps: int) -> None:
        columns = (TextColumn(name), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._task = self._progress.add_task(name, total=steps, note="")

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, progress: "TrainingProgress") -> None:
        accuracy = " ".join(f"{each:.2f}" for each in progress.accuracy)
        note = f"loss {progress.loss:.3f}  {progress.tokens_per_s:.0f} tokens/s  {accuracy}"
        self._progress.update(self._task, completed=progress.step, note=note)
        if not console.is_terminal and progress.step % 20 == 0:
            console.print(f"{progress.step}/{progress.steps} {note}")
