"""Training prompts by topic, from lists, files, folders or functions. More can be added during the run."""

from oven_learner.hf.prompts.injected import Injection
from oven_learner.hf.prompts.source import PromptSource

__all__ = ["Injection", "PromptSource"]
