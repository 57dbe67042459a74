"""The MCP tool that casts one proposal as an agent without trust. The server offers it only with --propose."""

from __future__ import annotations

from typing import Annotated, Final

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from oven_controller.mcp_server.allowed_runs import AllowedRuns
from oven_controller.mcp_server.reading_tools import RunName
from oven_controller.mcp_server.tool_answer import answer
from oven_controller.mcp_server.tool_thread import Progress, run_on_thread
from oven_controller.stack.proposals import DEFAULT_CONFIDENCE, DEFAULT_WAIT_S, ProposalReport, cast_proposal
from oven_core.errors import ConfigError
from oven_runs.access.local_run import LocalRun

AGENT: Final = "mcp-proposals"
"""The agent's name in the log, for all proposals from this server. `mcp` is the name of the server's operator key."""


class ProposingTool:
    """The tool `propose`. A client reads the method's docstring as its description."""

    def __init__(self, allowed_runs: AllowedRuns) -> None:
        self._allowed_runs = allowed_runs

    async def propose(
        self,
        context: Context,
        actuator: Annotated[str, Field(max_length=128, description="the knob, as in `status`")],
        why: Annotated[str, Field(min_length=1, max_length=2000, description="the reason, with figures of this run")],
        value: Annotated[
            float | str | dict[str, float] | None,
            Field(description="a number, a choice, or shares; null for an action without a value"),
        ] = None,
        confidence: Annotated[
            float, Field(ge=0, le=1, description="probability that the change beats doing nothing")
        ] = DEFAULT_CONFIDENCE,
        run: RunName = None,
        wait_s: Annotated[
            float, Field(ge=0.1, le=600, description="maximum seconds to wait for the mesh's answer")
        ] = DEFAULT_WAIT_S,
    ) -> Annotated[CallToolResult, ProposalReport]:
        """Propose a value for a knob of a live run, as an agent without trust, and return the mesh's answer.
        Agents may vote against it, the guardrails bound it, and a person approves it before it changes anything."""

        def work(progress: Progress) -> ProposalReport:
            access = self._allowed_runs.find(run, running=True)
            if not isinstance(access, LocalRun):
                raise ConfigError(
                    f"run {access.run!r} is on another machine, and a proposal needs an agent's key of its folder; "
                    f"call `oven-controller propose` on that machine"
                )
            return cast_proposal(
                access.folder,
                AGENT,
                actuator,
                value,
                why,
                confidence=confidence,
                wait_s=wait_s,
                on_event=progress.on_event,
            )

        return answer(await run_on_thread(context, work))
