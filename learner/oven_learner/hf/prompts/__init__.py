"""Training prompts by topic, from lists, files, folders or functions. Prompts can be added during the run."""

from oven_learner.hf.prompts.injected_prompts import Injection
from oven_learner.hf.prompts.prompt_source import PromptSource

__all__ = ["Injection", "PromptSource"]
