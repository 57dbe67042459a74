"""`oven-controller traces ab`: does trace replay help? Arms of GRPO with and without it, compared on held-out tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import JsonValue, ValidationError
from typer import Argument, Option

from oven_bench.bench_command import Jobs, Json
from oven_bench.replay_ab.ab_design import ARMS, BASE, PRIMARY, AbDesign
from oven_bench.replay_ab.ab_schedule import RESULTS, kept, one_thread, planned, registered, reported, run
from oven_bench.replay_ab.arm_pairs import Replayed
from oven_bench.replay_ab.training_results import learnt, missing
from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_core.plugged_command import PluggedCommand
from oven_core.terminal_text import say

SMALL: dict[str, Any] = {
    "seeds": 2, "tasks": 6, "samples": 2, "steps": 2, "first_seed": 900,
    "settings": {
        "hidden": 32, "layers": 1, "heads": 2, "ffn": 64, "demonstrations": 200, "sft_steps": 40, "sft_round": 40,
        "sft_tasks": 8, "prompts_per_step": 2, "group_size": 4, "max_completion_length": 128,
    },
}  # fmt: skip
"""A dry run on development seeds: everything that the whole one does, and no figure to be believed."""


def ab(
    traces: Annotated[Path, Argument(help="Traces of the policy (`traces collect`).")],
    replies: Annotated[Path, Argument(help="What teachers said at their states (`traces replay`).")],
    out: Annotated[Path, Option("--out", metavar="DIR", help="Results and report; called again, it continues there.")],
    home: Annotated[
        Path | None, Option("--home", metavar="DIR", help="Keep the warm policy in DIR/cache, not beside the results.")
    ] = None,
    seeds: Annotated[int, Option(min=2, help="Trainings per arm.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="Seed of the first; the others follow it.")] = 1,
    tasks: Annotated[int, Option(min=2, help="Held-out tasks.")] = 60,
    samples: Annotated[int, Option(min=1, help="Tries at each task.")] = 8,
    steps: Annotated[int, Option(min=1, help="GRPO steps of each training.")] = 30,
    arm: Annotated[list[str] | None, Option(help=f"One of {', '.join(ARMS)}; repeat it [default: all]")] = None,
    by_mix: Annotated[bool, Option("--by-mix", help="Also train on the pairs of all teachers but one family.")] = False,
    set_: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="A setting of the design or the recipe.")
    ] = None,
    pilot: Annotated[
        Path | None, Option(metavar="FILE", help=f"The {RESULTS} of a run on other seeds: how much seeds vary.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Minutes, on development seeds: no figure to believe.")] = False,
    plan_only: Annotated[bool, Option("--plan", help="Only say what the run could detect.")] = False,
    jobs: Jobs = 2,
    as_json: Json = False,
) -> int:
    replayed = Replayed.read(traces, replies)
    given: dict[str, Any] = {
        "seeds": seeds, "first_seed": first_seed, "tasks": tasks, "samples": samples, "steps": steps,
        "pairs": replayed.digest, "mixes": replayed.mixes() if by_mix else replayed.mixes()[:1],
        **({"arms": tuple(arm)} if arm else {}),
    }  # fmt: skip
    design = designed(given | (SMALL if dry_run else {}), set_ or [])
    counts = {mix: len(replayed.pairs(mix)) for mix in design.mixes}
    of = planned(design, pilot)
    if not plan_only:
        kept(out, design)  # refuses a folder of another design before anything is said
        of = registered(out, of)
    said = [*of.said(), f"{len(design.trainings)} trainings of {design.steps} steps; pairs: {_counted(counts)}"]
    if plan_only:
        _print({"plan": said, "pairs": counts, "detectable": of.detectable}, said, as_json)
        return 0
    if not as_json:
        say(*said)
    results = _trained(out, design, replayed, home, jobs)
    report = reported(of, design, results)
    report.write(out)
    seconds = sum(result.cpu_seconds for result in results)
    terms = learnt(results)
    lines = [*report.lines(), "", *(f"{arm}: {_figures(gauges)}" for arm, gauges in terms.items())]
    lines += [f"{len(results)} trainings, {seconds / 60:.1f} minutes of CPU; {out / 'report.svg'}"]
    found = report.as_json() | {"pairs": counts, "learnt": terms, "cpu_seconds": seconds}
    write_atomic(out / "report.json", json.dumps(found, indent=1) + "\n")
    _print(found, lines, as_json)
    return 0


def designed(given: dict[str, Any], settings: list[str]) -> AbDesign:
    """The design with `NAME=VALUE` over it: the design's own names first, else the recipe's. Raises ConfigError."""
    over: dict[str, JsonValue] = {}
    recipe: dict[str, JsonValue] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text} has no value; give NAME=VALUE")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        (over if name in AbDesign.model_fields else recipe)[name] = parsed
    default = AbDesign.model_fields["settings"].default
    try:
        design = AbDesign.model_validate(
            {**given, **over, "settings": {**default, **given.get("settings", {}), **recipe}}
        )
        _ = design.recipe
    except ValidationError as error:
        raise ConfigError(f"the design does not hold: {reason(error)}") from error
    unknown = [name for name in design.arms if name not in ARMS]
    if unknown or len(set(design.arms)) < len(design.arms):
        raise ConfigError(f"--arm {(unknown or design.arms)[0]!r}: name each once, of {', '.join(ARMS)}")
    if not {BASE, PRIMARY} <= set(design.arms):
        raise ConfigError(f"the arms {BASE} and {PRIMARY} decide: an experiment without them answers nothing")
    return design


def _trained(out: Path, design: AbDesign, replayed: Replayed, home: Path | None, jobs: int) -> Any:
    if not missing(design, kept(out, design).rows):
        return kept(out, design).rows
    from oven_bench.replay_ab.arm_training import train_and_measure  # torch: only where something is trained

    if jobs == 1:  # it is trained here
        one_thread()
    return run(out, design, replayed, (home or out).absolute() / "cache", jobs, train_and_measure)


def _figures(gauges: dict[str, float]) -> str:
    return ", ".join(f"{name.removeprefix('channel/')} {value:.3g}" for name, value in gauges.items())


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} ({mix})" for mix, count in counts.items())


def _print(found: dict[str, Any], lines: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
    else:
        say(*lines)


AB = PluggedCommand(
    "traces",
    "ab",
    "Train with and without trace replay, and compare on held-out tasks: HELPS, NO EFFECT, HARMS or INCONCLUSIVE.",
    "traces.jsonl replies.jsonl --out ab --seeds 5",
    ab,
)
