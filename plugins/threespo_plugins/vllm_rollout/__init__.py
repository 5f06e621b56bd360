"""``rollout=vllm``: vLLM samples, in a server of its own or in this process, from weights that are handed over after every update."""
