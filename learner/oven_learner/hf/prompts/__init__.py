"""The prompts of a training: from lists, files, folders or functions, by topic, with more added while it runs."""

from oven_learner.hf.prompts.injected import Injection
from oven_learner.hf.prompts.source import PromptSource

__all__ = ["Injection", "PromptSource"]
