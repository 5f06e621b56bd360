"""vLLM in this process: everything that waits is one batch, as with the engine's own sampling."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from threespo_bench.contracts.rollout import Completion, RolloutServer, ServedModel, Weights
from threespo_bench.errors import EngineError
from threespo_plugins.embedded.scheduler import BatchScheduler
from threespo_plugins.messages import first_line
from threespo_plugins.serving.labels import Labels
from threespo_plugins.vllm_rollout import arguments
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.tensors import for_vllm

_Request = tuple[np.ndarray, dict[str, Any]]


class InProcess(RolloutServer):
    """vLLM's engine in the event loop's thread. A batch blocks the loop, so no request is under way when weights are published."""

    gathers = True

    def __init__(self, config: VllmConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._labels = Labels()
        self._scheduler: BatchScheduler[_Request, Completion] = BatchScheduler(self._answer)
        self._llm: Any = None

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        wanted = {**arguments.environment(self.config, self.model), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        os.environ.update({name: value for name, value in wanted.items() if name not in os.environ or name == "VLLM_ENABLE_V1_MULTIPROCESSING"})
        import torch
        import torch._dynamo

        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        torch._dynamo.config.disable = torch._dynamo.config.disable or self.config.eager  # the variable is read once, by whoever was first
        try:
            from vllm import LLM

            self._llm = LLM(**arguments.engine_arguments(self.config, self.model))
        except Exception as error:  # it raises whatever its parts raise
            raise EngineError(f"vLLM does not start: {first_line(error)}") from error
        finally:  # the learner computes in this process too
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
        self._engine.set_weight_version(self._labels.of(0))

    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        """See :meth:`RolloutServer.complete`."""
        return await self._scheduler.submit((prompt_ids, arguments.sampling_parameters(self.model, seed, temperature, max_new_tokens)))

    def publish(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.publish`. The tensors are copied as they are; nothing is written."""
        self._engine.set_weight_version(self._labels.none)
        try:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": for_vllm(weights, self.model.folder)})
        except Exception as error:
            raise EngineError(f"vLLM refused the weights: {first_line(error)}") from error
        if not self._llm.reset_prefix_cache():
            raise EngineError("vLLM did not drop what it cached of older weights")
        self._engine.set_weight_version(self._labels.of(version))

    def close(self) -> None:
        """See :meth:`RolloutServer.close`."""
        if self._llm is not None:
            self._engine.engine_core.shutdown()
            self._llm = None

    @property
    def _engine(self) -> Any:
        return self._llm.llm_engine

    def _answer(self, requests: Sequence[_Request]) -> list[Completion | Exception]:
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": prompt.tolist()} for prompt, _ in requests]
        try:
            outputs = self._llm.generate(prompts, [SamplingParams(**sampling) for _, sampling in requests], use_tqdm=False)
        except Exception as error:
            raise EngineError(f"vLLM failed: {first_line(error)}") from error
        return [self._completion(output) for output in outputs]

    def _completion(self, output: Any) -> Completion:
        answer = output.outputs[0]
        tokens = list(answer.token_ids)
        return Completion(
            token_ids=np.array(tokens, np.int32),
            log_probs=np.array([place[token].logprob for place, token in zip(answer.logprobs, tokens, strict=True)], np.float32),
            version=self._labels.version(span.version for span in answer.weight_versions or ()),
            finished=answer.finish_reason == "stop",
            cached_tokens=output.num_cached_tokens or 0,
        )
