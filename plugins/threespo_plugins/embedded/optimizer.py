"""AdamW over the policy's parameters, with steps that either happen whole or not at all."""

from __future__ import annotations

import math

import torch

from threespo_bench.contracts.objective import Optimization
from threespo_bench.errors import EngineError

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Optimizer:
    """AdamW (arXiv:1711.05101); weight decay acts on every parameter.

    Args:
        model: its trainable parameters are moved.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._parameters = [parameter for _, parameter in self._named]
        self._adamw = torch.optim.AdamW(self._parameters, fused=True)

    def clear(self) -> None:
        """Set the gradient to zero; parameters that get none afterwards still take part in the step."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def step(self, loss: float, optimization: Optimization) -> float:
        """One step with the accumulated gradient; returns its norm before clipping.

        Raises:
            EngineError: loss or gradient is not finite; weights and optimiser state are as they were.
        """
        if not math.isfinite(loss):
            raise EngineError(f"the loss is {loss}; the weights were left as they were", fix="look at ratio_max and logprob_gap_max of the last updates")
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, optimization.gradient_clip))
        if not math.isfinite(norm):
            raise EngineError(f"the gradient norm is {norm}; the weights were left as they were", fix="lower the learning rate, or look at the advantages")
        for group in self._adamw.param_groups:
            group["lr"], group["weight_decay"] = optimization.learning_rate, optimization.weight_decay
            group["betas"] = (optimization.beta1, optimization.beta2)
        self._adamw.step()
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """Moments and step counts by name (``exp_avg/<parameter>`` ...); empty before the first step."""
        return {
            f"{moment}/{name}": self._adamw.state[parameter][moment] for name, parameter in self._named if self._adamw.state[parameter] for moment in _MOMENTS
        }

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from :meth:`state`."""
        self._adamw.state.clear()
        for name, parameter in self._named:
            if f"step/{name}" in state:
                moments = {moment: state[f"{moment}/{name}"].clone() for moment in _MOMENTS}
                self._adamw.state[parameter] = {moment: tensor.to(parameter.device) for moment, tensor in moments.items()}

    def snapshot(self) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Copies of weights and state, to take back the steps made after it."""
        return [parameter.detach().clone() for parameter in self._parameters], {name: tensor.clone() for name, tensor in self.state().items()}

    def restore(self, snapshot: tuple[list[torch.Tensor], dict[str, torch.Tensor]]) -> None:
        """Put back what :meth:`snapshot` copied."""
        weights, state = snapshot
        with torch.no_grad():
            for parameter, copy in zip(self._parameters, weights, strict=True):
                parameter.copy_(copy)
        self.load_state(state)
