"""A tool that refuses arguments that it does not take, in a sentence: the SDK's own ignores a name that is misspelt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import ConfigDict, ValidationError

from oven_core.errors import UnknownNameError, reason
from oven_core.terminal_text import clean


class StrictTool(Tool):
    """Made by `tool`."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Raises ToolError for arguments that the tool does not take, and what the tool raises."""
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            raise ToolError(clean(self._wrong(error))) from None
        return await super().run(arguments, context, convert_result)

    def _wrong(self, error: ValidationError) -> str:
        first, names = error.errors(include_url=False)[0], list(self.parameters["properties"])
        if first["type"] == "extra_forbidden":
            return str(UnknownNameError(f"argument of {self.name}", str(first["loc"][0])[:80], names))
        return f"{self.name}: {reason(error)}; it takes {', '.join(names) or 'nothing'}"


def tool(function: Callable[..., Any], annotations: ToolAnnotations) -> Tool:
    """The method as a tool. Its schemas are derived from its arguments and from the model that it returns."""
    made = StrictTool.from_function(function, annotations=annotations)
    arguments = made.fn_metadata.arg_model

    class Strict(arguments):  # type: ignore[misc, valid-type]
        model_config = ConfigDict(extra="forbid")

    Strict.__name__ = Strict.__qualname__ = arguments.__name__
    made.fn_metadata.arg_model = Strict
    made.parameters = Strict.model_json_schema(by_alias=True)
    return made
