"""verl's FSDP engines as we need them, in its own registry: on the CPU, and for values with a head that starts at zero."""

from __future__ import annotations

import warnings

import torch
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

VALUE_MODEL = "threespo_value_model"
"""The type of model under which the registry knows :class:`ValueEngine`."""


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CPUEngine(FSDPEngineWithLMHead):
    """verl registers its engine for accelerators only; nothing in it needs one."""


@EngineRegistry.register(model_type=VALUE_MODEL, backend="fsdp2", device=["cpu", "cuda"])
class ValueEngine(FSDPEngineWithValueHead):
    """A critic: the body of the starting model, with a linear head that starts at zero, so that the first values are 0.

    verl's own loader asks for flash attention whatever the options say, and its head starts at random values.
    """

    def _build_module(self) -> torch.nn.Module:
        from transformers import AutoModelForTokenClassification
        from verl.utils.fsdp_utils import get_init_weight_context_manager

        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        on_meta = not config.tie_word_embeddings
        with get_init_weight_context_manager(use_meta_tensor=on_meta, mesh=self.device_mesh)(), warnings.catch_warnings(action="ignore"):
            module = AutoModelForTokenClassification.from_pretrained(self.model_config.local_path, config=config, dtype=torch.float32)
        head = getattr(module, "score", None) or module.classifier
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.zero_()
        if self.model_config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return module
