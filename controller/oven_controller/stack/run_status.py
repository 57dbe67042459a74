"""The status of a run, as `status --json` prints it, read from the run's log and from its folder on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import OvenError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Metrics, Real, Value
from oven_core.protocol.rules import NEEDS_GRANT
from oven_core.security import tls
from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import RunAccess
from oven_runs.home import endpoint_checks
from oven_runs.home.endpoint_checks import EndpointCheck
from oven_runs.home.model_spend import JUDGES, Spend, read_spend
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.open_advice import format_remaining_time, pending_advice
from oven_runs.log.run_summary import RunSummary

QUIET_S = 30.0
"""Seconds without a log message after which a note reports the silence. A step may take longer."""


class _StatusModel(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class ProcessStatus(_StatusModel):
    """A process of the stack, with its child processes."""

    name: str
    pid: int
    alive: bool
    stopped: bool = Field(description="frozen by a signal")
    memory_mb: float = Field(description="resident memory")


class DecisionCounts(_StatusModel):
    """Decisions by verdict."""

    adopted: int
    rejected: int
    would_set: int = Field(description="proposals that only the autonomy level `observe` stopped")
    advised: dict[str, str] = Field(description="decision → actuator, for decisions that can be approved now")
    time_left: dict[str, str] = Field(description="decision → how long it can still be approved, as text")


class PromptCounts(_StatusModel):
    """Prompts that agents added to the training."""

    injected: int
    evicted: int


class AgentState(_StatusModel):
    """The state of one agent."""

    live: bool
    cannot_fire: str = Field(description="why it cannot vote; empty if it can")
    failed: bool = Field(description="whether that is an error, and not a missing knob or metric")
    shadow: str = Field(description="why its votes do not count; empty if they do")
    newcomer: bool
    proposals: int
    against: int
    backed: int = Field(description="adopted decisions that it voted for")


class AlertState(_StatusModel):
    """A symptom that an agent reported and has not cleared."""

    agent: str
    symptom: str
    metric: str
    value: Real
    expected: Real = Field(description="the bound that the value exceeded")
    tick: int = Field(description="when it was reported")
    reason: str


class RunStatus(_StatusModel):
    """The status of a run."""

    run: str
    status: str = Field(description="running, completed, stopped, failed, interrupted, or unreachable if remote")
    recipe: str
    start: str
    drill: str = Field(description="the planted problem, if this run is a drill")
    url: str
    processes: tuple[ProcessStatus, ...]
    memory_mb: float
    tick: int
    step: int
    progress: Real
    target: str | None = Field(description="the metric that judges the run")
    metrics: Metrics = Field(description="newest value of each")
    knobs: dict[str, Value]
    decisions: DecisionCounts
    outcomes: int
    prompts: PromptCounts
    judge_costs: dict[str, Any] = Field(
        description="US dollars, tokens and calls of remote judges; empty if there were none"
    )
    held: str = Field(description="why the run is held; empty if it is not")
    ended_with: str
    autonomy: dict[str, str] = Field(description='actuator → observe, advise or auto; "" is for all others')
    receipts: dict[str, int] = Field(description="status → count")
    agents: dict[str, AgentState]
    alerts: tuple[AlertState, ...] = Field(description="symptoms that agents report")
    judges: dict[str, EndpointCheck]
    quarantined: tuple[str, ...] = Field(description="judges that return no scores until they pass their tests again")
    events: int
    log_error: str = Field(description="why the log could not be read; empty if it was")
    missing: str = Field(description="messages known to be missing from the log; empty if none are")
    notes: tuple[str, ...] = Field(description="problems, one sentence each")


async def run_status(access: RunAccess, on_event: Callable[[Event], object] = lambda _: None) -> RunStatus:
    """Read the status of a run, even if its log is unreadable. `on_event` gets each event, and may raise to stop."""
    view = RunSummary()
    read_error = gap_report = ""
    warnings: list[str] = []
    try:
        await access.read_view(view, report=warnings.append, on_event=on_event)
        gap_report = access.missing_messages()
    except OvenError as error:
        read_error = str(error)
    info = access.info()
    facts = _read_folder(access, view, read_error, warnings)
    running = facts.status == "running"
    problems = [*warnings, *([gap_report] if gap_report else ())]
    problems += find_problems(view, facts.processes, read_error, datetime.now(UTC), facts.last_line)
    return RunStatus(
        run=access.run,
        status=facts.status,
        recipe=info.recipe or (view.started.recipe if view.started else ""),
        start=info.start,
        drill=info.drill,
        url=tls.redact(info.url) if running else "",
        processes=tuple(ProcessStatus.model_validate(entry) for entry in facts.processes),
        memory_mb=round(sum(entry["memory_mb"] for entry in facts.processes), 1),
        tick=view.tick,
        step=view.step,
        progress=view.progress,
        target=view.target(),
        metrics=view.metrics,
        knobs=view.knobs,
        decisions=_count_decisions(view),
        outcomes=view.outcomes,
        prompts=PromptCounts(injected=view.injected, evicted=view.evicted),
        judge_costs=facts.judge_costs,
        held=view.hold_reason if running else "",
        ended_with=view.ended_with,
        autonomy=_autonomy_levels(view),
        receipts=view.receipts,
        agents=_agent_states(view, running),
        alerts=_active_alerts(view),
        judges=facts.judges,
        quarantined=tuple(view.quarantined()),
        events=view.seq,
        log_error=read_error,
        missing=gap_report,
        notes=tuple(problems),
    )


def _count_decisions(view: RunSummary) -> DecisionCounts:
    advice = pending_advice(view)
    return DecisionCounts(
        adopted=view.adopted,
        rejected=view.rejected,
        would_set=view.would_set,
        advised={decision.id: decision.actuator for decision in advice},
        time_left={decision.id: format_remaining_time(decision, view.tick) for decision in advice},
    )


def _agent_states(view: RunSummary, running: bool) -> dict[str, AgentState]:
    return {
        name: AgentState(
            live=agent.is_live and running,
            cannot_fire=agent.idle_reason or agent.failure_reason,
            failed=bool(agent.failure_reason),
            shadow=agent.shadow_reason,
            newcomer=agent.is_newcomer,
            proposals=agent.proposals,
            against=agent.against,
            backed=agent.backed,
        )
        for name, agent in sorted(view.agents.items())
    }


def _active_alerts(view: RunSummary) -> tuple[AlertState, ...]:
    fields = {"symptom", "metric", "value", "expected", "tick", "reason"}
    return tuple(AlertState(agent=agent, **alert.model_dump(include=fields)) for agent, alert in view.alerts.active())


def _autonomy_levels(view: RunSummary) -> Mapping[str, str]:
    """Return the current autonomy level of each actuator. "" is for all others."""
    if view.started is None:
        return {}
    rules, operators = view.started.rules, view.autonomy
    # If an operator set the level of all actuators, that replaces the rules.
    levels: dict[str, str] = (
        {**operators} if "" in operators else {"": rules.autonomy, **rules.autonomy_of, **operators}
    )
    return levels | {name: rules.autonomy_for(name, operators) for name in NEEDS_GRANT if levels[""] == "auto"}


def find_problems(
    view: RunSummary, processes: Sequence[dict[str, Any]], error: str, now: datetime, last_line: Callable[[str], str]
) -> list[str]:
    """Return the problems of a running stack, one per line. `processes` have the fields of ProcessStatus. `error` is
    the reason why the log is unreadable, if it is. `last_line` returns the last line of a process's log."""
    problems: list[str] = []
    unavailable_names = {entry["name"] for entry in processes if not entry["alive"] or entry["stopped"]}
    frozen_names = [entry["name"] for entry in processes if entry["alive"] and entry["stopped"]]
    if frozen_names:
        subject = f"{', '.join(frozen_names)} {'is' if len(frozen_names) == 1 else 'are'}"
        problems.append(f"{subject} frozen (stopped by a signal; `kill -CONT PID` resumes a process)")
    if "nats-server" in unavailable_names:
        problems.append("the bus does not respond; training continues with its last settings")
    meshes = [entry["name"] for entry in processes if _is_mesh(entry["name"])]
    lost_meshes = [name for name in meshes if name in unavailable_names]
    if meshes and len(lost_meshes) == len(meshes):
        problems.append("no mesh is running; no decisions are made, and training continues with its last settings")
    elif lost_meshes:
        count = f"{len(lost_meshes)} of {len(meshes)} mesh replicas"
        problems.append(f"not running: {count} ({', '.join(lost_meshes)}); the others still make decisions")
    if error or not processes:
        return problems
    if view.started is not None and view.ended is None:
        problems += _describe_silent_agents(view)
        quiet_s = (now - view.last_time).total_seconds() if view.last_time else 0.0
        if quiet_s > QUIET_S and not view.hold_reason:
            learner = "learner" if any(entry["name"] == "learner" for entry in processes) else "script"
            log_line = last_line(learner) or "none"
            problems.append(f"nothing was logged for {quiet_s:.0f} s; last line of the learner's output: {log_line}")
    return problems


def _describe_silent_agents(view: RunSummary) -> list[str]:
    limit = view.started.rules.silent_ticks if view.started else 0
    silent_ticks = {name: view.tick - agent.last_tick for name, agent in view.agents.items() if agent.is_awaited}
    return [
        f"agent {name} has been silent for {ticks} ticks and counts as lost until it responds (silent_ticks {limit})"
        for name, ticks in sorted(silent_ticks.items())
        if ticks > limit
    ]


def _is_mesh(name: str) -> bool:
    return name == "mesh" or name.startswith("mesh-")


@dataclass
class _FolderFacts:
    """Facts from the run's folder that the log does not contain."""

    status: str
    last_line: Callable[[str], str]
    """Returns the last line of the log of the process with this name."""
    processes: list[dict[str, Any]] = field(default_factory=list)
    judge_costs: dict[str, Any] = field(default_factory=dict)
    judges: dict[str, EndpointCheck] = field(default_factory=dict)


def _read_folder(access: RunAccess, view: RunSummary, read_error: str, warnings: list[str]) -> _FolderFacts:
    """Read the run's folder. For a run on another machine, use only the log. Append a warning for unreadable files."""
    if not isinstance(access, LocalRun):
        status = view.ended.reason if view.ended else "running"
        return _FolderFacts("unreachable" if read_error else status, lambda _: "see its machine")
    folder = access.folder
    facts = _FolderFacts(folder.status(), folder.last_log_line, judges=endpoint_checks.read(folder.path))
    if facts.status == "running":
        facts.processes = _inspect_processes(folder)
    try:
        facts.judge_costs = judge_costs(folder, view)
    except OvenError as error:
        warnings.append(str(error))
    return facts


def _inspect_processes(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the stack's processes. Each process's memory includes its child processes."""
    import psutil

    info = folder.info()
    processes = []
    for name, pid in {"up": info.pid, **info.children}.items():
        memory_bytes, alive, stopped = 0, False, False
        try:
            process = psutil.Process(pid)
            alive = process.status() != psutil.STATUS_ZOMBIE
            process_tree = [process, *([] if name == "up" else process.children(recursive=True))]
            stopped = psutil.STATUS_STOPPED in [member.status() for member in process_tree]
            for member in process_tree:
                memory_bytes += member.memory_info().rss
        except psutil.Error:
            pass
        memory_mb = round(memory_bytes / 1e6, 1)
        processes.append({"name": name, "pid": pid, "alive": alive, "stopped": stopped, "memory_mb": memory_mb})
    return processes


def judge_costs(folder: RunFolder, view: RunSummary) -> dict[str, Any]:
    """Return US dollars, tokens and calls, in total and by member, and the limits. Empty if no judge cost anything.

    The members' own records in the run's folder include late answers. If the members run elsewhere and there are no
    records, the figures come from the log, and `calls` is None. Raises ConfigError for damaged records.
    """
    accounts = read_spend(folder.path, JUDGES)
    members = {account.removeprefix(f"{JUDGES}/"): spend for account, spend in accounts.items()}
    if not members and not view.judge_tokens:
        return {}
    committee = folder.earlier_settings().get("committee", {})
    budget = committee.get("budget") or {}
    limits = {name: limit for name, limit in budget.items() if limit is not None}
    if not members:
        return {"cost_usd": view.judge_usd, "tokens": int(view.judge_tokens), "calls": None, "budget": limits}
    total = sum(members.values(), Spend())
    return {
        **_spend_fields(total),
        "budget": limits,
        "members": {name: _spend_fields(spend) for name, spend in members.items()},
    }


def _spend_fields(spend: Spend) -> dict[str, Any]:
    return {
        "cost_usd": round(spend.usd, 6),
        "tokens": spend.tokens,
        "calls": spend.calls,
        "unanswered_calls": spend.unanswered,
        "unpriced_calls": spend.unpriced,
    }
