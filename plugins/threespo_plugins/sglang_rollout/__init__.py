"""``rollout=sglang``: SGLang samples, in a server of its own, from weights that are handed over after every update."""
