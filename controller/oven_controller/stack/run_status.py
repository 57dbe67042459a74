"""How a run is doing, as `status --json` prints it: from its log, and from its folder where that is on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import OvenError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Metrics, Real, Value
from oven_core.security import tls
from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import RunAccess
from oven_runs.home import judge_states
from oven_runs.home.judge_costs import judge_costs
from oven_runs.home.judge_states import JudgeState
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.open_advice import remaining, waiting
from oven_runs.log.run_summary import RunSummary

QUIET_S = 30.0
"""A log that takes nothing for so long is told of. A step may take longer; then this is how one sees that it does."""


def notes(
    view: RunSummary, processes: Sequence[dict[str, Any]], unread: str, now: datetime, last_words: Callable[[str], str]
) -> list[str]:
    """A line each, none when all is well. `processes` are as `status` lists them (name, alive, stopped); `unread` says
    why the log cannot be read, if so; `last_words` gives the end of a process's log."""
    found: list[str] = []
    away = {entry["name"] for entry in processes if not entry["alive"] or entry["stopped"]}
    frozen = [entry["name"] for entry in processes if entry["alive"] and entry["stopped"]]
    if frozen:
        verb = "is" if len(frozen) == 1 else "are"
        found.append(f"{', '.join(frozen)} {verb} frozen (stopped by a signal; `kill -CONT PID` wakes a process)")
    if "nats-server" in away:
        found.append("the bus does not answer: training continues with its last settings")
    meshes = [entry["name"] for entry in processes if _is_mesh(entry["name"])]
    gone = [name for name in meshes if name in away]
    if meshes and len(gone) == len(meshes):
        found.append("no mesh runs: no decisions are made, training continues with its last settings")
    elif gone:
        found.append(f"{len(gone)} of {len(meshes)} meshes is away ({', '.join(gone)}): the others decide")
    if unread or not processes:
        return found
    if view.started is not None and view.ended is None:
        found += _silent(view)
        quiet_s = (now - view.last_time).total_seconds() if view.last_time else 0.0
        if quiet_s > QUIET_S and not view.held:
            learner = last_words("learner" if any(e["name"] == "learner" for e in processes) else "script")
            found.append(f"nothing was logged for {quiet_s:.0f} s; the learner's last words: {learner or 'none'}")
    return found


def _silent(view: RunSummary) -> list[str]:
    limit = view.started.rules.silent_ticks if view.started else 0
    silent = {name: view.tick - agent.heard_tick for name, agent in view.agents.items() if agent.live}
    return [
        f"agent {name} has said nothing for {ticks} ticks: it is lost until it speaks (silent_ticks {limit})"
        for name, ticks in sorted(silent.items())
        if ticks > limit
    ]


def _is_mesh(name: str) -> bool:
    return name == "mesh" or name.startswith("mesh-")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class ProcessStatus(_Part):
    """A process of the stack with what it started."""

    name: str
    pid: int
    alive: bool
    stopped: bool = Field(description="frozen by a signal")
    memory_mb: float = Field(description="resident")


class DecisionCounts(_Part):
    """Decisions by verdict."""

    adopted: int
    rejected: int
    advised: dict[str, str] = Field(description="decision → actuator: those that may be approved now")
    lapses: dict[str, str] = Field(description="the same decisions → for how long they may be, in words")


class PromptCounts(_Part):
    """Prompts that were added to those that training draws."""

    injected: int
    evicted: int


class AgentState(_Part):
    """One agent."""

    live: bool
    cannot_fire: str = Field(description="why it can never vote; empty: it can")
    shadow: str = Field(description="why its votes do not count; empty: they do")
    newcomer: bool
    proposals: int
    against: int
    in_adopted: int = Field(description="adopted decisions that it was for")


class AlertState(_Part):
    """A symptom that an agent raised and did not clear."""

    agent: str
    symptom: str
    metric: str
    value: Real
    expected: Real = Field(description="the bound that the value was beyond")
    tick: int = Field(description="when it was raised")
    reason: str


class RunStatus(_Part):
    """All of it."""

    run: str
    status: str = Field(description="running, completed, stopped, failed or interrupted; elsewhere also unreachable")
    recipe: str
    start: str
    drill: str = Field(description="what was staged on purpose, if this run is a drill")
    url: str
    processes: tuple[ProcessStatus, ...]
    memory_mb: float
    tick: int
    step: int
    progress: Real
    target: str | None = Field(description="the metric that says how the run is doing")
    metrics: Metrics = Field(description="each one's newest value")
    knobs: dict[str, Value]
    decisions: DecisionCounts
    outcomes: int
    prompts: PromptCounts
    judge_costs: dict[str, Any] = Field(description="dollars, tokens and calls of remote judges; empty: none was paid")
    held: str = Field(description="why it is held; empty: it is not")
    ended_with: str
    autonomy: dict[str, str] = Field(description='actuator → observe, advise or auto; "" for every other one')
    receipts: dict[str, int] = Field(description="status → how many")
    agents: dict[str, AgentState]
    alerts: tuple[AlertState, ...] = Field(description="symptoms that agents see")
    judges: dict[str, JudgeState]
    events: int
    log_unread: str = Field(description="why the log could not be read; empty: it was")
    missing: str = Field(description="what the log is known to lack; empty: nothing")
    notes: tuple[str, ...] = Field(description="what is wrong, a sentence each")


async def run_status(access: RunAccess, hear: Callable[[Event], object] = lambda _: None) -> RunStatus:
    """The status of the run; a log that cannot be read is said in it. `hear` is called with each event, and may raise
    to end it."""
    view, unread, missing, told = RunSummary(), "", "", list[str]()
    try:
        async for event in access.events(tell=told.append):
            view.feed(event)
            hear(event)
        missing = access.missing()
    except OvenError as error:
        unread = str(error)
    info, beside = access.info(), _beside_the_log(access, view, unread, told)
    running = beside.status == "running"
    lacking = [missing] if missing else []
    return RunStatus(
        run=access.run,
        status=beside.status,
        recipe=info.recipe or (view.started.recipe if view.started else ""),
        start=info.start,
        drill=info.drill,
        url=tls.shown(info.url) if running else "",
        processes=tuple(ProcessStatus.model_validate(entry) for entry in beside.processes),
        memory_mb=round(sum(entry["memory_mb"] for entry in beside.processes), 1),
        tick=view.tick,
        step=view.step,
        progress=view.progress,
        target=view.target(),
        metrics=view.metrics,
        knobs=view.knobs,
        decisions=_decisions(view),
        outcomes=view.outcomes,
        prompts=PromptCounts(injected=view.injected, evicted=view.evicted),
        judge_costs=beside.judge_costs,
        held=view.held if running else "",
        ended_with=view.ended_with,
        autonomy=_autonomy(view),
        receipts=view.receipts,
        agents=_agents(view, running),
        alerts=_alerts(view),
        judges=beside.judges,
        events=view.seq,
        log_unread=unread,
        missing=missing,
        notes=(*told, *lacking, *notes(view, beside.processes, unread, datetime.now(UTC), beside.last_words)),
    )


def _decisions(view: RunSummary) -> DecisionCounts:
    return DecisionCounts(
        adopted=view.adopted,
        rejected=view.rejected,
        advised={d.id: d.actuator for d in waiting(view)},
        lapses={d.id: remaining(d, view.tick) for d in waiting(view)},
    )


def _agents(view: RunSummary, running: bool) -> dict[str, AgentState]:
    return {
        name: AgentState(
            live=agent.live and running,
            cannot_fire=agent.cannot_fire,
            shadow=agent.shadow,
            newcomer=agent.newcomer,
            proposals=agent.proposals,
            against=agent.against,
            in_adopted=agent.backed,
        )
        for name, agent in sorted(view.agents.items())
    }


def _alerts(view: RunSummary) -> tuple[AlertState, ...]:
    shown = {"symptom", "metric", "value", "expected", "tick", "reason"}
    return tuple(AlertState(agent=agent, **alert.model_dump(include=shown)) for agent, alert in view.alerts.standing())


def _autonomy(view: RunSummary) -> dict[str, str]:
    """What is in force, by actuator; "" for every actuator that is not named."""
    if view.started is None:
        return {}
    rules = {"": view.started.rules.autonomy, **view.started.rules.autonomy_of}
    return {**({} if "" in view.autonomy else rules), **view.autonomy}


@dataclass
class _BesideTheLog:
    """What the run's folder says."""

    status: str
    last_words: Callable[[str], str]
    processes: list[dict[str, Any]] = field(default_factory=list)
    judge_costs: dict[str, Any] = field(default_factory=dict)
    judges: dict[str, JudgeState] = field(default_factory=dict)


def _beside_the_log(access: RunAccess, view: RunSummary, unread: str, told: list[str]) -> _BesideTheLog:
    """Of a run on another machine the log has to do. `told` hears what cannot be read."""
    if not isinstance(access, LocalRun):
        ended = view.ended.reason if view.ended else "running"
        return _BesideTheLog("unreachable" if unread else ended, lambda _: "on its own machine")
    folder = access.folder
    found = _BesideTheLog(folder.status(), folder.last_log_line, judges=judge_states.read(folder.path))
    if found.status == "running":
        found.processes = _processes(folder)
    try:
        found.judge_costs = judge_costs(folder, view)
    except OvenError as error:
        told.append(str(error))
    return found


def _processes(folder: RunFolder) -> list[dict[str, Any]]:
    """The stack's processes, each with what it started, in MB of resident memory."""
    import psutil

    info = folder.info()
    found = []
    for name, pid in {"up": info.pid, **info.children}.items():
        memory, alive, stopped = 0, False, False
        try:
            process = psutil.Process(pid)
            alive = process.status() != psutil.STATUS_ZOMBIE
            below = [] if name == "up" else process.children(recursive=True)
            stopped = psutil.STATUS_STOPPED in [one.status() for one in (process, *below)]
            for one in (process, *below):
                memory += one.memory_info().rss
        except psutil.Error:
            pass
        found.append(
            {"name": name, "pid": pid, "alive": alive, "stopped": stopped, "memory_mb": round(memory / 1e6, 1)}
        )
    return found
