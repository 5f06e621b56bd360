"""The reference policy: frozen weights that KL terms and preferences refer to."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from threespo_plugins.embedded import checkpoint
from threespo_plugins.embedded.loading import load_model
from threespo_plugins.embedded.policy import Policy

_WEIGHTS = "reference.safetensors"


class Reference:
    """The starting weights, or those of the last :meth:`refresh`.

    Attributes:
        refreshed: they are no longer the starting weights.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._model: PreTrainedModel | None = None
        self.refreshed = False

    def model(self) -> PreTrainedModel:
        """The frozen model; read from the model folder on first use, since most algorithms never need the memory."""
        if self._model is None:
            self._model = load_model(self._policy.folder, self._policy.device).requires_grad_(False)
        return self._model

    def refresh(self) -> None:
        """Take the policy's present weights."""
        own = self._policy.model.state_dict()
        with torch.no_grad():
            for name, tensor in self.model().state_dict().items():
                tensor.copy_(own[name])
        self.refreshed = True

    def save(self, folder: Path) -> None:
        """Write the weights; without them, :meth:`load` takes the starting weights."""
        checkpoint.save_weights(folder / _WEIGHTS, self.model())

    def load(self, folder: Path) -> None:
        """Continue from :meth:`save`, or from the starting weights if nothing was saved."""
        saved = (folder / _WEIGHTS).exists()
        if saved:
            checkpoint.load_weights(folder / _WEIGHTS, self.model())
        elif self.refreshed:
            self._model = None
        self.refreshed = saved
