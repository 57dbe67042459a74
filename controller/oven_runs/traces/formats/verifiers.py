"""verifiers' and prime-rl's `traces.jsonl` (verifiers 0.4, TRACE_VERSION 1): an episode a line, each with traces.

A trace is a graph of messages, each with its parent: where a context was rewritten, a branch begins. A sampled message
is an action. Rewards are named and weighted, once a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from oven_runs.traces.formats import aside
from oven_runs.traces.formats.chat_messages import NotReadable, from_chat, from_list, from_tool
from oven_runs.traces.formats.trace_format import LineFormat, Row
from oven_runs.traces.records import Ended, Message, Policy, Sampled, Task, Tool, Trace, TraceStep

FORM: Final = 1
"""Its TRACE_VERSION."""
META: Final = "verifiers"
EPISODE: Final = ("id", "env", "group", "run")
"""What is kept of an episode, beside what a trace has itself."""
KEPT: Final = ("rewards", "metrics", "info", "stop_condition", "errors", "agent", "verifiers")
"""What is kept of a trace."""
TRUNCATED: Final = frozenset({"max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"})
"""Its stop conditions that cut a text; "max_turns" cuts none."""


def _known_by(row: Row) -> bool:
    return isinstance(row.get("traces"), list) and isinstance(row.get("task"), dict)


def _traces(row: Row, name: str) -> Iterator[Trace]:
    for number, said in enumerate(from_list(row.get("traces"), "traces"), 1):
        if not isinstance(said, dict):
            raise NotReadable(f"its trace {number} must be an object")
        if said.get("version", FORM) != FORM:
            raise NotReadable(f"its trace is of version {said.get('version')!r}; version {FORM} is read")
        info = said.get("info")
        plain = _plain(row, said, f"{name}-{number}")
        yield aside.restored(plain, info.get(aside.NAME) if isinstance(info, dict) else None)


def _plain(episode: Row, said: Row, name: str) -> Trace:
    lost: Counter[str] = Counter()
    prompt, steps = _steps(_nodes(said), lost)
    kept: dict[str, Any] = {key: said[key] for key in KEPT if said.get(key)}
    if isinstance(kept.get("info"), dict):
        kept["info"] = {key: value for key, value in kept["info"].items() if key != aside.NAME}
    kept |= {"episode": {key: episode[key] for key in EPISODE if episode.get(key)}}
    kept |= {"lost": dict(lost)} if lost else {}
    return Trace(
        id=str(said.get("id") or name),
        task=_task(said.get("task") or episode.get("task")),
        tools=_tools(said),
        prompt=prompt,
        steps=steps,
        reward=_reward(said.get("rewards")),
        ended=_ended(said),
        policy=_policy(episode, said),
        meta={META: {key: value for key, value in kept.items() if value}},
    )


def _nodes(said: Row) -> list[Row]:
    nodes = list(from_list(said.get("nodes") or [], "nodes"))
    for at, node in enumerate(nodes):
        parent = node.get("parent") if isinstance(node, dict) else -1
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < at):
            raise NotReadable(f"its node {at} has the parent {parent!r}, which must come before it")
    return nodes


def _steps(nodes: list[Row], lost: Counter[str]) -> tuple[tuple[Message, ...], tuple[TraceStep, ...]]:
    """A step for each sampled node, in their order."""
    messages = [from_chat(node.get("message"), lost) for node in nodes]
    actions = [at for at, node in enumerate(nodes) if node.get("sampled")]
    first_child: dict[int | None, int] = {}
    for at, node in enumerate(nodes):
        if not node.get("sampled"):
            first_child.setdefault(node.get("parent"), at)
    prompt: tuple[Message, ...] = ()
    steps: list[TraceStep] = []
    for number, at in enumerate(actions):
        path = _path(nodes, nodes[at].get("parent"))
        follows = number > 0 and actions[number - 1] in path
        if follows:
            before = path[path.index(actions[number - 1]) + 1 :]
            steps[-1] = steps[-1].model_copy(update={"result": tuple(messages[one] for one in before)})
        state = tuple(messages[one] for one in path)
        if number == 0:
            prompt = state
        after = _chain(first_child, at)  # its result, unless the next action shows which messages that is
        steps.append(
            TraceStep(
                state=None if number == 0 or follows else state,
                action=messages[at],
                result=tuple(messages[one] for one in after) if after or not messages[at].calls else None,
                sampled=_sampled(nodes[at]),
            )
        )
    if not actions:
        prompt = tuple(messages[one] for one in _chain(first_child, None))
    return prompt, tuple(steps)


def _path(nodes: list[Row], at: int | None) -> list[int]:
    """From a root to `at`."""
    found: list[int] = []
    while at is not None:
        found.append(at)
        at = nodes[at].get("parent")
    return found[::-1]


def _chain(first_child: dict[int | None, int], at: int | None) -> list[int]:
    """The messages that follow `at` and were not sampled."""
    found: list[int] = []
    while (child := first_child.get(at)) is not None:
        found.append(child)
        at = child
    return found


def _sampled(node: Row) -> Sampled | None:
    ids, mask = node.get("token_ids") or [], node.get("mask") or []
    if not ids:
        return None
    if len(mask) != len(ids):
        raise NotReadable(f"a node has {len(ids)} tokens and a mask of {len(mask)}")
    kept = tuple(one for one, sampled in zip(ids, mask, strict=True) if sampled)
    logprobs, entropies = node.get("logprobs") or None, node.get("entropies") or None
    for what, values in (("log-probabilities", logprobs), ("entropies", entropies)):
        if values is not None and len(values) != len(kept):
            raise NotReadable(f"a node has {len(kept)} sampled tokens and {len(values)} {what}")
    return Sampled(ids=kept, logprobs=logprobs, entropies=entropies)


def _tools(said: Row) -> tuple[Tool, ...]:
    roots = [node for node in said.get("nodes") or [] if node.get("parent") is None and node.get("tools")]
    given = roots[0]["tools"] if roots else said.get("tools") or []
    return tuple(from_tool(one) for one in from_list(given, "tools"))


def _task(said: Any) -> Task:
    if not isinstance(said, dict) or not isinstance(said.get("data"), dict):
        raise NotReadable("it has no task")
    data = dict(said["data"])
    prompt = data.pop("prompt", None)
    if not isinstance(prompt, str) and prompt is not None:
        data["prompt"], prompt = prompt, None  # messages: they are in the trace, too
    name = data.get("id") or said.get("key") or said.get("hash") or data.get("name") or data.get("idx")
    if name is None:
        raise NotReadable("its task has no id")
    data.pop("id", None)
    return Task(id=str(name), prompt=prompt or "", data=data)


def _reward(said: Any) -> float | None:
    """The weighted sum; None where scoring did not run."""
    if not isinstance(said, dict):
        return None
    given = [one for one in said.values() if isinstance(one, dict)]
    try:
        return sum(float(one["score"]) * float(one.get("weight", 1.0)) for one in given) if given else None
    except (KeyError, TypeError, ValueError) as error:
        raise NotReadable("a reward has no score") from error


def _ended(said: Row) -> Ended:
    stop = str(said.get("stop_condition") or "")
    calls = [call for call in said.get("calls") or [] if isinstance(call, dict) and not call.get("error")]
    if said.get("is_timeout") or stop.endswith("_timeout"):
        return "timeout"
    if stop in TRUNCATED or (calls and calls[-1].get("finish_reason") == "length"):
        return "truncated"
    if stop == "max_turns":
        return "turns"
    if said.get("errors"):
        return "error"
    return "submitted" if said.get("is_completed") and said.get("ok") else "unknown"


def _policy(episode: Row, said: Row) -> Policy:
    config = (said.get("agent") or {}).get("config") or {}
    models = [call.get("model") for call in said.get("calls") or [] if isinstance(call, dict)]
    work = (episode.get("run") or {}).get("work") or {}
    span = work.get("policy") or {}
    step = span.get("start", work.get("step"))
    name = next((one for one in models if one), None) or config.get("model") or ""
    return Policy(model=str(name), step=step if isinstance(step, int) else None)


def _rows(trace: Trace) -> Iterable[Row]:
    found = trace.meta.get(META)
    kept: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    given = kept.pop("episode", None)
    episode: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    kept.pop("lost", None)
    data: dict[str, Any] = {**trace.task.data, "id": trace.task.id}
    if trace.task.prompt:
        data["prompt"] = trace.task.prompt
    task = {"type": "Task", "key": trace.task.id, "data": data}
    rewards = {} if trace.reward is None else {"reward": {"score": trace.reward, "weight": 1.0}}
    ok = trace.ended == "submitted"
    stops: dict[Ended, str] = {"turns": "max_turns", "truncated": "max_total_tokens", "timeout": "agent_timeout"}
    said: dict[str, Any] = {
        "version": FORM,
        "id": trace.id,
        "task": task,
        "agent": {"config": {"model": trace.policy.model or None}},
        "tools": [_tool(one) for one in trace.tools],
        "nodes": _graph(trace),
        "rewards": rewards,
        "is_completed": trace.ended != "unknown",
        "ok": ok,
        "is_timeout": trace.ended == "timeout",
        "stop_condition": stops.get(trace.ended),
        "info": {},
        **{key: value for key, value in kept.items() if key in KEPT},
    }
    if trace.ended == "error" and not said.get("errors"):
        said["errors"] = [{"type": "Error", "message": "the source does not say"}]
    row: Row = {"env": {"id": ""}, "task": task, "ok": ok, **episode, "traces": [said]}
    row.setdefault("id", trace.id)
    if missing := aside.difference(trace, _plain(row, said, trace.id)):
        said["info"] = {**said["info"], aside.NAME: missing}
    yield row


def _tool(tool: Tool) -> Row:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _graph(trace: Trace) -> list[Row]:
    """A node a message; a rewritten state branches off where it first differs."""
    nodes: list[Row] = []
    path: list[tuple[Message, int]] = []

    def add(message: Message, **more: Any) -> None:
        parent = path[-1][1] if path else None
        node: Row = {"parent": parent, "message": _message(message), "sampled": False, **more}
        if parent is None and trace.tools:
            node["tools"] = [_tool(one) for one in trace.tools]
        path.append((message, len(nodes)))
        nodes.append(node)

    for message in trace.prompt:
        add(message)
    for step in trace.steps:
        if step.state is not None:
            same = 0
            while same < min(len(path), len(step.state)) and path[same][0] == step.state[same]:
                same += 1
            del path[same:]
            for message in step.state[same:]:
                add(message)
        add(step.action, sampled=True, **_tokens(step.sampled))
        for message in step.result or ():
            add(message)
    return nodes


def _tokens(sampled: Sampled | None) -> Row:
    if sampled is None:
        return {}
    found: Row = {"token_ids": list(sampled.ids), "mask": [True] * len(sampled.ids)}
    if sampled.logprobs is not None:
        found["logprobs"] = list(sampled.logprobs)
    if sampled.entropies is not None:
        found["entropies"] = list(sampled.entropies)
    return found


def _message(message: Message) -> Row:
    """A typed message of its: flat calls, and `tool_call_id` on each of a tool."""
    made: Row = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        made["reasoning_content"] = message.reasoning or None
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "name": call.name, "arguments": call.arguments}
            for call in message.calls
        ] or None
    if message.role == "tool":
        made |= {"tool_call_id": message.call_id, "name": message.name or None}
    return made


FORMAT = LineFormat(
    about="verifiers' and prime-rl's traces.jsonl: episodes with message graphs and sampled tokens",
    known_by=_known_by,
    traces=_traces,
    rows=_rows,
    file_name="traces.jsonl",
    aside=("task", "solved", "policy", "meta", "steps.reward", "steps.own", "steps.outcome"),
)
