"""MCP tools that read runs and change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import BaseModel, ConfigDict, Field

from oven_agents.diagnosis.engine import find_findings
from oven_agents.diagnosis.finding import Finding
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.review.backtest import Backtest, BacktestReport
from oven_controller.finding_report import explain_findings
from oven_controller.mcp_server.allowed_runs import AllowedRuns
from oven_controller.mcp_server.tool_answer import answer
from oven_controller.mcp_server.tool_thread import Progress, run_on_thread
from oven_controller.stack.run_status import RunStatus, run_status
from oven_core.errors import ConfigError
from oven_core.protocol.events import Event
from oven_core.protocol.graph_requests import Diagnosis
from oven_runs.access.decision_explanations import explain_decision, read_explanations
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import Home
from oven_runs.home.run_listing import ListedRun, listed_runs
from oven_runs.log.decision_row import DecisionFilter, DecisionRow, decision_row
from oven_runs.log.explanation_report import ExplanationReport, report
from oven_runs.log.metric_history import MetricHistory, MetricReader
from oven_runs.log.run_summary import Verdict
from oven_runs.log.since_option import ACCEPTED_FORMS, Since
from oven_runs.settings.resolution import rules_from_sets

MAX_RUNS: Final = 50
"""Maximum number of runs in the list."""
MAX_METRICS: Final = 200
"""Maximum number of metrics in a status, so that the status fits into one answer. Trainers usually publish fewer."""

RunName: TypeAlias = Annotated[
    str | None, Field(description="the run's name; by default the running one, or else the newest")
]
SinceText: TypeAlias = Annotated[
    str, Field(description=f"only what happened after this point: {ACCEPTED_FORMS} before the log's newest event")
]
RuleChanges: TypeAlias = Annotated[
    tuple[str, ...], Field(max_length=32, description="rules to use instead of the run's, e.g. rules.autonomy=auto")
]


class RunList(BaseModel):
    """The runs of this machine."""

    model_config = ConfigDict(frozen=True)

    runs: tuple[ListedRun, ...] = Field(description="newest first")
    more: int = Field(description="number of older runs that are not listed")


class DecisionList(BaseModel):
    """Decisions of a run."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    tick: int = Field(description="the run's newest tick")
    step: int
    decisions: tuple[DecisionRow, ...] = Field(description="newest last")
    more: int = Field(description="number of older matching decisions that are not listed")


class DiagnosisReport(BaseModel):
    """What is wrong with a run, and what the knowledge graph suggests."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    findings: tuple[Finding, ...] = Field(description="what is wrong, most important first; empty if nothing is")
    graph: Diagnosis | None = Field(
        description="the findings' causes in the knowledge graph, and remedies with sources; null without a finding"
    )


class ReadingTools:
    """The tools, one per method. A client reads the methods' docstrings as descriptions."""

    def __init__(self, allowed_runs: AllowedRuns) -> None:
        self._allowed_runs = allowed_runs

    async def runs(self, context: Context) -> Annotated[CallToolResult, RunList]:
        """List the training runs on this machine with their states, newest first."""

        def work(progress: Progress) -> RunList:
            allowed_runs = self._allowed_runs
            if allowed_runs.is_remote:
                raise ConfigError("runs on another machine cannot be listed: use `status` for this one")
            rows = [run for run in listed_runs(Home()) if allowed_runs.run in (None, run.run)]
            return RunList(runs=tuple(rows[:MAX_RUNS]), more=len(rows[MAX_RUNS:]))

        return answer(await run_on_thread(context, work))

    async def status(self, context: Context, run: RunName = None) -> Annotated[CallToolResult, RunStatus]:
        """Show the state of a run: step, newest metrics, knobs, decisions by verdict, advice awaiting approval (with
        the decision's id), agents, and problems (`notes`)."""

        def work(progress: Progress) -> RunStatus:
            status = asyncio.run(run_status(self._allowed_runs.find(run), progress.on_event))
            more = len(status.metrics) - MAX_METRICS
            if more <= 0:
                return status
            note = f"{more} of {len(status.metrics)} metrics are not listed here; `metric` returns any metric by name"
            metrics = dict(itertools.islice(status.metrics.items(), MAX_METRICS))
            return status.model_copy(update={"metrics": metrics, "notes": (*status.notes, note)})

        return answer(await run_on_thread(context, work))

    async def metric(
        self,
        context: Context,
        name: Annotated[str, Field(description="as `status` lists it, e.g. loss or eval/accuracy")],
        run: RunName = None,
        since: SinceText = "",
        max_points: Annotated[int, Field(ge=5, le=1000, description="maximum number of measurements")] = 100,
    ) -> Annotated[CallToolResult, MetricHistory]:
        """Show one metric over a run. With more measurements than max_points, the smallest and the largest value of
        each interval are kept, so that spikes stay visible. No value is an average."""

        def work(progress: Progress) -> MetricHistory:
            access, reader = self._allowed_runs.find(run), MetricReader(name, Since.parse(since))
            asyncio.run(_read_log(access, progress, reader.feed))
            return reader.history(access.run, max_points)

        return answer(await run_on_thread(context, work), "set a smaller max_points")

    async def decisions(
        self,
        context: Context,
        run: RunName = None,
        since: SinceText = "",
        actuator: Annotated[str, Field(description="only decisions on this actuator")] = "",
        agent: Annotated[str, Field(description="only decisions that this agent voted on, or this person caused")] = "",
        verdict: Annotated[Verdict | None, Field(description="only decisions with this verdict")] = None,
        limit: Annotated[int, Field(ge=1, le=100, description="maximum number of decisions, newest first")] = 20,
    ) -> Annotated[CallToolResult, DecisionList]:
        """List the decisions of a run: step, author, change, verdict and reason, the value read back, and the effect
        on the target metric. `explain` shows one in full."""

        def work(progress: Progress) -> DecisionList:
            access = self._allowed_runs.find(run)
            decision_filter = DecisionFilter(Since.parse(since), actuator, agent, verdict or "")
            explanations = asyncio.run(read_explanations(access, progress.on_event))
            by_id, newest_time = explanations.by_id, explanations.newest_time
            decision_filter.check_names(by_id.values())
            ids = [id_ for id_, explanation in by_id.items() if decision_filter.matches(explanation, newest_time)]
            rows = tuple(decision_row(explanations.get(id_)) for id_ in ids[-limit:])
            tick, step = explanations.tick, explanations.step
            return DecisionList(run=access.run, tick=tick, step=step, decisions=rows, more=len(ids) - len(rows))

        return answer(await run_on_thread(context, work), "set a smaller limit")

    async def explain(
        self,
        context: Context,
        decision: Annotated[
            str,
            Field(
                description="the decision's id or its beginning, or an actuator, for its newest decision that passed"
            ),
        ],
        run: RunName = None,
        rules: RuleChanges = (),
    ) -> Annotated[CallToolResult, ExplanationReport]:
        """Show one decision in full: the votes and their reasons, the knowledge graph's paths, the guardrails
        that applied, the forecast, the receipt with the value read back, and the outcome. With `rules`, also show the
        decision under these rules (open loop)."""

        def work(progress: Progress) -> ExplanationReport:
            access, changed_rules = self._allowed_runs.find(run), rules_from_sets(rules)
            explanation, alternative = asyncio.run(explain_decision(access, decision, changed_rules, progress.on_event))
            return report(access.run, explanation, alternative)

        return answer(await run_on_thread(context, work))

    async def diagnose(
        self,
        context: Context,
        run: RunName = None,
        remedies: Annotated[int, Field(ge=1, le=20, description="maximum number of the graph's remedies")] = 5,
    ) -> Annotated[CallToolResult, DiagnosisReport]:
        """Find what is wrong with a run, since which step, how certain that is, and what to change, most important
        first. `graph` adds remedies from the knowledge graph with sources; its `unmet` lists what the run lacks."""

        def work(progress: Progress) -> DiagnosisReport:
            access, record = self._allowed_runs.find(run), RunRecord()
            asyncio.run(_read_log(access, progress, record.add))
            findings = find_findings(record)
            return DiagnosisReport(
                run=access.run, findings=tuple(findings), graph=explain_findings(findings, record, remedies)
            )

        return answer(await run_on_thread(context, work), "set a smaller `remedies`")

    async def backtest(
        self,
        context: Context,
        agent: Annotated[str, Field(description="an installed agent's name, or a file in the folder of --agent-files")],
        run: RunName = None,
        rules: RuleChanges = (),
        limit: Annotated[int, Field(ge=1, le=200, description="maximum number of votes, newest first")] = 50,
    ) -> Annotated[CallToolResult, BacktestReport]:
        """Show the votes that an agent would have cast in a recorded run, and the resulting decisions. The recording
        does not react to them (open loop), so only the part before the first divergence is certain. A long run takes a
        while; progress is reported, and the call can be cancelled."""

        def work(progress: Progress) -> BacktestReport:
            from oven_agents.review.backtest import backtest as run_backtest

            access, changed_rules = self._allowed_runs.find(run), rules_from_sets(rules)
            target = self._allowed_runs.resolve_agent(agent)
            with contextlib.redirect_stdout(sys.stderr):  # an agent may print, but stdout is for the protocol
                events = access.events(exact=True)
                coroutine = run_backtest(target, access.run, events, changed_rules, progress.report)
                finished: Backtest = asyncio.run(coroutine)
            return finished.report().newest(limit)

        return answer(await run_on_thread(context, work), "set a smaller limit")


async def _read_log(access: RunAccess, progress: Progress, feed: Callable[[Event], None]) -> None:
    async for event in access.events():
        feed(event)
        progress.on_event(event)
