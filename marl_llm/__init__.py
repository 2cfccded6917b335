"""Train and evaluate teams of language models with multi-agent reinforcement learning."""

__version__ = "0.1.0"
