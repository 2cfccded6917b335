"""The commands of `marl-llm`, one module each with a `run(words) -> int`.

A module's docstring is the command's help. Heavy imports (torch, transformers) stand inside the
functions that need them, behind the check of the words.
"""
