"""MCP tools that read runs and change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections import deque
from typing import Annotated, Final, TypeAlias

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import BaseModel, ConfigDict, Field

from oven_agents.review.backtest import Backtest, BacktestReport
from oven_controller.mcp_server.allowed_runs import Reach
from oven_controller.mcp_server.tool_answer import answer
from oven_controller.mcp_server.tool_thread import Progress, on_thread
from oven_controller.stack.run_status import RunStatus, run_status
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.graph_requests import Diagnosis
from oven_runs.access.decision_explanations import explain_decision, read_explanations
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import Home
from oven_runs.home.run_listing import ListedRun, listed_runs
from oven_runs.log.decision_row import DecisionFilter, DecisionRow, decision_row
from oven_runs.log.explanation_report import ExplanationReport, report
from oven_runs.log.metric_history import MetricHistory, MetricReader
from oven_runs.log.named_symptoms import NamedSymptom, NamedSymptoms
from oven_runs.log.run_summary import Verdict
from oven_runs.log.since import FORMS, Since
from oven_runs.settings.resolution import rules_set

RUNS: Final = 50
"""Maximum runs in the list."""
METRICS: Final = 200
"""Maximum metrics in a status. Trainers publish fewer, and all of them fit into one answer."""

Run: TypeAlias = Annotated[
    str | None, Field(description="the run's name; without it, the running one, else the newest")
]
SinceText: TypeAlias = Annotated[
    str, Field(description=f"only what came after this point: {FORMS} before the log's newest event")
]
Rules: TypeAlias = Annotated[
    tuple[str, ...], Field(max_length=32, description="rules to use instead of the run's, e.g. rules.autonomy=auto")
]


class RunList(BaseModel):
    """The runs of this machine."""

    model_config = ConfigDict(frozen=True)

    runs: tuple[ListedRun, ...] = Field(description="the newest first")
    more: int = Field(description="how many older ones are not listed")


class DecisionList(BaseModel):
    """Decisions of a run."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    tick: int = Field(description="the run's newest")
    step: int
    decisions: tuple[DecisionRow, ...] = Field(description="the newest last")
    more: int = Field(description="how many older ones match and are not listed")


class DiagnosisReport(BaseModel):
    """Causes and remedies for the symptoms of a run."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    named: tuple[NamedSymptom, ...] = Field(description="symptoms that agents named in the run, the newest first")
    symptoms: tuple[str, ...] = Field(description="symptoms that the graph was asked about")
    diagnosis: Diagnosis | None = Field(
        description="causes and remedies; p ranks them and is not a calibrated probability. Null if there was no "
        "symptom to ask about"
    )


class ReadingTools:
    """Each method is a tool, and its docstring is its description for the client."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    async def runs(self, context: Context) -> Annotated[CallToolResult, RunList]:
        """List the training runs that the controller knows, the newest first, with their states."""

        def work(progress: Progress) -> RunList:
            reach = self._reach
            if reach.elsewhere:
                raise ConfigError("the run is on another machine, which does not list its runs: use `status`")
            rows = [run for run in listed_runs(Home()) if reach.run in (None, run.run)]
            return RunList(runs=tuple(rows[:RUNS]), more=len(rows[RUNS:]))

        return answer(await on_thread(context, work))

    async def status(self, context: Context, run: Run = None) -> Annotated[CallToolResult, RunStatus]:
        """How a run is doing: step, newest metrics, knobs, decisions by verdict, advice that waits for approval (with
        the decision's id), agents, and problems (`notes`)."""

        def work(progress: Progress) -> RunStatus:
            status = asyncio.run(run_status(self._reach.find(run), progress.hear))
            if not (more := len(status.metrics) - METRICS) > 0:
                return status
            note = f"{more} of {len(status.metrics)} metrics are not listed here; `metric` returns any by its name"
            metrics = dict(itertools.islice(status.metrics.items(), METRICS))
            return status.model_copy(update={"metrics": metrics, "notes": (*status.notes, note)})

        return answer(await on_thread(context, work))

    async def metric(
        self,
        context: Context,
        name: Annotated[str, Field(description="as `status` lists it, e.g. loss or eval/accuracy")],
        run: Run = None,
        since: SinceText = "",
        max_points: Annotated[int, Field(ge=5, le=1000, description="maximum number of measurements")] = 100,
    ) -> Annotated[CallToolResult, MetricHistory]:
        """One metric over a run. If there are more measurements than max_points, each stretch keeps its smallest and
        its largest value, so that spikes stay; no value is an average."""

        def work(progress: Progress) -> MetricHistory:
            access, reader = self._reach.find(run), MetricReader(name, Since.read(since))
            asyncio.run(_feed(access, progress, reader))
            return reader.history(access.run, max_points)

        return answer(await on_thread(context, work), "set a smaller max_points")

    async def decisions(
        self,
        context: Context,
        run: Run = None,
        since: SinceText = "",
        actuator: Annotated[str, Field(description="only decisions on this actuator")] = "",
        agent: Annotated[str, Field(description="only decisions that this agent voted on, or this person gave")] = "",
        verdict: Annotated[Verdict | None, Field(description="only decisions with this verdict")] = None,
        limit: Annotated[int, Field(ge=1, le=100, description="how many of the newest")] = 20,
    ) -> Annotated[CallToolResult, DecisionList]:
        """The decisions of a run: step, author, change, verdict and reason, the value read back, and the effect on the
        target metric. `explain` has one in full."""

        def work(progress: Progress) -> DecisionList:
            access, criteria = self._reach.find(run), DecisionFilter(Since.read(since), actuator, agent, verdict or "")
            log = asyncio.run(read_explanations(access, progress.hear))
            criteria.check(log.by_id.values())
            ids = [id_ for id_, explanation in log.by_id.items() if criteria.matches(explanation, log.newest)]
            rows = [decision_row(log.get(id_)) for id_ in deque(ids, maxlen=limit)]
            return DecisionList(
                run=access.run, tick=log.tick, step=log.step, decisions=tuple(rows), more=len(ids) - len(rows)
            )

        return answer(await on_thread(context, work), "set a smaller limit")

    async def explain(
        self,
        context: Context,
        decision: Annotated[
            str,
            Field(description="its id or the start of it, or an actuator, for the newest decision on it that passed"),
        ],
        run: Run = None,
        rules: Rules = (),
    ) -> Annotated[CallToolResult, ExplanationReport]:
        """One decision in full: who voted how and why, the knowledge graph's paths, guardrails in the reason, the
        forecast, the receipt with the value read back, and the outcome. With `rules` also
        what these rules would have decided (open loop)."""

        def work(progress: Progress) -> ExplanationReport:
            access, changed_rules = self._reach.find(run), rules_set(rules)
            explanation, alternative = asyncio.run(explain_decision(access, decision, changed_rules, progress.hear))
            return report(access.run, explanation, alternative)

        return answer(await on_thread(context, work))

    async def diagnose(
        self,
        context: Context,
        run: Run = None,
        symptoms: Annotated[
            tuple[str, ...],
            Field(
                max_length=64,
                description="the graph's ids, e.g. loss_spike; without any, those that agents named",
            ),
        ] = (),
        since: SinceText = "",
        remedies: Annotated[int, Field(ge=1, le=20, description="maximum number of remedies")] = 5,
    ) -> Annotated[CallToolResult, DiagnosisReport]:
        """Likely causes and remedies for the symptoms of a run, from the knowledge graph, with its sources. A remedy's
        `unmet` lists what the run lacks for it."""

        def work(progress: Progress) -> DiagnosisReport:
            access, fold = self._reach.find(run), NamedSymptoms(Since.read(since))
            asyncio.run(_feed(access, progress, fold))
            named = fold.symptoms()
            ids = tuple(symptoms) or tuple(symptom.id for symptom in named[:8])
            diagnosis = None
            if ids:
                from oven_kg.checked_graph import load
                from oven_kg.reasoning.diagnosis import diagnose

                graph = load()
                diagnosis = diagnose(graph, fold.diagnose_request(ids, remedies))
                if symptoms and diagnosis.unknown:
                    known = (node.id for node in graph.nodes_of_kind("symptom"))
                    raise UnknownNameError("symptom", diagnosis.unknown[0], known)
            return DiagnosisReport(run=access.run, named=tuple(named[:64]), symptoms=ids, diagnosis=diagnosis)

        return answer(await on_thread(context, work), "ask for fewer remedies")

    async def backtest(
        self,
        context: Context,
        agent: Annotated[str, Field(description="an installed agent's name, or a file in the folder of --agent-files")],
        run: Run = None,
        rules: Rules = (),
        limit: Annotated[int, Field(ge=1, le=200, description="how many of the newest votes")] = 50,
    ) -> Annotated[CallToolResult, BacktestReport]:
        """The votes that an agent would have cast in a recorded run, and the decisions that would have followed. Open
        loop: the recording does not react, so only the part before the first divergence is certain. It takes a while on
        a long run, reports its progress and can be cancelled."""

        def work(progress: Progress) -> BacktestReport:
            from oven_agents.review.backtest import backtest as run_backtest

            access, changed_rules = self._reach.find(run), rules_set(rules)
            target = self._reach.agent(agent)
            with contextlib.redirect_stdout(sys.stderr):  # an agent may print, and stdout is the protocol's
                test: Backtest = asyncio.run(
                    run_backtest(target, access.run, access.events(exact=True), changed_rules, progress.count)
                )
            return test.report().newest(limit)

        return answer(await on_thread(context, work), "set a smaller limit")


Fold: TypeAlias = MetricReader | NamedSymptoms


async def _feed(access: RunAccess, progress: Progress, fold: Fold) -> None:
    async for event in access.events():
        fold.feed(event)
        progress.hear(event)
