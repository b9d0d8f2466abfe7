"""Table of every vLLM symbol that is replaced, overridden or private: its purpose, and when it can be removed.

The table is plain data; only `install_patches` imports vLLM. Rows for `serve/replica/` are here too.
"""

import logging
import pkgutil
from functools import partial

from peagle.engine.versions import KNOWN_TEXT, KNOWN_VERSIONS, is_known
from peagle.upstream import Kind, Process, Seam

_LOG = logging.getLogger(__name__)

_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"
_CORE = "vllm.v1.engine.core:EngineCore"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

_in_core = partial(Seam, versions=KNOWN_VERSIONS, installed_by="peagle.engine.plugin:register", process=Process.CORE)
_in_front = partial(Seam, kind=Kind.REPLACES, versions=KNOWN_VERSIONS, process=Process.FRONT)
_in_worker = partial(Seam, kind=Kind.REPLACES, versions=KNOWN_VERSIONS, process=Process.WORKER)
_compiled = partial(_in_worker, installed_by="peagle.engine.patches.compile_cache:install")
_draft_inputs = partial(_in_worker, installed_by="peagle.engine.patches.draft_inputs:install")
_markov = partial(_in_worker, installed_by="peagle.engine.patches.markov_drafts:install")
_seeded = partial(_in_worker, installed_by="peagle.engine.patches.seeded_sampling:install")
_drafts = partial(_in_worker, installed_by="peagle.engine.patches.step_drafts:install")
_graphs = partial(_in_worker, installed_by="peagle.engine.patches.rung_graphs:install")
_overrides = partial(Seam, kind=Kind.OVERRIDES, versions=KNOWN_VERSIONS)
_reads = partial(Seam, kind=Kind.READS, versions=KNOWN_VERSIONS)

_NO_FAIR_SHARES = "vLLM shares its steps among clients"
_NO_SLOW_GRAMMARS = "vLLM ends requests whose grammars delay others"
_NO_WAY_TO_THE_SCHEDULER = "vLLM has a public call that changes the depth of a running engine"
_SEEDS_DEPEND_ON_DEPTH = "vLLM samples seeded tokens independently of drafts"
_NO_CALL_FOR_DRAFTS = "vLLM sends drafts with the step's output"
_NO_MARKOV_HEAD = "vLLM drafts with Markov heads"
_NO_PROCESSORS_FOR_DRAFTS = "vLLM applies `min_p` and `logit_bias` to drafts"
_NO_RUNG_GRAPHS = "vLLM captures full graphs for drafts of several depths on its first model runner"
_NO_SKIPPED_DRAFTER = "vLLM skips the drafter at K = 0 and tracks the gaps"

_ENGINE_CORE = (
    _in_core(
        f"{_CORE}.peagle_set_depths",
        Kind.ADDS,
        "This call gives a running engine a new depth table.",
        _NO_WAY_TO_THE_SCHEDULER,
    ),
    _in_core(
        f"{_CORE}.peagle_step_stats",
        Kind.ADDS,
        "This call returns a running engine's step times and acceptance.",
        "vLLM exports step times and drafts by depth and batch size",
    ),
    _in_core(
        f"{_CORE}.post_step",
        Kind.REPLACES,
        "Drafts come with the step's output, so no separate call fetches them.",
        _NO_CALL_FOR_DRAFTS,
    ),
)
_FRONT = (
    _in_front(
        "vllm.outputs:RequestOutput.add",
        why="It loses the draft counts of an answer whose parts are merged.",
        removed_when="vLLM merges `spec_decode_metrics`",
        installed_by="peagle.engine.patches.merged_outputs:install",
    ),
    _in_front(
        "vllm.sampling_params:SamplingParams._validate_spec_decode",
        why="It refuses `min_p` and `logit_bias`, which a request without drafts may have.",
        removed_when=_NO_PROCESSORS_FOR_DRAFTS,
        installed_by="peagle.engine.patches.undrafted_parameters:accept",
    ),
    _reads(
        "vllm.entrypoints.anthropic.serving:AnthropicServingMessages._merge_inline_system",
        why="A message is converted to a chat here, whose stream is checked for errors before vLLM converts it.",
        removed_when="vLLM's stream of a message reports an error of its chat",
    ),
    _in_front(
        "vllm.sampling_params:SamplingParams._validate_structured_outputs",
        why="It parses grammars in the event loop, although a replica has already done so in a thread.",
        removed_when="vLLM validates grammars away from the event loop",
        installed_by="peagle.engine.patches.validated_grammars:install",
    ),
)
_WORKER = (
    _in_worker(
        "vllm.v1.worker.gpu_model_runner:build_logitsprocs",
        why="With a drafter it omits the processors of `min_p` and `logit_bias`.",
        removed_when=_NO_PROCESSORS_FOR_DRAFTS,
        installed_by="peagle.engine.patches.undrafted_parameters:apply",
    ),
    _compiled(
        "torch.compiler:load_compiled_function",
        why="vLLM takes inductor's files on a CPU for damaged, and compiles again at every start.",
        removed_when="vLLM loads compiled functions that have no `finalize_loading`",
    ),
    _compiled(
        "vllm.compilation.caching:aot_compile_hash_factors",
        why="Code compiled for one processor would run on another, and compute wrong results.",
        removed_when="vLLM names compiled models by the processor's instructions",
    ),
    _draft_inputs(
        f"{_PROPOSER}.set_inputs_first_pass",
        why="vLLM lays out masks for the configured depth whatever a step asks for, and on a CPU also rejected rows.",
        removed_when="the pull request is in the oldest supported version, and a CPU omits rejected rows",
        issue="https://github.com/vllm-project/vllm/pull/45695",
    ),
    _draft_inputs(
        f"{_PROPOSER}.initialize_attn_backend",
        why="After this call the layout kernel can be compared with its reference on the GPU.",
        removed_when="the row of `set_inputs_first_pass` goes",
    ),
    _in_worker(
        "vllm.utils.cpu_triton_utils:expand_kernel",
        why="On a CPU it drops its output, so drafts are judged at an arbitrary temperature.",
        removed_when="the issue is closed in the oldest supported version",
        issue="https://github.com/vllm-project/vllm/issues/55005",
        installed_by="peagle.engine.patches.cpu_sampling:install",
    ),
    _markov(
        f"{_PROPOSER}.__init__",
        why="The drafter does not keep its model runner, which holds the texts for n-gram lookup.",
        removed_when=_NO_MARKOV_HEAD,
    ),
    _markov(f"{_PROPOSER}.load_model", why="It does not load a Markov head.", removed_when=_NO_MARKOV_HEAD),
    _markov(f"{_PROPOSER}._greedy_sample", why="It chooses each draft independently.", removed_when=_NO_MARKOV_HEAD),
    _seeded(
        f"{_RUNNER}._sample",
        why="Seeded tokens depend on their position, which samplers do not receive.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _seeded(
        f"{_RUNNER}._bookkeeping_sync",
        why="It rewinds generators, which is impossible for a CPU generator.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _seeded(
        "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.__call__",
        why="It samples seeded tokens from a generator that drafts advance.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _seeded(
        "vllm.v1.sample.rejection_sampler:rejection_sample",
        why="It judges drafts of seeded requests with a generator that drafts advance.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _drafts(
        f"{_RUNNER}.sample_tokens",
        why="A step's output does not contain its drafts.",
        removed_when=_NO_CALL_FOR_DRAFTS,
    ),
    _drafts(
        f"{_RUNNER}._input_fits_in_drafter",
        why="It is vLLM's own way to skip the drafter in a step, used if no drafts are asked for.",
        removed_when=_NO_SKIPPED_DRAFTER,
    ),
    _drafts(
        f"{_RUNNER}._copy_draft_token_ids_to_cpu",
        why="It would return zeros as the drafts of a step that asked for none.",
        removed_when=_NO_SKIPPED_DRAFTER,
    ),
    *(
        _graphs(f"{_RUNNER}.{method}", why=why, removed_when=_NO_RUNG_GRAPHS)
        for method, why in (
            ("_check_and_update_cudagraph_mode", "It registers full graphs for full drafts only."),
            (
                "_determine_batch_execution_and_padding",
                "It treats a step as uniform only if all drafts are full, and reports the graph only in a table.",
            ),
            ("_build_attention_metadata", "A graph for any mix is captured for the longest possible query."),
            ("_warmup_and_capture", "It builds batches of full drafts, and a failed capture ends the engine."),
            ("_capture_cudagraphs", "It captures every registered graph, however long that takes."),
        )
    ),
    _drafts(
        "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput.get_output",
        why="An asynchronous output does not contain its rows, nor the previous step's drafts.",
        removed_when="vLLM reports drafts beyond those that it verifies",
    ),
)
_NOT_INSTALLED = (
    *(
        _overrides(f"{_SCHEDULER}.{method}", why=why, removed_when=removed_when)
        for method, why, removed_when in (
            ("schedule", "Each step verifies as many drafts as the depth table says.", _NO_WAY_TO_THE_SCHEDULER),
            ("update_from_output", "Drafts arrive and acceptance is counted here.", _NO_WAY_TO_THE_SCHEDULER),
            ("set_pause_state", "A pause with work left is not part of a step's time.", _NO_WAY_TO_THE_SCHEDULER),
            ("reset_prefix_cache", "An empty prefix cache has no drafter gaps.", _NO_SKIPPED_DRAFTER),
            ("_free_request", "Every way for a request to end passes through here.", _NO_WAY_TO_THE_SCHEDULER),
            ("add_request", "A request joins the others of its client.", _NO_FAIR_SHARES),
            ("_free_request_blocks", "Every release of a request's blocks passes through here.", _NO_SKIPPED_DRAFTER),
            (
                "_get_local_prefix_cache_hit",
                "A request that will draft must not use blocks that the drafter has not computed.",
                _NO_SKIPPED_DRAFTER,
            ),
        )
    ),
    _overrides(
        "vllm.v1.engine.async_llm:AsyncLLM.generate",
        why="An answer's `usage` reports its drafts, also for several choices and prompts.",
        removed_when="vLLM counts drafts in `usage`",
        issue="https://github.com/vllm-project/vllm/issues/50895",
    ),
    _overrides(
        "vllm.v1.engine.async_llm:AsyncLLM.encode",
        why="Embedding and scoring requests carry their client's name to the scheduler.",
        removed_when=_NO_FAIR_SHARES,
    ),
    _overrides(
        "vllm.v1.executor.uniproc_executor:UniProcExecutor._init_executor",
        why="A CPU engine's model runs in the engine core's process, pinned to its cores.",
        removed_when="vLLM's CPU platform runs one worker in the engine core's process",
    ),
    *(
        _overrides(
            f"vllm.v1.metrics.ray_wrappers:{attribute}",
            why="vLLM's metrics reach Ray four times a second instead of after each step.",
            removed_when="vLLM's Ray wrappers buffer values",
        )
        for attribute in (
            "RaySpecDecodingProm._counter_cls",
            "RayKVConnectorProm._gauge_cls",
            "RayKVConnectorProm._counter_cls",
            "RayPerfMetricsProm._counter_cls",
            "RayPrometheusStatLogger._gauge_cls",
            "RayPrometheusStatLogger._counter_cls",
            "RayPrometheusStatLogger._spec_decoding_cls",
            "RayPrometheusStatLogger._kv_connector_cls",
            "RayPrometheusStatLogger._perf_metrics_cls",
        )
    ),
    *(
        _reads(f"{_SCHEDULER}.{attribute}", why=why, removed_when=_NO_FAIR_SHARES)
        for attribute, why in (
            ("running", "Resting requests are hidden from it for a step."),
            ("waiting", "Requests without a part in a step wait behind those with one."),
            ("skipped_waiting", "Requests whose grammar is ready wait here."),
            ("_is_blocked_waiting_status", "A request that waits for a grammar takes no part in a step."),
            ("_preempt_request", "A resting request gives back its blocks if others have none."),
        )
    ),
    _reads(
        f"{_SCHEDULER}.dynamic_sd_lookup",
        why="Any schedule of K, even a constant one, keeps empty drafts out of new requests.",
        removed_when=_NO_WAY_TO_THE_SCHEDULER,
    ),
    _reads(
        "vllm.sampling_params:StructuredOutputsParams._backend",
        why="It shows whether a request's grammar has been validated.",
        removed_when="the row of `_validate_structured_outputs` goes",
    ),
    _overrides(
        "vllm.v1.structured_output:StructuredOutputManager.executor",
        why="A grammar that takes seconds to compile would delay all others.",
        removed_when="vLLM compiles several grammars at once on a small machine",
    ),
    _overrides(
        "vllm.v1.structured_output:StructuredOutputManager._create_grammar",
        why="The time for each request's grammar is measured.",
        removed_when=_NO_SLOW_GRAMMARS,
    ),
    _overrides(
        f"{_SCHEDULER}.get_grammar_bitmask",
        why="At this point the time for a step's grammars is known.",
        removed_when=_NO_SLOW_GRAMMARS,
    ),
    _reads(
        f"{_SCHEDULER}.grammar_compile_error_reqs",
        why="Requests in it end with an error, including those whose grammars have become slow.",
        removed_when=_NO_SLOW_GRAMMARS,
    ),
    _reads(
        "vllm.utils.cpu_triton_utils:_FuncWrapper",
        why="CPU stand-ins of kernels are called through it.",
        removed_when="the row of `expand_kernel` goes",
        issue="https://github.com/vllm-project/vllm/issues/55005",
    ),
    _reads(
        "vllm.v1.attention.backend:CommonAttentionMetadata._seq_lens_cpu",
        why="It is a copy of lengths, outdated once rows are laid out again.",
        removed_when="the row of `set_inputs_first_pass` goes",
    ),
    *(
        _reads(
            f"vllm.v1.attention.backend:CommonAttentionMetadata.{attribute}",
            why="It is derived from rows and lengths, outdated once these are laid out again.",
            removed_when="the row of `set_inputs_first_pass` goes",
        )
        for attribute in ("_num_computed_tokens_cache", "_token_to_req_indices_cache")
    ),
    _reads(
        f"{_RUNNER}._draft_token_ids",
        why="A step's drafts are later compared with the target's tokens.",
        removed_when="vLLM reports drafts beyond those that it verifies",
    ),
    _reads(
        "vllm.model_executor.model_loader.default_loader:DefaultModelLoader._get_weights_iterator",
        why="A Markov head is read from the source of the head's own weights, Hugging Face or a folder.",
        removed_when="vLLM has a public reader of a checkpoint's tensors",
    ),
    _reads(
        "torch._dynamo.aot_compile:AOTCompiledFunction._artifacts",
        why="It holds the function whose `finalize_loading` vLLM calls.",
        removed_when="the row of `load_compiled_function` goes",
    ),
    *(
        _reads(
            f"torch.cpu:{name}",
            why="vLLM's attention uses a CPU's AMX tiles, for which a process must first ask Linux.",
            removed_when="vLLM requests them",
        )
        for name in ("_is_amx_tile_supported", "_init_amx")
    ),
)
PATCHES: tuple[Seam, ...] = (*_FRONT, *_ENGINE_CORE, *_WORKER, *_NOT_INSTALLED)


def install_patches(process: Process) -> None:
    """Install the rows for `process` in this process's vLLM. Idempotent.

    An unknown release is left unchanged, with a warning.
    """
    from vllm import __version__ as version

    if not is_known(version):
        _LOG.warning("Seeds follow vLLM %s, so they depend on depth and load: peagle knows %s", version, KNOWN_TEXT)
        return
    for installer in dict.fromkeys(seam.installed_by for seam in PATCHES if seam.process is process):
        pkgutil.resolve_name(installer)()
