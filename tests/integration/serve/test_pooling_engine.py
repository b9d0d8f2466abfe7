"""Real engines that score and embed, called as by a replica."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from peagle.api.dialects.pooled_request import PooledReply, to_embeddings, to_rerank, to_score
from peagle.config import parse_deployment
from peagle.engine.arguments import without_server
from peagle.errors import RequestError
from peagle.router.fairness.step_sharing import Flow
from peagle.serve.launch.serving_arguments import engine_settings
from peagle.serve.replica.asking_flow import FLOW, named_encode
from peagle.serve.replica.first_request import answer_once
from peagle.serve.replica.load_listener import LoadListener, kv_capacity_tokens, queued_prompt_tokens
from peagle.serve.replica.relayed_apis import ask_pooled
from support.engines.pooling_models import VECTOR, write_embedding_model, write_reranking_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated"),  # vLLM writes vectors with it
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

DOCUMENTS = ["import os", "def f(x):\n    return x", "class A:", "x = 1"]


class Engine:
    """One engine with vLLM's handlers for its model."""

    def __init__(self, client: Any, state: Any) -> None:
        self.client, self.state = client, state
        self.listener = LoadListener(pools=True)
        client.logger_manager.stat_loggers.append(self.listener)

    async def ask(self, make: Callable[[dict[str, Any]], Any], **data: Any) -> Any:
        """Return the answer's body, or the error in Ray's form."""
        handler = self.state.serving_embedding if make is to_embeddings else self.state.serving_scores
        request = make({**data}).model_copy(update={"request_id": "r"})
        (reply,) = [reply async for reply in ask_pooled(handler, request, None)]
        return json.loads(reply.body) if isinstance(reply, PooledReply) else reply.error


async def start(folder: Path) -> AsyncIterator[Engine]:
    from argparse import Namespace

    from starlette.datastructures import State
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.chat_utils import ChatTemplateConfig
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.pooling.factories import init_pooling_state
    from vllm.v1.engine.async_llm import AsyncLLM

    raw = {
        "name": "m",
        "target": {"source": str(folder)},
        "engine": {"runner": "pooling", "enforce_eager": True, "max_num_seqs": 8},
        "resources": {"accelerator": "cpu"},
    }
    deployment = parse_deployment(raw, "x.yaml")
    client = AsyncLLM.from_engine_args(AsyncEngineArgs(**without_server(engine_settings(deployment))))
    client.encode = named_encode(client.encode)
    try:
        await answer_once(client, deployment.pools)
        state = State()
        state.openai_serving_models = OpenAIServingModels(client, [BaseModelPath(name="m", model_path=str(folder))])
        template = ChatTemplateConfig()
        args = Namespace(
            chat_template=None,
            chat_template_content_format=template.chat_template_content_format,
            trust_request_chat_template=False,
        )
        init_pooling_state(client, state, args, None, await client.get_supported_tasks())
        yield Engine(client, state)
    finally:
        client.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reranker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    async for engine in start(write_reranking_model(tmp_path_factory.mktemp("reranker"))):
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    async for engine in start(write_embedding_model(tmp_path_factory.mktemp("embedder"))):
        yield engine


async def test_documents_are_ranked_by_their_scores(reranker: Engine) -> None:
    scores = await reranker.ask(to_score, text_1="a function", text_2=DOCUMENTS)
    by_document = {each["index"]: each["score"] for each in scores["data"]}
    assert len({round(score, 6) for score in by_document.values()}) == len(DOCUMENTS)
    ranked = await reranker.ask(to_rerank, query="a function", documents=DOCUMENTS, top_n=3)
    order = [each["index"] for each in ranked["results"]]
    assert order == sorted(by_document, key=lambda index: -by_document[index])[:3]
    for each in ranked["results"]:
        assert each["document"]["text"] == DOCUMENTS[each["index"]]
        assert each["relevance_score"] == pytest.approx(by_document[each["index"]], rel=1e-4)
    assert ranked["id"] == "score-r"
    assert ranked["usage"]["prompt_tokens"] == scores["usage"]["prompt_tokens"] > len(DOCUMENTS)


async def test_it_makes_no_embeddings(reranker: Engine) -> None:
    with pytest.raises(RequestError, match="makes no embeddings: use /v1/rerank or /v1/score"):
        await reranker.ask(to_embeddings, input="x")


async def test_sides_of_different_lengths_are_a_client_mistake(reranker: Engine) -> None:
    error = await reranker.ask(to_score, text_1=["a", "b"], text_2=DOCUMENTS)
    assert error.code == 400


async def test_clients_share_its_steps(reranker: Engine) -> None:
    """Several clients at once: requests without a part in a step rest, and every answer is the same as alone."""
    alone = await reranker.ask(to_score, text_1="x", text_2=DOCUMENTS * 8)

    async def of(client: str) -> Any:
        FLOW.set(Flow(client))
        return await reranker.ask(to_score, text_1="x", text_2=DOCUMENTS * 8)

    for each in await asyncio.gather(*(asyncio.create_task(of(name)) for name in ("a", "b", "a", "c"))):
        assert [one["score"] for one in each["data"]] == pytest.approx(
            [one["score"] for one in alone["data"]], rel=1e-3
        )


async def test_a_client_that_leaves_takes_its_texts_with_it(reranker: Engine) -> None:
    states = reranker.client.output_processor
    asking = asyncio.create_task(reranker.ask(to_score, text_1="x", text_2=DOCUMENTS * 200))
    async with asyncio.timeout(60):
        while not states.has_unfinished_requests():  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.001)
        asking.cancel()
        while states.has_unfinished_requests():  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.001)
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_load_and_prefill_are_heard_of_an_engine_that_generates_nothing(reranker: Engine) -> None:
    await reranker.ask(to_score, text_1="x", text_2=DOCUMENTS)
    load = reranker.listener.load
    assert (load.running_requests, load.waiting_requests, load.generation_tokens) == (0, 0, 0)
    assert reranker.listener.rates.prefill_tokens_per_s > 0
    assert (queued_prompt_tokens(reranker.client), kv_capacity_tokens(reranker.client)) == (0, 0)


async def test_vectors_have_the_model_s_length_and_one_each(embedder: Engine) -> None:
    answer = await embedder.ask(to_embeddings, input=["import os", "x = 1"])
    vectors = [each["embedding"] for each in answer["data"]]
    assert [len(vector) for vector in vectors] == [VECTOR] * 2
    assert all(math.isclose(sum(x * x for x in vector), 1.0, rel_tol=1e-3) for vector in vectors)
    assert vectors[0] != vectors[1]
    scores = await embedder.ask(to_score, text_1="import os", text_2=["import os", "x = 1"])
    same, other = (each["score"] for each in scores["data"])
    assert same == pytest.approx(1.0, abs=1e-3)
    assert other < same


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"input": []}, "at least one prompt"),
        ({"input": "x " * 600}, "maximum"),
        ({"input": [10**6]}, "vocabulary"),
        ({"input": "x", "dimensions": 8}, "dimensions"),
        ({"input": "x", "truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens"),
    ],
)
async def test_input_that_cannot_be_embedded_is_a_client_mistake(embedder: Engine, data: Any, said: str) -> None:
    error = await embedder.ask(to_embeddings, **data)
    assert error.code == 400
    assert said in error.message


async def test_a_long_text_may_be_cut(embedder: Engine) -> None:
    answer = await embedder.ask(to_embeddings, input="x " * 600, truncate_prompt_tokens=16)
    assert answer["usage"]["prompt_tokens"] == 16
