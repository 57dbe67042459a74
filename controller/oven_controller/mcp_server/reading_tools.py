"""The tools that look at runs. None of them changes anything."""

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

from oven_agents.review.backtest import Backtest
from oven_agents.review.backtest_report import BacktestReport
from oven_controller.mcp_server.decision_cache import DecisionCache
from oven_controller.mcp_server.reach import Reach
from oven_controller.mcp_server.tool_answer import answer
from oven_controller.mcp_server.tool_thread import Progress, on_thread
from oven_controller.stack.run_status import RunStatus, run_status
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.graph_requests import Diagnosis
from oven_runs.access.other_ruling import other_ruling
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import Home
from oven_runs.home.run_listing import ListedRun, listed_runs
from oven_runs.log.decision_row import DecisionFilter, DecisionRow, Verdict, row
from oven_runs.log.explanation_report import ExplanationReport, report
from oven_runs.log.metric_history import MetricHistory, MetricReader
from oven_runs.log.named_symptoms import NamedSymptom, NamedSymptoms
from oven_runs.log.since import FORMS, Since
from oven_runs.settings.resolution import rules_set

RUNS: Final = 50
"""Runs that the list holds, the newest."""
METRICS: Final = 200
"""Metrics that a status holds: more than a trainer publishes, and fewer than would fill an answer."""

Run: TypeAlias = Annotated[
    str | None, Field(description="the run's name; without one: the one that runs, else the newest")
]
SinceText: TypeAlias = Annotated[
    str, Field(description=f"only what came from there on: {FORMS} before the log's newest event")
]
Rules: TypeAlias = Annotated[
    tuple[str, ...], Field(max_length=32, description="to decide by in place of the run's, e.g. rules.autonomy=auto")
]


class RunList(BaseModel):
    """The runs of this machine."""

    model_config = ConfigDict(frozen=True)

    runs: tuple[ListedRun, ...] = Field(description="the newest first")
    more: int = Field(description="older ones that were left out")


class DecisionList(BaseModel):
    """Decisions of a run."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    tick: int = Field(description="the run's newest")
    step: int
    decisions: tuple[DecisionRow, ...] = Field(description="the newest last")
    more: int = Field(description="older ones that match and were left out")


class DiagnosisReport(BaseModel):
    """What the knowledge graph makes of the symptoms."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    named: tuple[NamedSymptom, ...] = Field(description="symptoms that agents named in the run, the newest first")
    asked: tuple[str, ...] = Field(description="those that the graph was asked about")
    diagnosis: Diagnosis | None = Field(
        description="causes and remedies; p only ranks them, and is not a calibrated probability. Null: there was no "
        "symptom to ask about"
    )


class ReadingTools:
    """Each method is a tool; its docstring is what the client reads."""

    def __init__(self, reach: Reach) -> None:
        self._reach, self._decided = reach, DecisionCache()

    async def runs(self, context: Context | None = None) -> Annotated[CallToolResult, RunList]:
        """List the training runs that the controller knows, the newest first, with their states."""

        def work(progress: Progress) -> RunList:
            reach = self._reach
            if reach.elsewhere:
                raise ConfigError("the run is on another machine, and no list of runs comes from there: use `status`")
            rows = [one for one in listed_runs(Home()) if reach.run in (None, one.run)]
            return RunList(runs=tuple(rows[:RUNS]), more=len(rows[RUNS:]))

        return answer(await on_thread(context, work))

    async def status(self, context: Context, run: Run = None) -> Annotated[CallToolResult, RunStatus]:
        """How a run is doing: step, newest metrics, knobs, decisions by verdict, advice that waits for approval (with
        the decision's id), agents, and what is wrong (`notes`)."""

        def work(progress: Progress) -> RunStatus:
            found = asyncio.run(run_status(self._reach.find(run), progress.hear))
            if not (more := len(found.metrics) - METRICS) > 0:
                return found
            told = f"{more} of {len(found.metrics)} metrics are left out here; `metric` answers for each by its name"
            kept = dict(itertools.islice(found.metrics.items(), METRICS))
            return found.model_copy(update={"metrics": kept, "notes": (*found.notes, told)})

        return answer(await on_thread(context, work))

    async def metric(
        self,
        context: Context,
        name: Annotated[str, Field(description="as `status` lists it, e.g. loss or eval/accuracy")],
        run: Run = None,
        since: SinceText = "",
        max_points: Annotated[int, Field(ge=5, le=1000, description="of more, some are left out")] = 100,
    ) -> Annotated[CallToolResult, MetricHistory]:
        """One metric over a run. Where there are more measurements than max_points, each stretch keeps its least and
        its greatest one, so that spikes stay; no value is an average."""

        def work(progress: Progress) -> MetricHistory:
            access, reader = self._reach.find(run), MetricReader(name, Since.read(since))
            asyncio.run(_fed(access, progress, reader))
            return reader.history(access.run, max_points)

        return answer(await on_thread(context, work), "set a smaller max_points")

    async def decisions(
        self,
        context: Context,
        run: Run = None,
        since: SinceText = "",
        actuator: Annotated[str, Field(description="only those on this one")] = "",
        agent: Annotated[str, Field(description="only those that it voted on, or that this person gave")] = "",
        verdict: Annotated[Verdict | None, Field(description="only these")] = None,
        limit: Annotated[int, Field(ge=1, le=100, description="the newest so many")] = 20,
    ) -> Annotated[CallToolResult, DecisionList]:
        """What was decided in a run: step, who, what, verdict and reason, what was read back, and the effect on the
        target metric. `explain` has the whole of one."""

        def work(progress: Progress) -> DecisionList:
            access, wanted = self._reach.find(run), DecisionFilter(Since.read(since), actuator, agent, verdict or "")
            seen = asyncio.run(self._decided.read(access, progress.hear))
            wanted.check(seen.by_id.values())
            ids = [id_ for id_, one in seen.by_id.items() if wanted.matches(one, seen.newest)]
            rows = [row(seen.whole(id_)) for id_ in deque(ids, maxlen=limit)]
            return DecisionList(
                run=access.run, tick=seen.tick, step=seen.step, decisions=tuple(rows), more=len(ids) - len(rows)
            )

        return answer(await on_thread(context, work), "set a smaller limit")

    async def explain(
        self,
        context: Context,
        decision: Annotated[
            str,
            Field(description="its id, or how it begins; or an actuator, for the newest decision on it that passed"),
        ],
        run: Run = None,
        rules: Rules = (),
    ) -> Annotated[CallToolResult, ExplanationReport]:
        """One decision in full: who voted how and why, the knowledge graph's paths, guardrails in the reason, the
        forecast, the receipt with the value read back, and the outcome. With `rules` also
        what those would have decided (open loop)."""

        def work(progress: Progress) -> ExplanationReport:
            access, given = self._reach.find(run), rules_set(rules)
            seen = asyncio.run(self._decided.read(access, progress.hear))
            found = seen.find(decision)
            if found is None:
                raise UnknownNameError("decision", decision, {one.decision.actuator for one in seen.by_id.values()})
            other = asyncio.run(other_ruling(access, found.decision, given, progress.hear)) if given else None
            return report(access.run, found, other)

        return answer(await on_thread(context, work))

    async def diagnose(
        self,
        context: Context,
        run: Run = None,
        symptoms: Annotated[
            tuple[str, ...],
            Field(
                max_length=64, description="the graph's ids, e.g. loss_spike; none: those that agents named in the run"
            ),
        ] = (),
        since: SinceText = "",
        remedies: Annotated[int, Field(ge=1, le=20, description="wanted")] = 5,
    ) -> Annotated[CallToolResult, DiagnosisReport]:
        """Likely causes and remedies for what was seen in a run, from the knowledge graph, with its sources. A remedy's
        `unmet` says what the run lacks for it."""

        def work(progress: Progress) -> DiagnosisReport:
            access, named = self._reach.find(run), NamedSymptoms(Since.read(since))
            asyncio.run(_fed(access, progress, named))
            found = named.symptoms()
            asked = tuple(symptoms) or tuple(one.id for one in found[:8])
            diagnosis = None
            if asked:
                from oven_kg.service.endpoints import answers

                ask = answers()
                reply = ask("diagnose", named.question(asked, remedies).wire())
                diagnosis = Diagnosis.model_validate_json(reply)
                if symptoms and diagnosis.unknown:
                    known = (node.id for node in ask.graph.of_kind("symptom"))
                    raise UnknownNameError("symptom", diagnosis.unknown[0], known)
            return DiagnosisReport(run=access.run, named=tuple(found[:64]), asked=asked, diagnosis=diagnosis)

        return answer(await on_thread(context, work), "ask for fewer remedies")

    async def backtest(
        self,
        context: Context,
        agent: Annotated[str, Field(description="an installed agent's name, or a file in the folder of --agent-files")],
        run: Run = None,
        rules: Rules = (),
        limit: Annotated[int, Field(ge=1, le=200, description="the newest so many votes")] = 50,
    ) -> Annotated[CallToolResult, BacktestReport]:
        """What an agent would have voted in a recorded run, and what would have been decided. Open loop: the recording
        continues as it went, so that only what comes before the first divergence is sure. Takes a while on a long run;
        it tells its progress and can be cancelled."""

        def work(progress: Progress) -> BacktestReport:
            from oven_agents.review.backtest import backtest as run_backtest

            access, given = self._reach.find(run), rules_set(rules)
            called = self._reach.agent(agent)
            with contextlib.redirect_stdout(sys.stderr):  # an agent may print, and stdout is the protocol's
                test: Backtest = asyncio.run(
                    run_backtest(called, access.run, access.events(exact=True), given, progress.count)
                )
            return test.report().newest(limit)

        return answer(await on_thread(context, work), "set a smaller limit")


Fold: TypeAlias = MetricReader | NamedSymptoms


async def _fed(access: RunAccess, progress: Progress, fold: Fold) -> None:
    async for event in access.events():
        fold.feed(event)
        progress.hear(event)
