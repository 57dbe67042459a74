"""The `traces.jsonl` format of verifiers 0.4 and prime-rl (TRACE_VERSION 1), with one episode and its traces per line.

A trace is a graph of messages in which each message names its parent. A rewritten context starts a new branch. A
sampled message is an action. Rewards have names and weights, and belong to the whole trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from oven_runs.traces.formats import extra_data
from oven_runs.traces.formats.chat_messages import NotReadable, expect_list, from_chat, from_tool
from oven_runs.traces.formats.trace_format import LineFormat, Row
from oven_runs.traces.trace_records import Ended, Message, Policy, Sampled, Task, Tool, Trace, TraceStep

TRACE_VERSION: Final = 1
META: Final = "verifiers"  # key in Trace.meta
EPISODE_FIELDS: Final = ("id", "env", "group", "run")
"""Fields of an episode that are stored in `Trace.meta`, in addition to those of the trace."""
TRACE_FIELDS: Final = ("rewards", "metrics", "info", "stop_condition", "errors", "agent", "verifiers")
"""Fields of a trace that are stored in `Trace.meta`."""
TRUNCATED: Final = frozenset({"max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"})
"""Stop conditions that truncate the text. ("max_turns" does not.)"""


def _read_traces(episode: Row, default_id: str) -> Iterator[Trace]:
    for number, row in enumerate(expect_list(episode.get("traces"), "traces"), 1):
        if not isinstance(row, dict):
            raise NotReadable(f"its trace {number} must be an object")
        if row.get("version", TRACE_VERSION) != TRACE_VERSION:
            raise NotReadable(f"its trace is of version {row.get('version')!r}; version {TRACE_VERSION} can be read")
        info = row.get("info")
        plain = _read_plain_trace(episode, row, f"{default_id}-{number}")
        yield extra_data.restore(plain, info.get(extra_data.KEY) if isinstance(info, dict) else None)


def _read_plain_trace(episode: Row, row: Row, default_id: str) -> Trace:
    """Return the trace without its extra data."""
    lost: Counter[str] = Counter()
    prompt, steps = _read_steps(_read_nodes(row), lost)
    meta: dict[str, Any] = {key: row[key] for key in TRACE_FIELDS if row.get(key)}
    if isinstance(meta.get("info"), dict):
        meta["info"] = {key: value for key, value in meta["info"].items() if key != extra_data.KEY}
    meta |= {"episode": {key: episode[key] for key in EPISODE_FIELDS if episode.get(key)}}
    meta |= {"lost": dict(lost)} if lost else {}
    return Trace(
        id=str(row.get("id") or default_id),
        task=_read_task(row.get("task") or episode.get("task")),
        tools=_read_tools(row),
        prompt=prompt,
        steps=steps,
        reward=_total_reward(row.get("rewards")),
        ended=_read_ended(row),
        policy=_read_policy(episode, row),
        meta={META: {key: value for key, value in meta.items() if value}},
    )


def _read_nodes(row: Row) -> list[Row]:
    nodes = list(expect_list(row.get("nodes") or [], "nodes"))
    for index, node in enumerate(nodes):
        parent = node.get("parent") if isinstance(node, dict) else -1
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < index):
            raise NotReadable(f"its node {index} has the parent {parent!r}, which must come before it")
    return nodes


def _read_steps(nodes: list[Row], lost: Counter[str]) -> tuple[tuple[Message, ...], tuple[TraceStep, ...]]:
    """Return the prompt, and one step per sampled node, in node order."""
    messages = [from_chat(node.get("message"), lost) for node in nodes]
    action_indices = [index for index, node in enumerate(nodes) if node.get("sampled")]
    first_child: dict[int | None, int] = {}  # node → its first child that was not sampled
    for index, node in enumerate(nodes):
        if not node.get("sampled"):
            first_child.setdefault(node.get("parent"), index)
    prompt: tuple[Message, ...] = ()
    steps: list[TraceStep] = []
    for number, index in enumerate(action_indices):
        path = _path_to(nodes, nodes[index].get("parent"))
        continues_previous = number > 0 and action_indices[number - 1] in path
        if continues_previous:
            result_indices = path[path.index(action_indices[number - 1]) + 1 :]
            steps[-1] = steps[-1].model_copy(update={"result": tuple(messages[node] for node in result_indices)})
        state = tuple(messages[node] for node in path)
        if number == 0:
            prompt = state
        followers = _unsampled_after(first_child, index)  # replaced if the path to the next action has other nodes
        steps.append(
            TraceStep(
                state=None if number == 0 or continues_previous else state,
                action=messages[index],
                result=tuple(messages[node] for node in followers) if followers or not messages[index].calls else None,
                sampled=_read_sampled(nodes[index]),
            )
        )
    if not action_indices:
        prompt = tuple(messages[node] for node in _unsampled_after(first_child, None))
    return prompt, tuple(steps)


def _path_to(nodes: list[Row], index: int | None) -> list[int]:
    """Return the nodes from a root to `index`."""
    path: list[int] = []
    while index is not None:
        path.append(index)
        index = nodes[index].get("parent")
    return path[::-1]


def _unsampled_after(first_child: dict[int | None, int], index: int | None) -> list[int]:
    """Return the unsampled nodes that follow `index`: its first child, that node's first child, and so on."""
    chain: list[int] = []
    while (child := first_child.get(index)) is not None:
        chain.append(child)
        index = child
    return chain


def _read_sampled(node: Row) -> Sampled | None:
    ids, mask = node.get("token_ids") or [], node.get("mask") or []
    if not ids:
        return None
    if len(mask) != len(ids):
        raise NotReadable(f"a node has {len(ids)} tokens and a mask of {len(mask)}")
    sampled = tuple(token for token, is_sampled in zip(ids, mask, strict=True) if is_sampled)
    logprobs, entropies = node.get("logprobs") or None, node.get("entropies") or None
    for kind, values in (("log-probabilities", logprobs), ("entropies", entropies)):
        if values is not None and len(values) != len(sampled):
            raise NotReadable(f"a node has {len(sampled)} sampled tokens and {len(values)} {kind}")
    return Sampled(ids=sampled, logprobs=logprobs, entropies=entropies)


def _read_tools(row: Row) -> tuple[Tool, ...]:
    roots = [node for node in row.get("nodes") or [] if node.get("parent") is None and node.get("tools")]
    tools = roots[0]["tools"] if roots else row.get("tools") or []
    return tuple(from_tool(tool) for tool in expect_list(tools, "tools"))


def _read_task(task: Any) -> Task:
    if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
        raise NotReadable("it has no task")
    data = dict(task["data"])
    prompt = data.pop("prompt", None)
    if not isinstance(prompt, str) and prompt is not None:
        data["prompt"], prompt = prompt, None  # messages, which are in the trace too
    name = data.get("id") or task.get("key") or task.get("hash") or data.get("name") or data.get("idx")
    if name is None:
        raise NotReadable("its task has no id")
    data.pop("id", None)
    return Task(id=str(name), prompt=prompt or "", data=data)


def _total_reward(rewards: Any) -> float | None:
    """Return the weighted sum, or None if the trace was not scored."""
    if not isinstance(rewards, dict):
        return None
    scored = [reward for reward in rewards.values() if isinstance(reward, dict)]
    try:
        return sum(float(reward["score"]) * float(reward.get("weight", 1.0)) for reward in scored) if scored else None
    except (KeyError, TypeError, ValueError) as error:
        raise NotReadable("a reward has no score") from error


def _read_ended(row: Row) -> Ended:
    stop = str(row.get("stop_condition") or "")
    calls = [call for call in row.get("calls") or [] if isinstance(call, dict) and not call.get("error")]
    if row.get("is_timeout") or stop.endswith("_timeout"):
        return "timeout"
    if stop in TRUNCATED or (calls and calls[-1].get("finish_reason") == "length"):
        return "truncated"
    if stop == "max_turns":
        return "turns"
    if row.get("errors"):
        return "error"
    return "submitted" if row.get("is_completed") and row.get("ok") else "unknown"


def _read_policy(episode: Row, row: Row) -> Policy:
    config = (row.get("agent") or {}).get("config") or {}
    models = [call.get("model") for call in row.get("calls") or [] if isinstance(call, dict)]
    work = (episode.get("run") or {}).get("work") or {}
    step = (work.get("policy") or {}).get("start", work.get("step"))
    name = next((model for model in models if model), None) or config.get("model") or ""
    return Policy(model=str(name), step=step if isinstance(step, int) else None)


def _to_rows(trace: Trace) -> Iterable[Row]:
    stored = trace.meta.get(META)
    meta: dict[str, Any] = stored if isinstance(stored, dict) else {}
    stored_episode = meta.get("episode")
    episode: dict[str, Any] = stored_episode if isinstance(stored_episode, dict) else {}
    data: dict[str, Any] = {**trace.task.data, "id": trace.task.id}
    if trace.task.prompt:
        data["prompt"] = trace.task.prompt
    task = {"type": "Task", "key": trace.task.id, "data": data}
    submitted = trace.ended == "submitted"
    stops: dict[Ended, str] = {"turns": "max_turns", "truncated": "max_total_tokens", "timeout": "agent_timeout"}
    row: dict[str, Any] = {
        "version": TRACE_VERSION,
        "id": trace.id,
        "task": task,
        "agent": {"config": {"model": trace.policy.model or None}},
        "tools": [_to_tool(tool) for tool in trace.tools],
        "nodes": _to_nodes(trace),
        "rewards": {} if trace.reward is None else {"reward": {"score": trace.reward, "weight": 1.0}},
        "is_completed": trace.ended != "unknown",
        "ok": submitted,
        "is_timeout": trace.ended == "timeout",
        "stop_condition": stops.get(trace.ended),
        "info": {},
        **{key: value for key, value in meta.items() if key in TRACE_FIELDS},
    }
    if trace.ended == "error" and not row.get("errors"):
        row["errors"] = [{"type": "Error", "message": "the source does not say"}]
    episode_row: Row = {"env": {"id": ""}, "task": task, "ok": submitted, **episode, "traces": [row]}
    episode_row.setdefault("id", trace.id)
    if missing := extra_data.find_missing(trace, _read_plain_trace(episode_row, row, trace.id)):
        row["info"] = {**row["info"], extra_data.KEY: missing}
    yield episode_row


def _to_tool(tool: Tool) -> Row:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _to_nodes(trace: Trace) -> list[Row]:
    """Return the message graph, one node per message. A rewritten state branches off at its first different message."""
    nodes: list[Row] = []
    path: list[tuple[Message, int]] = []  # the current context: its messages and the indices of their nodes

    def add(message: Message, **fields: Any) -> None:
        parent = path[-1][1] if path else None
        node: Row = {"parent": parent, "message": _to_message(message), "sampled": False, **fields}
        if parent is None and trace.tools:
            node["tools"] = [_to_tool(tool) for tool in trace.tools]
        path.append((message, len(nodes)))
        nodes.append(node)

    for message in trace.prompt:
        add(message)
    for step in trace.steps:
        if step.state is not None:
            prefix = 0  # number of messages that both contexts have in common
            while prefix < min(len(path), len(step.state)) and path[prefix][0] == step.state[prefix]:
                prefix += 1
            del path[prefix:]
            for message in step.state[prefix:]:
                add(message)
        add(step.action, sampled=True, **_to_tokens(step.sampled))
        for message in step.result or ():
            add(message)
    return nodes


def _to_tokens(sampled: Sampled | None) -> Row:
    if sampled is None:
        return {}
    tokens: Row = {"token_ids": list(sampled.ids), "mask": [True] * len(sampled.ids)}
    if sampled.logprobs is not None:
        tokens["logprobs"] = list(sampled.logprobs)
    if sampled.entropies is not None:
        tokens["entropies"] = list(sampled.entropies)
    return tokens


def _to_message(message: Message) -> Row:
    """Return the message in verifiers' form: flat calls, and `tool_call_id` on each tool message."""
    chat: Row = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        chat["reasoning_content"] = message.reasoning or None
        chat["tool_calls"] = [
            {"id": call.id, "type": "function", "name": call.name, "arguments": call.arguments}
            for call in message.calls
        ] or None
    if message.role == "tool":
        chat |= {"tool_call_id": message.call_id, "name": message.name or None}
    return chat


FORMAT = LineFormat(
    about="verifiers' and prime-rl's traces.jsonl: episodes with message graphs and sampled tokens",
    recognises=lambda row: isinstance(row.get("traces"), list) and isinstance(row.get("task"), dict),
    traces=_read_traces,
    rows=_to_rows,
    file_name="traces.jsonl",
    extra_fields=("task", "solved", "policy", "meta", "steps.reward", "steps.outcome"),
)
