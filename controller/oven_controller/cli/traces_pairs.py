"""`oven-controller traces pairs`: preference pairs from teachers' replies, and a test of their information."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from oven_controller.cli.options import Json
from oven_controller.cli.traces_options import From, Replies, SkipBad, Source
from oven_core.errors import NO_SPACE, ConfigError, UnknownNameError, reason
from oven_core.terminal_text import say
from oven_llm.trace_replay.pair_divergence import (
    FEATURES,
    PERMUTATIONS,
    Information,
    information,
    log_ratio_feature,
)
from oven_llm.trace_replay.pairs import MIN_FAMILIES, OTHER_STATE, Key, Mined, grouped, mined
from oven_runs.traces import jsonl
from oven_runs.traces.comparable_actions import Action
from oven_runs.traces.formats.table import read_traces
from oven_runs.traces.records import Reply, Trace

TARGET_DENSITY: Final = 5
"""Pairs per trace that the system that trace replay comes from aimed for."""


def pairs(
    source: Source,
    replies: Replies,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File to write the pairs to.")] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option("--teacher", metavar="NAME", help="Count only this teacher; repeatable.", show_default="all"),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A saved policy with its tokenizer: also test its log-ratios."),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The traces' tasks in SWE-bench's fields: try the actions, so that equivalent actions make no pair.",
        ),
    ] = None,
    repositories: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Checkouts of the tasks' repositories, named owner__name.")
    ] = None,
    permutations: Annotated[
        int, typer.Option(min=19, max=100_000, help="Permutations of the null distribution.")
    ] = PERMUTATIONS,
    from_: From = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> int:
    """Build preference pairs where teachers of two families agree, and test whether the pairs carry more information
    than random ones.

    Example: oven-controller traces pairs traces.jsonl replies.jsonl --out pairs.jsonl
    """
    by_state = read_replies(replies, teacher or ())
    traces = read_traces(source, from_, skip_bad=skip_bad)
    without_task: list[str] = []
    if tasks is not None:
        from oven_recipes.environments.tried_actions import tried_actions

        traces = _with_outcomes(traces, by_state, tried_actions(tasks, repositories), without_task)
    result = mined(traces, by_state)
    refuse_strangers(result, by_state, source)
    if tasks is not None and len(without_task) == result.traces:
        raise ConfigError(f"{tasks} has no task of the {result.traces} traces: does it belong to another collection?")
    tested = information([*result.pairs], FEATURES, permutations=permutations)
    ratios = None if policy is None else _log_ratios(result, policy, permutations)
    if out is not None:
        _write(out, result)
    plain = report(result, tested, ratios, teachers_without_calls(by_state))
    if tasks is not None:
        plain["traces_without_task"] = len(without_task)
    if as_json:
        print(json.dumps(plain))
    else:
        say(*_lines(plain, out))
    return 0 if result.pairs else 1


def read_replies(path: Path, teachers: Sequence[str]) -> dict[Key, list[Reply]]:
    """Return the replies of a file by state, without an unfinished last line. `teachers`: those to use, empty for all.
    Raises ConfigError, also if fewer than two families gave an action, and UnknownNameError for an unknown teacher."""
    replies = list(jsonl.read(path, Reply, cut=True))
    names = {reply.teacher for reply in replies}
    for name in teachers:
        if name not in names:
            raise UnknownNameError("teacher", name, names)
    by_state = grouped(replies, teachers)
    used = [reply for state_replies in by_state.values() for reply in state_replies]
    families = {reply.family for reply in used if reply.action is not None}
    if len(families) >= MIN_FAMILIES:
        return by_state
    if not families:
        kinds = Counter(reply.failure for reply in used).most_common(1)
        raise ConfigError(
            f"{path}: none of {len(used):,} replies is an action; most failed with {kinds[0][0]!r}: fix that, and run "
            "`traces replay` again"
            if kinds
            else f"{path} has no reply"
        )
    (only,) = families
    failed = sorted({reply.family for reply in used} - families)
    raise ConfigError(
        f"{path}: all replies with an action are of one family, {only!r}"
        + (f" (all of {', '.join(failed)} failed: run `traces replay` again)" if failed else "")
        + ", and a pair needs two that agree, because models with similar training make similar errors. Ask a teacher "
        "of another family, or give each its own in the teachers' file"
    )


def refuse_strangers(result: Mined, by_state: Mapping[Key, Sequence[Reply]], source: Path) -> None:
    """Raise ConfigError if no reply is to a state of the file."""
    count = sum(map(len, by_state.values()))
    if count and result.unknown == count:
        raise ConfigError(f"none of the {count:,} replies is to a trace of {source}: are the two of one replay?")
    if count and result.unknown + result.ignored[OTHER_STATE] == count:
        raise ConfigError(
            f"none of the {count:,} replies is to a current state of {source}: its traces have changed since the "
            "replay; name the file that was replayed, or replay this one"
        )


def teachers_without_calls(by_state: Mapping[Key, Sequence[Reply]]) -> dict[str, int]:
    """Return the teachers without a tool call in any reply, with their number of replies. Their models may not support
    tools."""
    calls: defaultdict[str, int] = defaultdict(int)
    actions: Counter[str] = Counter()
    for reply in (reply for replies in by_state.values() for reply in replies if reply.action is not None):
        actions[reply.teacher] += 1
        calls[reply.teacher] += bool(reply.action and reply.action.calls)
    return {name: count for name, count in sorted(actions.items()) if not calls[name]}


def _with_outcomes(
    traces: Iterator[Trace],
    by_state: dict[Key, list[Reply]],
    try_actions: Callable[[Trace, Mapping[int, list[Reply]]], Any],
    without_task: list[str],
) -> Iterator[Trace]:
    """Yield the traces with the outcomes of their actions. The outcomes of replies are set in `by_state` before their
    trace is yielded. Ids of traces without a task are added to `without_task`."""
    for trace in traces:
        steps = range(len(trace.steps))
        replies = {step: by_state[trace.id, step] for step in steps if (trace.id, step) in by_state}
        tried = try_actions(trace, replies)
        if tried is None:
            without_task.append(trace.id)
            yield trace
            continue
        tried_trace, tried_replies = tried
        by_state.update({(trace.id, step): new for step, new in tried_replies.items() if new})
        yield tried_trace


def _write(out: Path, result: Mined) -> None:
    try:
        jsonl.write(out, (mined_pair.pair for mined_pair in result.pairs))
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        raise ConfigError(f"--out {out} cannot be written: {reason(error)}") from error


def _log_ratios(result: Mined, policy: Path, permutations: int) -> tuple[int, Information | None]:
    """Return the number of pairs whose candidates all have scores, and the test over these."""
    from oven_recipes.repair.action_scores import action_scores

    scored = action_scores(policy, [(mined.pair.state, mined.pair.tools, mined.messages) for mined in result.pairs])
    scores: dict[Key, dict[Action, float | None]] = {
        (mined.pair.trace, mined.pair.step): dict(zip(mined.candidates, values, strict=True))
        for mined, values in zip(result.pairs, scored, strict=True)
    }
    usable, feature = log_ratio_feature(
        result.pairs, lambda mined, action: scores[mined.pair.trace, mined.pair.step][action]
    )
    return len(usable), information(usable, {"log_ratio": feature}, permutations=permutations)


def report(
    result: Mined,
    tested: Information | None,
    ratios: tuple[int, Information | None] | None,
    without_calls: Mapping[str, int],
) -> dict[str, Any]:
    """Return the output of `--json`."""
    plain: dict[str, Any] = {
        "traces": result.traces,
        "states": result.states,
        "pairs": len(result.pairs),
        "pairs_per_trace": len(result.pairs) / result.traces if result.traces else None,
        "rules": dict(result.rules),
        "abstentions": dict(result.abstentions),
        "ignored": dict(result.ignored),
        "votes": dict(result.families),
        "replies_to_unknown_states": result.unknown,
        "teachers_without_calls": dict(without_calls),
    }
    if tested is not None:
        plain["kl"] = {name: asdict(divergence) for name, divergence in tested.by_feature.items()}
        plain["kl_p"] = tested.p
        plain["length"] = asdict(tested.length)
    if ratios is not None:
        plain["log_ratio"] = {"pairs": ratios[0]} | (asdict(ratios[1].by_feature["log_ratio"]) if ratios[1] else {})
    return plain


def _lines(plain: Mapping[str, Any], out: Path | None) -> Iterator[str]:
    density = f"; {plain['pairs_per_trace']:.2f} per trace (target: {TARGET_DENSITY})" if plain["traces"] else ""
    file = f"{out}: " if out is not None else ""
    yield f"{file}pairs: {plain['pairs']:,} of {plain['states']:,} states in {plain['traces']:,} traces{density}"
    for title, name in (("rules", "rules"), ("no pair", "abstentions"), ("votes", "votes"), ("ignored", "ignored")):
        if plain[name]:
            counts = sorted(plain[name].items(), key=lambda item: -item[1])
            yield f"  {title}: " + ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in counts)
    if plain["replies_to_unknown_states"]:
        yield f"  replies to traces or steps that do not exist: {plain['replies_to_unknown_states']:,}"
    if plain.get("traces_without_task"):
        yield f"  traces without a task in the file, whose actions were not tried: {plain['traces_without_task']:,}"
    for name, count in plain["teachers_without_calls"].items():
        yield f"  {name} made no call in {count:,} replies: does its model support tools?"
    if "kl" in plain:
        yield f"  more than random pairs of the same states? all features together: p {plain['kl_p']:.3f}"
    for name, divergence in plain.get("kl", {}).items():
        yield f"    KL of {name}: {_divergence(divergence)}"
    if "length" in plain:
        bias = plain["length"]
        yield (
            f"  the preferred action is longer in {bias['longer']}, shorter in {bias['shorter']}; "
            f"{2 ** bias['mean_log_ratio']:.2f} times as long, p {bias['p']:.3f}"
        )
    if "log_ratio" in plain:
        ratio = plain["log_ratio"]
        value = _divergence(ratio) if "value" in ratio else "no pair's candidates fit the policy's context window"
        yield f"  KL of the policy's log-ratios, {ratio['pairs']} pairs: {value}"


def _divergence(divergence: Mapping[str, Any]) -> str:
    null = f"random pairs {divergence['null_mean']:.3f}, 95 % below {divergence['null_high']:.3f}"
    return f"{divergence['value']:.3f} nats ({null}), p {divergence['p']:.3f}"
