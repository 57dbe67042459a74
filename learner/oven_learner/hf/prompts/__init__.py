"""The prompts that a training draws: from lists, files, folders or functions, by topic, with more added on the way."""

from oven_learner.hf.prompts.injected import Injection
from oven_learner.hf.prompts.source import PromptSource

__all__ = ["Injection", "PromptSource"]
