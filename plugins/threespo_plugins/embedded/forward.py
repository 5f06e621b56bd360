"""Calling the model: which arguments an architecture takes, and which positions need the last steps of a forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from threespo_bench.errors import UsageError
from threespo_plugins.embedded.packing import branch_attention

_PROBE_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class Forward:
    """Forward passes of models of one architecture.

    What an architecture allows is tried on a few tokens and not looked up, since architectures differ in many ways; one that does not
    pass is computed plainly.

    Attributes:
        layers: how many layers a cache must have.
        takes_masks: a ready (B, 1, Q, K) attention mask is used as it is, so rows with equal prompts can share one.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._arguments = frozenset(inspect.signature(model.forward).parameters)
        # transformers 5.24 renamed the argument; both names are in the supported range.
        self._cache_name = "cache" if "cache" in self._arguments else "past_key_values"
        self.layers = int(model.config.get_text_config().num_hidden_layers)
        self.takes_masks = self._probe_masks(model)
        self._last_feed_forward: str | None = _last_feed_forward(model, self.layers)
        if not self._probe_positions(model):
            self._last_feed_forward = None

    def score(self, model: PreTrainedModel, ids: torch.Tensor, attention: torch.Tensor | None, positions: torch.Tensor | None) -> torch.Tensor:
        """(B, L, V) logits of (B, L) ``ids``."""
        return model(input_ids=ids, attention_mask=attention, **self._known(position_ids=positions, use_cache=False)).logits

    def hidden(self, body: PreTrainedModel, ids: torch.Tensor, attention: torch.Tensor | None, positions: torch.Tensor | None) -> torch.Tensor:
        """(B, L, H) last hidden states of (B, L) ``ids`` in the body of a model: what an output layer would read."""
        return body(input_ids=ids, attention_mask=attention, **self._known(position_ids=positions, use_cache=False)).last_hidden_state

    def extend(self, model: PreTrainedModel, ids: torch.Tensor, cache: Cache, attention: torch.Tensor | None, positions: torch.Tensor | None) -> torch.Tensor:
        """(B, L, V) logits of ``ids`` appended to what the cache holds."""
        options = self._known(position_ids=positions, use_cache=True)
        return model(input_ids=ids, attention_mask=attention, **{self._cache_name: cache}, **options).logits

    @contextmanager
    def only_positions(self, model: PreTrainedModel, positions: torch.Tensor) -> Iterator[None]:
        """Compute what follows the last attention at (M,) flattened ``positions`` only; the logits are then (1, M, V).

        Most positions of a prompt matter for their keys and values alone, so they need neither the last feed-forward block nor the output
        layer. Hooks instead of calling the layers ourselves, since architectures scale and cap around them in their own ways.
        """
        hooks = [model.get_output_embeddings().register_forward_pre_hook(lambda _, arguments: (_rows(arguments[0], positions)[None], *arguments[1:]))]
        if self._last_feed_forward is not None:
            hooks += _reduced(model.get_submodule(self._last_feed_forward), positions)
        with _removed_after(hooks):
            yield

    @contextmanager
    def only_positions_of_body(self, body: PreTrainedModel, positions: torch.Tensor) -> Iterator[None]:
        """Let the last feed-forward block of a body work on (M,) flattened ``positions`` only; hidden states are right at those alone."""
        name = (self._last_feed_forward or "").removeprefix(f"{body.base_model_prefix}.")
        with _removed_after(_reduced(body.get_submodule(name), positions) if name else []):
            yield

    def _known(self, **options: object) -> dict[str, object]:
        return {name: value for name, value in options.items() if name in self._arguments and value is not None}

    @torch.no_grad()
    def _probe_masks(self, model: PreTrainedModel) -> bool:
        """Whether the model computes a second branch of a sequence as if it directly followed the prompt."""
        if "position_ids" not in self._arguments or sliding_window(model) is not None:
            return False
        ids = _probe_ids(model)
        branch = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]], device=ids.device)
        positions = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4]], device=ids.device)
        try:
            branched = self.score(model, ids, branch_attention(branch), positions)[:, 6:]
        except _PROBE_ERRORS:
            return False
        return _close(branched, self.score(model, torch.cat([ids[:, :3], ids[:, 6:]], dim=1), None, None)[:, 3:])

    @torch.no_grad()
    def _probe_positions(self, model: PreTrainedModel) -> bool:
        """Whether some positions alone get the logits that they get among all."""
        if self._last_feed_forward is None:
            return False
        ids = _probe_ids(model)
        try:
            with self.only_positions(model, torch.tensor([3, 3, 7], device=ids.device)):
                some = self.score(model, ids, None, None)
        except _PROBE_ERRORS:
            return False
        return _close(some, self.score(model, ids, None, None)[:, [3, 3, 7]])


class _Part:
    """Hooks that let a block work on (M,) different flattened ``positions``; its output is zero at the others."""

    def __init__(self, positions: torch.Tensor) -> None:
        self._positions = positions
        self._shape = torch.Size()

    def select(self, module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._shape = arguments[0].shape
        return (_rows(arguments[0], self._positions)[None], *arguments[1:])

    def put_back(self, module: torch.nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        rows = output.new_zeros(self._shape[:-1].numel(), self._shape[-1])
        return rows.index_copy(0, self._positions, output[0]).view(self._shape)


def body_of(model: PreTrainedModel) -> PreTrainedModel:
    """The transformer of a causal language model, without its output layer. Raises UsageError if the two are one module."""
    body = model.base_model
    if body is model:
        raise UsageError(f"{type(model).__name__} has no body apart from its output layer", fix="use a model whose hidden states can be read")
    return body


@contextmanager
def _removed_after(hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _reduced(block: torch.nn.Module, positions: torch.Tensor) -> list[RemovableHandle]:
    """Hooks that let ``block`` work on (M,) flattened ``positions`` only."""
    part = _Part(torch.unique(positions))
    return [block.register_forward_pre_hook(part.select), block.register_forward_hook(part.put_back)]


def sliding_window(model: PreTrainedModel) -> int | None:
    """Tokens that the layers of shortest reach attend to, or None if every layer attends to all."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    slides = "sliding_attention" in kinds if kinds else window is not None
    return window if slides else None


def _last_feed_forward(model: PreTrainedModel, layers: int) -> str | None:
    """Name of the ``mlp`` of the last of the decoder layers, if the model is built that way."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers and isinstance(getattr(module[-1], "mlp", None), torch.nn.Module):
            return f"{name}.{layers - 1}.mlp"
    return None


def _rows(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return hidden.reshape(-1, hidden.shape[-1])[positions]


def _probe_ids(model: PreTrainedModel) -> torch.Tensor:
    top = model.get_input_embeddings().num_embeddings - 1
    return torch.tensor([[3, 1, 2, 2, 2, 1, 1, 3]], device=model.device).clamp(max=top)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-4, rtol=1e-4)
