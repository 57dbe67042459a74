"""`oven-controller traces pairs`: preference pairs from teachers' replies, and what they say."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from oven_controller.cli.options import Json
from oven_controller.cli.traces_source import From, Source
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

SEED_DENSITY: Final = 5
"""Pairs a trace that the source system asked for."""

Replies = Annotated[Path, typer.Argument(metavar="REPLIES", help="Teachers' replies, as `traces replay` writes them.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that hold no trace.")]
Teachers = Annotated[
    list[str] | None,
    typer.Option("--teacher", metavar="NAME", help="Count only this one; repeatable.", show_default="all"),
]


def pairs(
    source: Source,
    replies: Replies,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the pairs there.")] = None,
    teacher: Teachers = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A saved policy with its tokenizer: test its log-ratios, too."),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The traces' tasks in SWE-bench's fields: try the actions, so that equivalent ones make no pair.",
        ),
    ] = None,
    repositories: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Checkouts of the tasks' repositories, as owner__name.")
    ] = None,
    permutations: Annotated[int, typer.Option(min=19, max=100_000, help="Of the null.")] = PERMUTATIONS,
    from_: From = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> int:
    """Build preference pairs where teachers of two families agree, and test whether the pairs carry more information
    than random ones.

    Example: oven-controller traces pairs traces.jsonl replies.jsonl --out pairs.jsonl
    """
    asked = read_replies(replies, teacher or ())
    traces = read_traces(source, from_, skip_bad=skip_bad)
    untried: list[str] = []
    if tasks is not None:
        from oven_recipes.environments.tried_actions import tried_actions

        traces = _tried(traces, asked, tried_actions(tasks, repositories), untried)
    found = mined(traces, asked)
    refuse_strangers(found, asked, source)
    if tasks is not None and len(untried) == found.traces:
        raise ConfigError(f"{tasks} has the task of none of the {found.traces} traces: is it of another collection?")
    tested = information([*found.pairs], FEATURES, permutations=permutations)
    ratios = None if policy is None else _log_ratios(found, policy, permutations)
    if out is not None:
        _write(out, found)
    plain = report(found, tested, ratios, silent_teachers(asked))
    if tasks is not None:
        plain["traces_without_task"] = len(untried)
    if as_json:
        print(json.dumps(plain))
    else:
        say(*_text(plain, out))
    return 0 if found.pairs else 1


def read_replies(path: Path, teachers: Sequence[str]) -> dict[Key, list[Reply]]:
    """The replies of a file by state; a last line that is still being written is passed over.

    Raises ConfigError, also where fewer than two families gave an action, and UnknownNameError for a teacher that is
    not there."""
    everything = list(jsonl.read(path, Reply, cut=True))
    known = {reply.teacher for reply in everything}
    for name in teachers:
        if name not in known:
            raise UnknownNameError("teacher", name, known)
    asked = grouped(everything, teachers)
    counted = [reply for given in asked.values() for reply in given]
    families = {reply.family for reply in counted if reply.action is not None}
    if len(families) >= MIN_FAMILIES:
        return asked
    if not families:
        kinds = Counter(reply.failure for reply in counted).most_common(1)
        raise ConfigError(
            f"{path}: none of {len(counted):,} replies is an action; most failed with {kinds[0][0]!r}: mend that, and "
            "call `traces replay` again"
            if kinds
            else f"{path} has no reply"
        )
    (only,) = families
    silent = sorted({reply.family for reply in counted} - families)
    raise ConfigError(
        f"{path}: all replies with an action are of one family, {only!r}"
        + (f" (all of {', '.join(silent)} failed: call `traces replay` again)" if silent else "")
        + ", and a pair needs two that agree: models that were trained alike err alike. Ask a teacher of another "
        "family, or give each its own in the teachers' file"
    )


def refuse_strangers(found: Mined, asked: Mapping[Key, Sequence[Reply]], source: Path) -> None:
    """Raises ConfigError where no reply is to a state of the file."""
    given = sum(map(len, asked.values()))
    if given and found.unknown == given:
        raise ConfigError(f"none of the {given:,} replies is to a trace of {source}: are the two of one replay?")
    if given and found.unknown + found.ignored[OTHER_STATE] == given:
        raise ConfigError(
            f"none of the {given:,} replies is to a state of {source} as it is there: its traces have changed since "
            "the replay; name the file that was replayed, or replay this one"
        )


def silent_teachers(asked: Mapping[Key, Sequence[Reply]]) -> dict[str, int]:
    """Teachers none of whose replies makes a call, with how many replies they gave: models that take no tools."""
    calls: defaultdict[str, int] = defaultdict(int)
    given: Counter[str] = Counter()
    for reply in (one for replies in asked.values() for one in replies if one.action is not None):
        given[reply.teacher] += 1
        calls[reply.teacher] += bool(reply.action and reply.action.calls)
    return {name: count for name, count in sorted(given.items()) if not calls[name]}


def _tried(traces: Iterator[Trace], asked: dict[Key, list[Reply]], tried: Any, untried: list[str]) -> Iterator[Trace]:
    """The traces with the outcomes of their actions; those of replies are set in `asked` before a trace comes out."""
    for trace in traces:
        given = {at: asked[trace.id, at] for at in range(len(trace.steps)) if (trace.id, at) in asked}
        made = tried(trace, given)
        if made is None:
            untried.append(trace.id)
            yield trace
            continue
        asked.update({(trace.id, at): replies for at, replies in made[1].items() if replies})
        yield made[0]


def _write(out: Path, found: Mined) -> None:
    try:
        jsonl.write(out, (one.pair for one in found.pairs))
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        raise ConfigError(f"--out {out} cannot be written: {reason(error)}") from error


def _log_ratios(found: Mined, policy: Path, permutations: int) -> tuple[int, Information | None]:
    """How many pairs have scores of all their candidates, and the test over these."""
    from oven_recipes.repair.action_scores import action_scores

    scored = action_scores(policy, [(one.pair.state, one.pair.tools, one.messages) for one in found.pairs])
    known: dict[Key, dict[Action, float | None]] = {
        (one.pair.trace, one.pair.step): dict(zip(one.candidates, scores, strict=True))
        for one, scores in zip(found.pairs, scored, strict=True)
    }
    usable, feature = log_ratio_feature(found.pairs, lambda at, action: known[at.pair.trace, at.pair.step][action])
    return len(usable), information(usable, {"log_ratio": feature}, permutations=permutations)


def report(
    found: Mined,
    tested: Information | None,
    ratios: tuple[int, Information | None] | None,
    silent: Mapping[str, int],
) -> dict[str, Any]:
    """All that is to be said, for JSON."""
    plain: dict[str, Any] = {
        "traces": found.traces,
        "states": found.states,
        "pairs": len(found.pairs),
        "pairs_per_trace": len(found.pairs) / found.traces if found.traces else None,
        "rules": dict(found.rules),
        "abstentions": dict(found.abstentions),
        "ignored": dict(found.ignored),
        "votes": dict(found.families),
        "replies_to_unknown_states": found.unknown,
        "teachers_without_calls": dict(silent),
    }
    if tested is not None:
        plain["kl"] = {name: asdict(one) for name, one in tested.by_feature.items()}
        plain["kl_p"] = tested.p
        plain["length"] = asdict(tested.length)
    if ratios is not None:
        plain["log_ratio"] = {"pairs": ratios[0]} | (asdict(ratios[1].by_feature["log_ratio"]) if ratios[1] else {})
    return plain


def _text(plain: Mapping[str, Any], out: Path | None) -> Iterator[str]:
    density = f"; {plain['pairs_per_trace']:.2f} a trace, beside the seed's {SEED_DENSITY}" if plain["traces"] else ""
    place = f"{out}: " if out is not None else ""
    yield f"{place}pairs: {plain['pairs']:,} of {plain['states']:,} states in {plain['traces']:,} traces{density}"
    for what, name in (("rules", "rules"), ("no pair", "abstentions"), ("votes", "votes"), ("not counted", "ignored")):
        if plain[name]:
            most = sorted(plain[name].items(), key=lambda one: -one[1])
            yield f"  {what}: " + ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in most)
    if plain["replies_to_unknown_states"]:
        yield f"  replies to traces or steps that are not there: {plain['replies_to_unknown_states']:,}"
    if plain.get("traces_without_task"):
        yield f"  traces whose task is not in the file, so that nothing was tried: {plain['traces_without_task']:,}"
    for name, count in plain["teachers_without_calls"].items():
        yield f"  {name} made no call in {count:,} replies: does its model take tools?"
    if "kl" in plain:
        yield f"  more than random pairs of the same states? all features together: p {plain['kl_p']:.3f}"
    for name, kl in plain.get("kl", {}).items():
        yield f"    KL of {name}: {_divergence(kl)}"
    if "length" in plain:
        one = plain["length"]
        ratio = 2 ** one["mean_log_ratio"]
        yield (
            f"  the preferred action is longer in {one['longer']}, shorter in {one['shorter']}; "
            f"{ratio:.2f} times as long, p {one['p']:.3f}"
        )
    if "log_ratio" in plain:
        one = plain["log_ratio"]
        value = _divergence(one) if "value" in one else "the policy's window holds no pair's candidates"
        yield f"  KL of the policy's log-ratios, {one['pairs']} pairs: {value}"


def _divergence(one: Mapping[str, Any]) -> str:
    null = f"random pairs {one['null_mean']:.3f}, 95 % below {one['null_high']:.3f}"
    return f"{one['value']:.3f} nats ({null}), p {one['p']:.3f}"
