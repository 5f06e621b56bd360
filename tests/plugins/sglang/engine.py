"""What is behind the routes of the contract server: generation with a prefix cache, pausing, weights and their label, as SGLang has them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.plugins.sglang.tiny_model import Cache, TinyModel


@dataclass
class Setup:
    """Options of the server. ``original``: log-probabilities before temperature. ``faults``: what it shall do wrong, by name."""

    folder: Path
    context: int = 1024
    version: str = "0.5.23"
    deterministic: bool = True
    original: bool = True
    label: str = "default"
    faults: set[str] = field(default_factory=set)


class Refused(Exception):
    """Becomes an answer with ``status``."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """Called from one thread for each request."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.model = setup, TinyModel(setup.folder)
        self.vocabulary = self.model.config["vocab_size"]
        self.label, self.folder = setup.label, setup.folder
        self.paused, self.running, self.aborted = False, set[str](), set[str]()
        self.greedy: set[str] = set()  # of those that run
        self.turn = threading.Condition()
        self.cache: list[tuple[list[int], Cache]] = []
        self.noise = np.random.default_rng(0)
        self.broken = threading.Event()  # ends what hangs

    def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        """The ``meta_info`` of an answer."""
        name, prompt, sampling = request["rid"], request["input_ids"], request["sampling_params"]
        for token in sampling.get("logit_bias") or ():
            if not 0 <= int(token) < self.vocabulary:
                raise Refused(f"logit_bias must has keys in [0, {self.vocabulary - 1}], got {token}.")
        if len(prompt) >= self.setup.context - 6:
            raise Refused(f"The input ({len(prompt)} tokens) is longer than the model's context length ({self.setup.context} tokens).")
        with self.turn:
            self.turn.wait_for(lambda: not self.paused)
            self.running.add(name)
            if sampling["temperature"] < 1e-6:
                self.greedy.add(name)
        try:
            return self._continue(name, list(prompt), sampling, request.get("top_logprobs_num") or 0)
        finally:
            with self.turn:
                self.running.discard(name)
                self.greedy.discard(name)
                self.aborted.discard(name)
                self.turn.notify_all()

    def _continue(self, name: str, prompt: list[int], sampling: dict[str, Any], top: int) -> dict[str, Any]:
        if "hang" in self.setup.faults:
            self.broken.wait()
        limit = min(sampling["max_new_tokens"], self.setup.context - 2 - len(prompt))
        started, cached, cache = self.label, *self._known(prompt)
        pending, log_probs, highest, reason = prompt[cached:], [], [], {"type": "length", "length": limit}
        while len(log_probs) < limit:
            logits, cache = self.model.forward(pending, cache)
            if not log_probs:
                self._keep(prompt, cache)
            if name in self.aborted:
                reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                break
            if "die" in self.setup.faults and len(log_probs) == 2:
                raise SystemExit
            token, values = self._draw(logits.astype(np.float64), sampling, len(prompt) + len(log_probs))
            log_probs.append((float(values[token]), token, None))
            highest.append([(float(values.max()), int(values.argmax()), None)][:top])
            pending = [token]
            if not sampling.get("ignore_eos") and token in {*(sampling["stop_token_ids"] or ()), self.model.config["eos_token_id"]}:
                reason = {"type": "stop", "matched": token}
                break
            time.sleep(0)
        answer = {"id": name, "finish_reason": reason, "prompt_tokens": len(prompt), "completion_tokens": len(log_probs), "cached_tokens": cached}
        answer |= {"output_token_logprobs": log_probs, "weight_version": self.label} | ({"output_top_logprobs": highest} if top else {})
        if self.setup.version >= "0.5.23":
            answer["weight_versions"] = [{"version": started, "start": 0, "end": len(log_probs)}]
        return answer

    def _draw(self, logits: np.ndarray, sampling: dict[str, Any], position: int) -> tuple[int, np.ndarray]:
        temperature = sampling["temperature"]
        plain = logits - np.logaddexp.reduce(logits)
        if temperature < 1e-6:
            return int(plain.argmax()), plain
        tempered = logits / temperature
        tempered -= np.logaddexp.reduce(tempered)
        noise = np.random.default_rng((sampling.get("sampling_seed", 42), position)) if self.setup.deterministic else self.noise
        noisy = noise.gumbel(size=len(logits))  # one for each token, or, beside a request that takes the highest, one for each rank
        ranks = np.argsort(-tempered) if self.greedy else np.arange(len(logits))
        token = int(ranks[(tempered[ranks] + noisy).argmax()])
        return token, tempered if "tempered" in self.setup.faults or not self.setup.original else plain

    def _known(self, prompt: list[int]) -> tuple[int, Cache | None]:
        best, found = 0, None
        for tokens, cache in self.cache[-64:]:
            same = next((i for i, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b), min(len(tokens), len(prompt)))
            if min(same, len(prompt) - 1) > best:
                best, found = min(same, len(prompt) - 1), cache
        return best, [(k[:, :best], v[:, :best]) for k, v in found] if found else None

    def _keep(self, prompt: list[int], cache: Cache) -> None:
        self.cache.append((prompt, cache))

    def abort(self, name: str, everything: bool = False) -> None:
        """Takes effect before the next token."""
        with self.turn:
            self.aborted |= self.running if everything else {each for each in self.running if name and each.startswith(name)}

    def pause(self, mode: str) -> None:
        """Mode ``abort`` returns once nothing is under way."""
        if mode != "abort":
            raise Refused(f"this server does not play pause mode {mode}", 501)
        with self.turn:
            self.paused = True
        while self.running:
            self.abort("", everything=True)
            time.sleep(0.002)

    def resume(self) -> None:
        """Go on with what waits."""
        with self.turn:
            self.paused = False
            self.turn.notify_all()

    def update(self, request: dict[str, Any]) -> tuple[bool, str]:
        """(success, message) of an update from disk. While it is not paused, it waits for what is under way."""
        with self.turn:
            self.turn.wait_for(lambda: self.paused or not self.running)
            if "refuses" in self.setup.faults or "refuses_with_200" in self.setup.faults:
                return False, "Failed to update weights: it does not like them.\nRolling back to original weights."
            if "forgets" not in self.setup.faults:
                try:
                    self.model.load(Path(request["model_path"]))
                except FileNotFoundError as error:
                    return False, f"Failed to get weights iterator: {error}."
                except ValueError as error:
                    return False, f"Failed to update weights: {error}.\nRolling back to original weights."
            self.folder = Path(request["model_path"])
            if request.get("weight_version") is not None and "keeps_label" not in self.setup.faults:
                self.label = request["weight_version"]
            if request.get("flush_cache", True) and not self.flush(0.0):
                return False, "Weights were updated, but the cache was not flushed because requests are still running or queued."
        return True, "Succeeded to update model weights."

    def flush(self, timeout: float) -> bool:
        """Drop the cache once nothing is under way; False if that takes longer."""
        with self.turn:
            if "does_not_flush" in self.setup.faults or not self.turn.wait_for(lambda: not self.running, timeout):
                return False
            if "stale" not in self.setup.faults:
                self.cache.clear()
        return True
