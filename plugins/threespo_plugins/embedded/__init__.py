"""The embedded engine: torch and transformers in this process, on CPU or one GPU."""
