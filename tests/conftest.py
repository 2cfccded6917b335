"""For all tests: property tests have no deadline, since a busy machine would make them fail."""

from hypothesis import settings

settings.register_profile("marl_llm", deadline=None)
settings.load_profile("marl_llm")
