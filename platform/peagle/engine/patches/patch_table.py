"""Every symbol of vLLM that is replaced, overridden or private: what it is for, and when it can go.

The table is plain data; only `install_patches` imports vLLM. Rows for `serve/replica/` stand here too.
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

_NO_FAIR_SHARES = "vLLM shares its steps out among clients"
_NO_SLOW_GRAMMARS = "vLLM ends requests whose grammars keep others waiting"
_NO_WAY_TO_THE_SCHEDULER = "vLLM has a public call that changes the depth of a running engine"
_SEEDS_DEPEND_ON_DEPTH = "vLLM draws seeded tokens independently of drafts"
_NO_CALL_FOR_DRAFTS = "vLLM sends drafts with the step's output"
_NO_MARKOV_HEAD = "vLLM drafts with Markov heads"
_NO_PROCESSORS_FOR_DRAFTS = "vLLM applies `min_p` and `logit_bias` to drafts"
_NO_RUNG_GRAPHS = "vLLM captures full graphs for drafts of several depths on its first model runner"
_NO_SKIPPED_DRAFTER = "vLLM skips the drafter at K = 0 and keeps account of the gaps"

_ENGINE_CORE = (
    _in_core(
        f"{_CORE}.peagle_set_depths",
        Kind.ADDS,
        "A running engine takes a new depth table by this call.",
        _NO_WAY_TO_THE_SCHEDULER,
    ),
    _in_core(
        f"{_CORE}.peagle_step_stats",
        Kind.ADDS,
        "A running engine tells its step times and acceptance by this call.",
        "vLLM exports step times and drafts by depth and batch size",
    ),
    _in_core(
        f"{_CORE}.post_step",
        Kind.REPLACES,
        "Drafts come with the step's output, so they are not fetched by a call of their own.",
        _NO_CALL_FOR_DRAFTS,
    ),
)
_FRONT = (
    _in_front(
        "vllm.outputs:RequestOutput.add",
        why="Where parts of an answer are merged, its draft counts are lost.",
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
        why="A message is made a chat here, whose stream is read for errors before vLLM converts it.",
        removed_when="vLLM's stream of a message tells an error of its chat",
    ),
    _in_front(
        "vllm.sampling_params:SamplingParams._validate_structured_outputs",
        why="It parses grammars in the event loop, which a replica has had done in a thread.",
        removed_when="vLLM validates grammars away from the event loop",
        installed_by="peagle.engine.patches.validated_grammars:install",
    ),
)
_WORKER = (
    _in_worker(
        "vllm.v1.worker.gpu_model_runner:build_logitsprocs",
        why="Beside a drafter it leaves out the processors of `min_p` and `logit_bias`.",
        removed_when=_NO_PROCESSORS_FOR_DRAFTS,
        installed_by="peagle.engine.patches.undrafted_parameters:apply",
    ),
    _compiled(
        "torch.compiler:load_compiled_function",
        why="vLLM takes what inductor kept on a CPU for a damaged file, and compiles again at every start.",
        removed_when="vLLM loads compiled functions that have no `finalize_loading`",
    ),
    _compiled(
        "vllm.compilation.caching:aot_compile_hash_factors",
        why="What was compiled for one processor would run on another, and compute nonsense.",
        removed_when="vLLM names compiled models by the processor's instructions",
    ),
    _draft_inputs(
        f"{_PROPOSER}.set_inputs_first_pass",
        why="vLLM lays out masks for the configured depth whatever a step asks for, and on a CPU rows of rejected "
        "tokens.",
        removed_when="the pull request is in the oldest version read for, and a CPU leaves rejected rows out",
        issue="https://github.com/vllm-project/vllm/pull/45695",
    ),
    _draft_inputs(
        f"{_PROPOSER}.initialize_attn_backend",
        why="Once it is called, the kernel that lays out a drafter's rows on a GPU can be compared with its reference.",
        removed_when="the row of `set_inputs_first_pass` goes",
    ),
    _in_worker(
        "vllm.utils.cpu_triton_utils:expand_kernel",
        why="On CPU it drops its output, so drafts are judged at an arbitrary temperature.",
        removed_when="the issue is closed in the oldest version read for",
        issue="https://github.com/vllm-project/vllm/issues/55005",
        installed_by="peagle.engine.patches.cpu_sampling:install",
    ),
    _markov(
        f"{_PROPOSER}.__init__",
        why="A drafter does not keep its model runner, which knows the texts that n-grams are looked up in.",
        removed_when=_NO_MARKOV_HEAD,
    ),
    _markov(f"{_PROPOSER}.load_model", why="It reads no Markov head.", removed_when=_NO_MARKOV_HEAD),
    _markov(f"{_PROPOSER}._greedy_sample", why="It chooses each draft by itself.", removed_when=_NO_MARKOV_HEAD),
    _seeded(
        f"{_RUNNER}._sample",
        why="Seeded tokens are keyed by their position, which samplers are not told.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _seeded(
        f"{_RUNNER}._bookkeeping_sync",
        why="It rewinds generators, which a CPU's cannot be.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _seeded(
        "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.__call__",
        why="It draws seeded tokens from a generator that drafts advance.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _seeded(
        "vllm.v1.sample.rejection_sampler:rejection_sample",
        why="It judges drafts of seeded requests by a generator that drafts advance.",
        removed_when=_SEEDS_DEPEND_ON_DEPTH,
    ),
    _drafts(
        f"{_RUNNER}.sample_tokens",
        why="A step's output leaves without its drafts.",
        removed_when=_NO_CALL_FOR_DRAFTS,
    ),
    _drafts(
        f"{_RUNNER}._input_fits_in_drafter",
        why="It is vLLM's own way to leave the drafter out of a step, taken where no drafts are asked for.",
        removed_when=_NO_SKIPPED_DRAFTER,
    ),
    _drafts(
        f"{_RUNNER}._copy_draft_token_ids_to_cpu",
        why="It would hand out zeros as the drafts of a step that was asked for none.",
        removed_when=_NO_SKIPPED_DRAFTER,
    ),
    *(
        _graphs(f"{_RUNNER}.{method}", why=why, removed_when=_NO_RUNG_GRAPHS)
        for method, why in (
            ("_check_and_update_cudagraph_mode", "It enters full graphs for whole drafts alone."),
            (
                "_determine_batch_execution_and_padding",
                "It takes a step for uniform only if all drafts are whole, and tells what it ran as only in a table.",
            ),
            ("_build_attention_metadata", "A graph for any mix is captured for the longest query that may come."),
            ("_warmup_and_capture", "It makes up batches of whole drafts, and one that fails ends the engine."),
            ("_capture_cudagraphs", "It captures whatever is entered, however long that takes."),
        )
    ),
    _drafts(
        "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput.get_output",
        why="An output that is still being computed leaves without its rows, and without the last step's drafts.",
        removed_when="vLLM tells what lies beyond the drafts that it verifies",
    ),
)
_NOT_INSTALLED = (
    *(
        _overrides(f"{_SCHEDULER}.{method}", why=why, removed_when=removed_when)
        for method, why, removed_when in (
            ("schedule", "Each step verifies as many drafts as the depth table says.", _NO_WAY_TO_THE_SCHEDULER),
            ("update_from_output", "Drafts arrive and acceptance is counted here.", _NO_WAY_TO_THE_SCHEDULER),
            ("set_pause_state", "A pause with work left is no part of a step's time.", _NO_WAY_TO_THE_SCHEDULER),
            ("reset_prefix_cache", "An empty prefix cache has no gaps of the drafter's.", _NO_SKIPPED_DRAFTER),
            ("_free_request", "Every way for a request to end passes here.", _NO_WAY_TO_THE_SCHEDULER),
            ("add_request", "A request joins those of its client.", _NO_FAIR_SHARES),
            ("_free_request_blocks", "Every way for a request to give up its blocks does.", _NO_SKIPPED_DRAFTER),
            (
                "_get_local_prefix_cache_hit",
                "A request that is to draft must not take blocks that the drafter has not seen.",
                _NO_SKIPPED_DRAFTER,
            ),
        )
    ),
    _overrides(
        "vllm.v1.engine.async_llm:AsyncLLM.generate",
        why="An answer's `usage` tells what was drafted, of several choices and prompts as well.",
        removed_when="vLLM counts drafts in `usage`",
        issue="https://github.com/vllm-project/vllm/issues/50895",
    ),
    _overrides(
        "vllm.v1.engine.async_llm:AsyncLLM.encode",
        why="What is embedded or scored carries its client's name to the scheduler.",
        removed_when=_NO_FAIR_SHARES,
    ),
    _overrides(
        "vllm.v1.executor.uniproc_executor:UniProcExecutor._init_executor",
        why="A CPU engine's model runs in the engine core's process, bound to its cores.",
        removed_when="vLLM's CPU platform runs one worker in the engine core's process",
    ),
    *(
        _overrides(
            f"vllm.v1.metrics.ray_wrappers:{attribute}",
            why="vLLM's series reach Ray four times a second instead of after each step.",
            removed_when="vLLM's Ray wrappers hold values back",
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
            ("running", "Requests that rest are out of its sight for a step."),
            ("waiting", "Those that have no part in a step wait behind those that have."),
            ("skipped_waiting", "Those whose grammar is ready wait here."),
            ("_is_blocked_waiting_status", "Who waits for a grammar takes no part in a step."),
            ("_preempt_request", "Who rests gives back its blocks where others have none."),
        )
    ),
    _reads(
        f"{_SCHEDULER}.dynamic_sd_lookup",
        why="A schedule of K, even a constant one, keeps empty drafts out of new requests.",
        removed_when=_NO_WAY_TO_THE_SCHEDULER,
    ),
    _reads(
        "vllm.sampling_params:StructuredOutputsParams._backend",
        why="It tells whether a request's grammar has been validated.",
        removed_when="the row of `_validate_structured_outputs` goes",
    ),
    _overrides(
        "vllm.v1.structured_output:StructuredOutputManager.executor",
        why="A grammar that takes seconds to compile would keep all others waiting.",
        removed_when="vLLM compiles several grammars at once on a small machine",
    ),
    _overrides(
        "vllm.v1.structured_output:StructuredOutputManager._create_grammar",
        why="What each request's grammar takes is timed.",
        removed_when=_NO_SLOW_GRAMMARS,
    ),
    _overrides(
        f"{_SCHEDULER}.get_grammar_bitmask",
        why="By then it is known what a step's grammars have taken.",
        removed_when=_NO_SLOW_GRAMMARS,
    ),
    _reads(
        f"{_SCHEDULER}.grammar_compile_error_reqs",
        why="Requests in it end with an error: those whose grammars have become slow, too.",
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
        why="A copy of lengths that is old once rows are laid out anew.",
        removed_when="the row of `set_inputs_first_pass` goes",
    ),
    *(
        _reads(
            f"vllm.v1.attention.backend:CommonAttentionMetadata.{attribute}",
            why="It is made from rows and lengths, and old once these are laid out anew.",
            removed_when="the row of `set_inputs_first_pass` goes",
        )
        for attribute in ("_num_computed_tokens_cache", "_token_to_req_indices_cache")
    ),
    _reads(
        f"{_RUNNER}._draft_token_ids",
        why="What a step has drafted is compared with what the target says later.",
        removed_when="vLLM tells what lies beyond the drafts that it verifies",
    ),
    _reads(
        "vllm.model_executor.model_loader.default_loader:DefaultModelLoader._get_weights_iterator",
        why="A Markov head is read from where the head's own weights are, Hugging Face or a folder.",
        removed_when="vLLM has a public reader of a checkpoint's tensors",
    ),
    _reads(
        "torch._dynamo.aot_compile:AOTCompiledFunction._artifacts",
        why="The function whose `finalize_loading` vLLM asks for lies in it.",
        removed_when="the row of `load_compiled_function` goes",
    ),
    *(
        _reads(
            f"torch.cpu:{name}",
            why="vLLM's attention uses a CPU's matrix tiles, which Linux lets a process use once it has asked.",
            removed_when="vLLM asks for them",
        )
        for name in ("_is_amx_tile_supported", "_init_amx")
    ),
)
PATCHES: tuple[Seam, ...] = (*_FRONT, *_ENGINE_CORE, *_WORKER, *_NOT_INSTALLED)


def install_patches(process: Process) -> None:
    """Change vLLM in this process as the rows for `process` say; again, it changes nothing.

    A release that the rows were not read for is left as it is, with a warning.
    """
    from vllm import __version__ as version

    if not is_known(version):
        _LOG.warning("Seeds are vLLM %s's own and depend on depth and load: peagle's know %s", version, KNOWN_TEXT)
        return
    for installer in dict.fromkeys(seam.installed_by for seam in PATCHES if seam.process is process):
        pkgutil.resolve_name(installer)()
