"""A small Qwen2 in NumPy, so that a server with it is up at once and shares nothing with the learner that it is compared with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

Cache = list[tuple[np.ndarray, np.ndarray]]
"""Keys and values of each layer, (heads, tokens, size)."""


class TinyModel:
    """Reads a Hugging Face folder; float32 only."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        theta = (self.config.get("rope_parameters") or self.config)["rope_theta"]
        self.size = self.config["hidden_size"] // self.config["num_attention_heads"]
        self._frequencies = theta ** -(np.arange(0, self.size, 2) / self.size)
        self._weights: dict[str, np.ndarray] = {}
        self.load(folder)

    def load(self, folder: Path) -> None:
        """Raises FileNotFoundError, or ValueError for tensors of another model; the former ones stay then."""
        found: dict[str, np.ndarray] = {}
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"Cannot find any model weights with `{folder}`")
        for file in files:
            found |= load_file(file)
        shapes = {name: array.shape for name, array in self._weights.items()}
        if shapes and shapes != {name: array.shape for name, array in found.items()}:
            raise ValueError("the tensors are of another model")
        self._weights = found

    def forward(self, tokens: list[int], cache: Cache | None) -> tuple[np.ndarray, Cache]:
        """Logits after the last token, and the cache with ``tokens`` in it; the one that was given stays as it is."""
        w, heads = self._weights, self.config["num_attention_heads"]
        known = cache[0][0].shape[1] if cache else 0
        x, new = w["model.embed_tokens.weight"][tokens], []
        angle = np.arange(known, known + len(tokens))[:, None] * self._frequencies
        cos, sin = np.tile(np.cos(angle), 2).astype(np.float32), np.tile(np.sin(angle), 2).astype(np.float32)
        hidden = np.arange(known + len(tokens)) > np.arange(known, known + len(tokens))[:, None]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            y = self._norm(x, name + "input_layernorm")
            q, k, v = (self._split(y, f"{name}self_attn.{part}_proj") for part in "qkv")
            q, k = q * cos + _turned(q) * sin, k * cos + _turned(k) * sin
            if cache:
                k, v = np.concatenate([cache[layer][0], k], 1), np.concatenate([cache[layer][1], v], 1)
            new.append((k, v))
            shared = heads // k.shape[0]
            scores = q @ k.repeat(shared, 0).swapaxes(1, 2) / np.sqrt(np.float32(self.size))
            scores = np.where(hidden, np.float32(-np.inf), scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (weights / weights.sum(-1, keepdims=True)) @ v.repeat(shared, 0)
            x = x + mixed.swapaxes(0, 1).reshape(len(tokens), -1) @ w[name + "self_attn.o_proj.weight"].T
            y = self._norm(x, name + "post_attention_layernorm")
            gate = y @ w[name + "mlp.gate_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ w[name + "mlp.up_proj.weight"].T)) @ w[name + "mlp.down_proj.weight"].T
        last = self._norm(x[-1], "model.norm")
        return w.get("lm_head.weight", w["model.embed_tokens.weight"]) @ last, new

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self._weights[name + ".weight"]

    def _split(self, x: np.ndarray, name: str) -> np.ndarray:
        y = x @ self._weights[name + ".weight"].T + self._weights[name + ".bias"]
        return y.reshape(len(x), -1, self.size).swapaxes(0, 1)


def _turned(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)
