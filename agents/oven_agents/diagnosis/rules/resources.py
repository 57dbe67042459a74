"""Rules for runs that become slower, or need ever more memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import Curve, has_progressed
from oven_agents.diagnosis.rules.stability import find_rise
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.symptoms import COMPLETION_LENGTH

MIN_READINGS: Final = 60
"""Minimum number of readings for a verdict on speed or memory."""
START_SHARE: Final = 0.1
"""Share of the readings at the start that do not count, because of compilation, caches and full buffers."""
_UNIT: Final = (
    r"(?:tokens?|toks?|samples?|sequences?|seqs?|steps?|iterations?|iters?|it|examples?|images?|imgs?|batch(?:es)?)"
)
_SPEED: Final = re.compile(
    rf"(?:^|_)(?:{_UNIT}_(?:per_)?(?:sec|second|s)|tps|tok_s|throughput)(?:_per_gpu|_per_device)?$"
)
_DURATION: Final = re.compile(
    rf"(?:^|_)(?:(?:step|iter|iteration|batch|epoch)_(?:time|duration)|time_per_(?:{_UNIT}|epoch)|dt"
    rf"|(?:s|sec|secs|seconds|ms)_per_(?:{_UNIT}|epoch)|timing_s_step)(?:_ms|_s|_sec|_seconds)?$"
)
"""Names for the speed of the run, and for the duration of a step, in lower-case words joined by underscores."""
MIN_SLOWER: Final = 1.3
"""Minimum ratio of the durations at the end and at best."""
MUCH_SLOWER: Final = 2.0
"""The ratio from which the finding gives advice. On shared machines, smaller ones are common and may have no remedy."""
EFFECT_TICKS: Final = 40
"""Number of ticks after a change of a knob in which steps may become longer because of it."""
LONGER_SHARE: Final = 0.5
"""Minimum growth of completions, as a share of that of the duration, that explains it."""
STALL_RATIO: Final = 5.0
"""Minimum ratio of the duration of a stall to the usual one."""
STALL_REMEDY: Final = (
    "see what runs at these steps, e.g. evaluation, checkpoints, or waiting for data; run it less often, or add "
    "workers that load data"
)
MIN_STALLED: Final = 0.4
"""Minimum share of the time that is lost in stalls."""
_MEMORY: Final = re.compile(r"(?:^|_)(?:mem|memory|rss|vram)(?:_|$)")
_NOT_MEMORY: Final = re.compile(r"(?:^|_)(?:loss|bank|replay|bandwidth|clock|accuracy|acc|frac|fragmentation)(?:_|$)")
PARTS: Final = 8
"""Number of parts of the run after its start. Memory must grow from each to the next."""
MIN_GROWTH: Final = 0.25
"""Minimum growth from the first part to the last, as a share of the first."""
MIN_STEADINESS: Final = 0.4
"""Minimum growth from each part to the next, as a share of the mean growth. The highest of random sizes also grows, but
ever more slowly."""
MIN_LAST: Final = 0.75
"""The same, for the last part."""


def slower(record: RunRecord) -> Evidence | None:
    """Steps take longer from some step on until the end, or much of the time is lost in stalls. Single slow steps, such
    as those with an evaluation or a checkpoint, are normal."""
    candidates = [evidence for curve in _durations(record) if (evidence := _slower(record, curve) or _stalls(curve))]
    return max(candidates, key=lambda evidence: evidence.weight, default=None)


def _durations(record: RunRecord) -> Iterator[Curve]:
    """Yield the curves of all metrics of speed, as durations, without the start of the run."""
    for spec in record.started.metrics:
        words = _words(spec.name)
        is_speed = _SPEED.search(words) is not None
        if spec.held_out or spec.name.startswith("eval/") or not (is_speed or _DURATION.search(words)):
            continue
        points = [(tick, value) for tick, value in record.finite(spec.name) if value > 0]
        points = points[round(START_SHARE * len(points)) :]
        if len(points) >= MIN_READINGS:
            durations = [1 / value if is_speed else value for _, value in points]
            yield Curve(spec.name, [tick for tick, _ in points], durations, -1.0 if is_speed else 1.0)


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _show(curve: Curve, duration: float) -> str:
    return f"{1 / duration if curve.sign < 0 else duration:.4g}"


def _slower(record: RunRecord, curve: Curve) -> Evidence | None:
    rise = find_rise(curve, min_lost_share=0.0)
    if rise is None or record.start_count > 1:
        return None  # another part of the log may come from another machine
    onset, best, last = rise
    tick = curve.block_ticks[onset]
    is_effect = any(tick - EFFECT_TICKS <= changed <= tick for changed, _ in record.changes)
    if last < MIN_SLOWER * best or is_effect or _completions_explain(record, tick, last / best):
        return None
    change = f"{curve.name} went from {_show(curve, best)} to {_show(curve, last)}"
    text = f"{change}, so training became {last / best:.1f} times slower"
    level, bound = (1 / last, 1 / best) if curve.sign < 0 else (last, best)
    weight = 0.55 if last >= MUCH_SLOWER * best else 0.4
    return Evidence("slow_steps", weight, tick, text, metric=curve.name, level=level, bound=bound)


def _completions_explain(record: RunRecord, tick: int, ratio: float) -> bool:
    """Return whether completions have grown since the tick, so that longer steps are to be expected."""
    before, after = record.values(COMPLETION_LENGTH, end=tick), record.values(COMPLETION_LENGTH, first=tick)
    return bool(before and after) and median(after) - median(before) >= LONGER_SHARE * (ratio - 1) * median(before)


def _stalls(curve: Curve) -> Evidence | None:
    usual = median(curve.values)
    stalls = [index for index, duration in enumerate(curve.values) if duration >= STALL_RATIO * usual]
    lost = sum(curve.values[index] - usual for index in stalls) / sum(curve.values)
    if lost < MIN_STALLED:
        return None
    text = (
        f"{len(stalls)} of {len(curve.values)} readings of {curve.name}, without those at the start, are at least "
        f"{STALL_RATIO:g} times slower than usual, and cost {lost:.0%} of the total time"
    )
    return Evidence("slow_steps", 0.2, curve.ticks[stalls[0]], text, metric=curve.name, remedy=STALL_REMEDY)


def memory_grows(record: RunRecord) -> Evidence | None:
    """Memory grows steadily until the end of the run."""
    for spec in record.started.metrics:
        words = _words(spec.name)
        if spec.name.startswith("eval/") or not _MEMORY.search(words) or _NOT_MEMORY.search(words):
            continue
        points = record.finite(spec.name)
        points = points[round(2 * START_SHARE * len(points)) :]
        if len(points) < MIN_READINGS or not has_progressed(record, len(points)):
            continue
        levels = _part_levels([value for _, value in points])
        if not _grows_steadily(levels):
            continue
        first, last = points[0][1], levels[-1]
        text = (
            f"{spec.name} grew steadily from {levels[0]:.4g} to {last:.4g} over the last {1 - 2 * START_SHARE:.0%} of "
            "the run, and still grows at the end"
        )
        return Evidence("memory_grows", 0.55, points[0][0], text, metric=spec.name, level=last, bound=first)
    return None


def _part_levels(values: Sequence[float]) -> list[float]:
    borders = [index * len(values) // PARTS for index in range(PARTS + 1)]
    return [median(values[start:end]) for start, end in pairwise(borders)]


def _grows_steadily(levels: Sequence[float]) -> bool:
    growths = [after - before for before, after in pairwise(levels)]
    usual = fmean(growths)
    is_large = levels[0] > 0 and levels[-1] >= (1 + MIN_GROWTH) * levels[0]
    return is_large and min(growths) >= MIN_STEADINESS * usual and growths[-1] >= MIN_LAST * usual
