"""Sequence partition: a P-EAGLE head's loss over one row, in chunks of positions, with the gradients of the whole row.

P-EAGLE trains every position of a row at several depths at once (arXiv 2602.01469). For long rows, attention over all
of them exceeds the memory. A position of depth 0 attends only to earlier positions of depth 0. A deeper position
attends to those of depth 0 up to its anchor, and to its own chain. So chains share only the keys and values of depth 0:

1. One pass over depth 0 keeps the keys and values of every layer, and its last states.
2. For each chunk of contiguous anchors, a pass over the chains alone uses the kept keys and values, detached from the
   first pass. Its loss, with that of its anchors, is propagated back into the weights and these values.
3. The gradients of the kept values, summed over the chunks, are propagated back through the first pass, once.

By the chain rule this is the gradient of the row, and only one chunk's chains are in memory at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from speculators.losses import LossConfig
from speculators.models.peagle import PEagleDraftModel
from speculators.models.peagle.attention import create_peagle_mask_mod
from speculators.models.peagle.data import generate_cod_sample_indices
from speculators.models.peagle.metrics import compute_metrics
from torch.nn.attention.flex_attention import create_mask

from peagle.drafter.train.loss import COUNT_EPSILON
from peagle.engine.drafting.markov_head import MarkovHead, chained, chained_in_text
from peagle.engine.drafting.ngrams import NgramIndex

Precision = Callable[[], AbstractContextManager[object]]
# Returns the loss over positions, given the anchor and the depth of each, both [positions].
LossOf = Callable[[torch.Tensor, torch.Tensor], LossConfig]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Anchors from `start` to `end`, with the deeper positions of their chains: `anchors`, `depths`, both [deeper]."""

    start: int
    end: int
    anchors: torch.Tensor
    depths: torch.Tensor

    @property
    def all_anchors(self) -> torch.Tensor:
        """The anchor of every position: first the positions at depth 0, then the deeper ones."""
        return torch.cat([torch.arange(self.start, self.end, device=self.anchors.device), self.anchors])

    @property
    def all_depths(self) -> torch.Tensor:
        """The depth of every position, in the same order."""
        return torch.cat([self.depths.new_zeros(self.end - self.start), self.depths])


def chunks_of(anchors: torch.Tensor, depths: torch.Tensor, length: int, partitions: int) -> Iterator[Chunk]:
    """Split sampled positions, both [positions], into at most `partitions` ranges of anchors of similar size.

    Every anchor of the row's `length` and every deeper position is in exactly one chunk; a chain stays whole.
    """
    owners = anchors.clamp(min=0)  # speculators lets a chain start before the row's first position
    held = torch.bincount(owners, minlength=length).cumsum(0)
    wanted = held[-1] * torch.arange(1, partitions, device=held.device) / partitions
    ends = [*torch.searchsorted(held, wanted).tolist(), length]
    start = 0
    for end in ends:
        if end > start:
            inside = (depths > 0) & (owners >= start) & (owners < end)
            yield Chunk(start, end, anchors[inside], depths[inside])
            start = end


def backward_in_chunks(
    head: PEagleDraftModel,
    batch: Mapping[str, torch.Tensor],
    partitions: int,
    sampling: Mapping[str, Any],
    loss_of: LossOf,
    precision: Precision,
    loss_scale: float = 1.0,
) -> dict[str, float]:
    """Add the gradients of one row's loss, times `loss_scale`, to the head's parameters.

    Samples the same positions from the same random state, and computes the same loss over them, as
    `PEagleDraftModel.forward`.

    Args:
        head: Its attention implementation must accept dense masks (`sdpa` or `eager`).
        batch: The input of `PEagleDraftModel.forward`: `hidden_states` [1, length, 3 hidden],
            `verifier_last_hidden_states` [1, length, hidden]; `input_ids`, `document_ids`, `loss_mask`, [1, length].
        partitions: Maximum number of chunks.
        sampling: `num_depths`, `down_sample_ratio` and `down_sample_ratio_min` of COD sampling.
        loss_of: Returns a chunk's loss; that of a position may depend on its chain, which is never split.
        precision: Context of forward passes, such as `torch.autocast`.

    Returns:
        `loss` in nats, and speculators' counts of accepted drafts by depth.
    """
    length = batch["input_ids"].shape[1]
    anchors, depths = generate_cod_sample_indices(seq_length=length, loss_mask=batch["loss_mask"], **sampling)
    counted = batch["loss_mask"][0, anchors + depths].sum() + COUNT_EPSILON
    row = _Row(head, batch, precision)
    totals: dict[str, float] = {}
    for chunk in chunks_of(anchors, depths, length, partitions):
        found = row.backward_chunk(chunk, int(sampling["num_depths"]), loss_of, counted, loss_scale)
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + value
    row.backward()
    return totals


@torch.no_grad()
def draft_tokens(
    head: PEagleDraftModel,
    batch: Mapping[str, torch.Tensor],
    num_depths: int,
    precision: Precision,
    partitions: int = 1,
    ngram_bias_nats: float = 0.0,
) -> torch.Tensor:
    """Return the head's greedy drafts from every position of a row, as in an engine: int, [length, num_depths].

    Takes the same `batch` as `backward_in_chunks`, without the parts that only a loss needs.

    Args:
        ngram_bias_nats: As in `chained_in_text`; has no effect without a Markov head.
    """
    length = batch["input_ids"].shape[1]
    positions = torch.arange(length, device=batch["input_ids"].device)
    anchors = positions.repeat(num_depths)
    depths = torch.arange(num_depths, device=positions.device).repeat_interleave(length)
    row = _Row(head, batch, precision)
    markov = MarkovHead.of(head.markov_head.state_dict()) if hasattr(head, "markov_head") else None
    text = NgramIndex()
    drafts = torch.empty(length, num_depths, dtype=torch.long, device=positions.device)
    for chunk in chunks_of(anchors, depths, length, partitions):
        last, *before = row.leaves(chunk)
        with precision():
            hidden = head.norm(row.states(chunk, last, before))[0]
            logits = head.lm_head(hidden)
        # By chain, in its order: [anchors, depths, ...].
        at = (chunk.all_anchors - chunk.start, chunk.all_depths)
        shape = (chunk.end - chunk.start, num_depths)
        logits, hidden = (each.new_empty(*shape, each.shape[-1]).index_put_(at, each) for each in (logits, hidden))
        if markov and ngram_bias_nats:
            texts = _written_further(text, batch["input_ids"][0, chunk.start : chunk.end].tolist())
            drafted, _ = chained_in_text(logits, hidden, markov, texts, ngram_bias_nats)
        else:
            drafted = chained(logits, hidden, markov) if markov else logits.argmax(-1)
        drafts[chunk.start : chunk.end] = drafted
    return drafts


def _written_further(text: NgramIndex, tokens: Sequence[int]) -> Iterator[NgramIndex]:
    """Yield the text with one more token each time."""
    for token in tokens:
        text.read([token])
        yield text


class _Row:
    """The pass over a row's depth-0 positions, and the gradients that chunks add to it."""

    def __init__(self, head: PEagleDraftModel, batch: Mapping[str, torch.Tensor], precision: Precision) -> None:
        self._head, self._batch, self._precision = head, batch, precision
        self._positions = torch.arange(batch["input_ids"].shape[1], device=batch["input_ids"].device)
        kept = _Kept()
        with precision():
            inputs = _layer_input(head, batch["input_ids"], batch["hidden_states"])
            last = self._layers(inputs, self._positions, torch.zeros_like(self._positions), 0, kept)
        self._shared = [last, *kept.keys, *kept.values]
        # Gradients of the shared values are not needed if these are not trained.
        self._learns = any(each.requires_grad for each in self._shared)
        # Always in float32, because many small contributions of chunks are summed here.
        self._gradients = [torch.zeros_like(each, dtype=torch.float32) for each in self._shared]

    def leaves(self, chunk: Chunk) -> list[torch.Tensor]:
        """Return the last states of a chunk's anchors, and the keys and values up to its end, detached."""
        last, *before = (each.detach() for each in self._shared)
        return [last[:, chunk.start : chunk.end], *(each[:, :, : chunk.end] for each in before)]

    def states(self, chunk: Chunk, last: torch.Tensor, before: list[torch.Tensor]) -> torch.Tensor:
        """Return the last states of a chunk's positions, [1, positions, hidden], in the order of `all_anchors`."""
        return torch.cat([last, self._chains(chunk, before)], dim=1) if len(chunk.anchors) else last

    def backward_chunk(
        self, chunk: Chunk, num_depths: int, loss_of: LossOf, counted: torch.Tensor, loss_scale: float
    ) -> dict[str, float]:
        """Propagate back one chunk's share of the row's loss, a mean over `counted` positions of the whole row."""
        last, *before = (each.requires_grad_(self._learns) for each in self.leaves(chunk))
        loss_mask, positions = self._batch["loss_mask"], chunk.all_anchors + chunk.all_depths
        with self._precision():
            loss, metrics = compute_metrics(
                logits=self._logits(chunk, self.states(chunk, last, before)),
                targets=self._targets(chunk, num_depths)[:, positions - chunk.start],
                loss_mask=loss_mask,
                anchor_pos=chunk.all_anchors,
                depth=chunk.all_depths,
                num_depths=num_depths,
                loss_config=loss_of(chunk.all_anchors, chunk.all_depths),
            )
            share = loss * ((loss_mask[0, positions].sum() + COUNT_EPSILON) / counted)
        (share * loss_scale).backward()
        if last.grad is not None:
            self._gradients[0][:, chunk.start : chunk.end] += last.grad
        for gradient, leaf in zip(self._gradients[1:], before, strict=True):
            if leaf.grad is not None:  # None if the chunk has no chains
                gradient[:, :, : chunk.end] += leaf.grad
        counts = {name: float(value) for name, value in metrics.items() if "_acc_" in name}
        return counts | {"loss": float(share.detach())}

    def backward(self) -> None:
        """Propagate the chunks' gradients of the shared values back through depth 0."""
        if not self._learns:
            return
        torch.autograd.backward(
            self._shared,
            [gradient.to(each.dtype) for gradient, each in zip(self._gradients, self._shared, strict=True)],
        )

    def _chains(self, chunk: Chunk, before: list[torch.Tensor]) -> torch.Tensor:
        """Return the last states of a chunk's deeper positions, [1, deeper, hidden]; all have the same input."""
        head = self._head
        mask_token = torch.full_like(self._batch["input_ids"][:, :1], head.mask_token_id)
        mask_hidden = head.mask_hidden.to(self._batch["hidden_states"].dtype)
        inputs = _layer_input(head, mask_token, mask_hidden).expand(-1, len(chunk.anchors), -1)
        layers = len(head.layers)
        cache = _Preceded(before[:layers], before[layers:])
        anchors = torch.cat([self._positions[: chunk.end], chunk.anchors])
        depths = torch.cat([torch.zeros_like(self._positions[: chunk.end]), chunk.depths])
        return self._layers(inputs, anchors, depths, chunk.end, cache)

    def _layers(
        self,
        states: torch.Tensor,
        anchors: torch.Tensor,
        depths: torch.Tensor,
        preceding: int,
        cache: "_Kept | _Preceded",
    ) -> torch.Tensor:
        """Run `states`, [1, positions, 2 hidden], through every layer, after `preceding` positions of the cache.

        `anchors` and `depths` are those of the preceding positions, followed by the states' own.
        """
        head = self._head
        position_ids = (anchors + depths)[None, preceding:]
        rotations = head.rotary_emb(states, position_ids)
        full = self._mask(anchors, depths, preceding, None) if head.uses_full_attn else None
        window = self._mask(anchors, depths, preceding, head.sliding_window) if head.uses_sliding_window_attn else None
        for index, layer in enumerate(head.layers):
            states = layer(
                states,
                attention_mask=window if index in head.sliding_window_indices else full,
                position_ids=position_ids,
                position_embeddings=rotations,
                past_key_values=cache,
            )
        return states

    def _mask(
        self, anchors: torch.Tensor, depths: torch.Tensor, preceding: int, sliding_window: int | None
    ) -> torch.Tensor:
        """Return the additive mask, [1, 1, positions, preceding + positions], shared by all layers."""
        allowed = create_peagle_mask_mod(anchors, depths, self._batch["document_ids"][0], sliding_window)

        def behind(batch: torch.Tensor, attention_head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Any:
            return allowed(batch, attention_head, query + preceding, key)

        total = len(anchors)
        boolean = create_mask(behind, None, None, total - preceding, total, device=anchors.device)
        kind = anchors.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self._head.dtype
        return torch.zeros(boolean.shape, dtype=dtype, device=anchors.device).masked_fill_(~boolean, float("-inf"))

    def _logits(self, chunk: Chunk, states: torch.Tensor) -> torch.Tensor:
        """Return the logits of a chunk's positions, [1, positions, vocabulary], with the row's own token as the
        previous token of each draft."""
        hidden = self._head.norm(states)
        logits: torch.Tensor = self._head.lm_head(hidden)
        if not hasattr(self._head, "markov_head"):
            return logits
        first = chunk.end - chunk.start  # the first draft of a chain follows a known token
        before = self._batch["input_ids"][:, chunk.anchors + chunk.depths]
        bias = self._head.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden[:, first:])
        return torch.cat([logits[:, :first], logits[:, first:] + bias], dim=1)

    @torch.no_grad()
    def _targets(self, chunk: Chunk, num_depths: int) -> torch.Tensor:
        """Return the target's logits from the chunk's first position to the last that its chains reach."""
        last = self._batch["verifier_last_hidden_states"][:, chunk.start : chunk.end + num_depths - 1]
        logits: torch.Tensor = self._head.verifier_lm_head(self._head.verifier_norm(last))
        return logits


class _Kept:
    """Replaces an attention layer's cache: keeps the keys and values of each layer, [1, heads, length, size]."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor, _layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.append(keys)
        self.values.append(values)
        return keys, values


class _Preceded:
    """Replaces an attention layer's cache: prepends the kept keys and values of a layer to its own."""

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        self._keys, self._values = keys, values

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([self._keys[layer], keys], dim=2), torch.cat([self._values[layer], values], dim=2)


def _layer_input(head: PEagleDraftModel, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return the first layer's input, [1, positions, 2 hidden].

    `ids` is [1, positions], `hidden` is [1, positions, 3 hidden].
    """
    embeddings = head.embed_tokens(ids).to(hidden.dtype)
    if head.input_norm is not None:
        hidden = head.input_norm(hidden)
    if head.fc_norm is not None:
        parts = hidden.chunk(len(head.fc_norm), dim=-1)
        hidden = torch.cat([norm(part) for norm, part in zip(head.fc_norm, parts, strict=True)], dim=-1)
    return torch.cat([embeddings, head.fc(hidden)], dim=-1)
