"""The supervisor, under the name that its users expect. Its code is in oven_llm.supervisor."""

from __future__ import annotations

from oven_llm.supervisor.model_handlers import AnthropicHandler, ModelHandler, OpenAIHandler
from oven_llm.supervisor.orchestrator import RunResult, arun, run

__all__ = ["AnthropicHandler", "ModelHandler", "OpenAIHandler", "RunResult", "arun", "run"]
