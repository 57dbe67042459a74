"""The trainings of the A/B, a few at a time, each result kept as it comes: killed and called again, it continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from pathlib import Path

from pydantic import TypeAdapter

from oven_bench.arm_comparison.arm_report import Plan, Report, plan, report
from oven_bench.arm_comparison.detectable import Design, VarianceParts, assumed_parts, parts_of
from oven_bench.progress import Advance, progress
from oven_bench.replay_ab.ab_design import BASE, PRIMARY, AbDesign, Training
from oven_bench.replay_ab.arm_pairs import Replayed, TrainingData
from oven_bench.replay_ab.training_results import TrainingResult, arrays, missing
from oven_bench.results_file import Kept
from oven_bench.worker_pool import workers
from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic

RESULTS, PLAN = "results.jsonl", "plan.json"
TITLE = "Trace replay beside GRPO"
_PLAN = TypeAdapter(Plan)
USUAL_RATE = 0.3
"""Of success, assumed without a pilot: the warm policy begins at .2 to .6."""


def kept(folder: Path, design: AbDesign) -> Kept[TrainingResult]:
    """The results file. Raises ConfigError for one of another design."""
    return Kept(folder / RESULTS, design, TypeAdapter(TrainingResult))


def planned(design: AbDesign, pilot: Path | None = None) -> Plan:
    """What is said before the run: the gain that it can detect, by the variances of a pilot (the results file of an
    earlier run on other seeds) or by assumed ones. Raises ConfigError for a pilot that cannot say it."""
    size = Design(design.seeds, design.tasks, design.samples)
    parts = assumed_parts(USUAL_RATE) if pilot is None else _parts(design, pilot)
    return plan(TITLE, BASE, PRIMARY, size, parts)


def registered(folder: Path, of: Plan) -> Plan:
    """The plan that was written before the first training of this folder, or `of`, written now: what the run could
    detect is not said anew when its results are known."""
    file = folder / PLAN
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, _PLAN.dump_json(of, indent=1) + b"\n")
    try:
        return _PLAN.validate_json(file.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{file} is not a plan: {reason(error)}; remove it, and the results with it") from error


def _parts(design: AbDesign, pilot: Path) -> VarianceParts:
    lines = pilot.read_text().splitlines() if pilot.is_file() else []
    if len(lines) < 2:
        raise ConfigError(f"{pilot} has no results; name the {RESULTS} of an earlier run")
    try:
        before = AbDesign.model_validate_json(lines[0])
        rows = [TrainingResult.model_validate_json(line) for line in lines[1:]]
        whole, _ = arrays(before, rows)
        ours, theirs = (range(one.first_seed, one.first_seed + one.seeds) for one in (design, before))
        if set(ours) & set(theirs):
            raise ConfigError(f"{pilot} has seeds of this run; a pilot has others: give --first-seed")
        return parts_of(whole[PRIMARY], whole[BASE])
    except KeyError as error:
        raise ConfigError(f"{pilot} is not complete: {error} is missing; let it end first") from None
    except ValueError as error:
        raise ConfigError(f"{pilot} is not a pilot: {error}") from None


def run(
    folder: Path,
    design: AbDesign,
    replayed: Replayed,
    cache: Path,
    jobs: int,
    train: Callable[[AbDesign, Training, TrainingData, Path], TrainingResult],
) -> list[TrainingResult]:
    """All results, those that were there among them. `jobs` trainings run at a time, each in a process of one thread;
    one alone runs here. A training that fails ends the run with its error, once those beside it have ended; the others
    are kept. Raises ConfigError for a results file of another design."""
    file = kept(folder, design)
    results = list(file.rows)
    wanted = missing(design, results)
    data = {mix: replayed.data(mix) for mix in design.mixes}
    if not wanted:
        return results
    if jobs == 1:
        with progress("trainings", len(wanted)) as advance:
            return [*results, *(_add(file, train(design, one, data[one.mix], cache), advance) for one in wanted)]
    with workers(min(jobs, len(wanted)), one_thread) as pool, progress("trainings", len(wanted)) as advance:
        # The first makes the warm policy, which the others then find in the cache.
        first = pool.submit(train, design, wanted[0], data[wanted[0].mix], cache)
        results.append(_add(file, first.result(), advance))
        under_way = [pool.submit(train, design, one, data[one.mix], cache) for one in wanted[1:]]
        try:
            results += [_add(file, done.result(), advance) for done in as_completed(under_way)]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _add(file: Kept[TrainingResult], result: TrainingResult, advance: Advance) -> TrainingResult:
    file.append(result)
    solved = [sample for task in result.solved for sample in task]
    advance(1, f"seed {result.seed}, {result.arm}, {result.mix}: {sum(solved) / len(solved):.3f} solved")
    return result


def one_thread() -> None:
    """This process computes on one, so that several do not wait for each other."""
    import torch

    torch.set_num_threads(1)


def reported(of: Plan, design: AbDesign, results: Sequence[TrainingResult]) -> Report:
    """Raises KeyError while a training is missing."""
    whole, mixes = arrays(design, results)
    return report(of, whole, mixes)
