"""threespo-bench: compare reinforcement-learning algorithms for language-model agents."""

__version__ = "0.1.0"
