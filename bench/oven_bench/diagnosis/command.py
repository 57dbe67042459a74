"""`bench supervisor`: faults of known cause and onset, and healthy runs, diagnosed without a model and with
programs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter
from typer import Option

import oven_llm.diagnosis as diagnosis
from oven_bench.bench_command import Bench, Jobs, Json, ResultsFile, one_of, print_object, print_table, seed_list
from oven_bench.diagnosis import planted_causes as planted
from oven_bench.diagnosis import scripted_supervisor
from oven_bench.diagnosis.diagnosed_run import MODEL, Asked, Row, play
from oven_bench.diagnosis.diagnosis_figures import figures
from oven_bench.results_file import Kept
from oven_bench.worker_pool import workers
from oven_core.errors import ConfigError

SETS: Final = {
    "development": (planted.DEVELOPMENT, planted.DEVELOPMENT_HEALTHY, planted.DEVELOPMENT_SEEDS),
    "final": (planted.FINAL, planted.FINAL_HEALTHY, planted.FINAL_SEEDS),
}
"""The final set is run once, by a version that is named in the results."""
PRICE: Final = "3,15"
"""US dollars per million tokens of input and output, as of a large hosted model: the script has no price of its own."""


class Version(BaseModel):
    """What results were made with: they are not mixed with those of other code."""

    model_config = ConfigDict(frozen=True)

    bench: str = "supervisor"
    code: str
    model: str
    base_url: str


def main(
    families: Annotated[str, one_of(SETS, "Which families and seeds; `final` is for one run.")] = "development",
    seeds: Annotated[str, Option(metavar="LIST", help="Others, e.g. 1101-1105.", show_default="the set's")] = "",
    only: Annotated[str, Option(metavar="TEXT", help="Families whose names hold this.")] = "",
    base_url: Annotated[str, Option(metavar="URL", help="Ask this server, and not the script.")] = "",
    model: Annotated[str, Option(metavar="NAME", help="Its model.")] = MODEL,
    price: Annotated[
        str, Option(metavar="IN,OUT", help="US dollars per million tokens, where the endpoint has no price.")
    ] = PRICE,
    results: ResultsFile = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> int:
    causes, healthy, usual = SETS[families]
    wanted = [family for family in (*causes, *healthy) if only in family]
    if not wanted:
        raise ConfigError(f"no family of the set {families} has {only!r} in its name, e.g. pretraining.lr_too_high")
    tasks = [(family, seed) for seed in (seed_list(seeds) if seeds else usual) for family in sorted(wanted)]
    asked = Asked(base_url, model)
    kept = (
        Kept(results, Version(code=code_hash(), model=model, base_url=base_url), TypeAdapter(Row)) if results else None
    )
    rows = [row for row in kept.rows if (row.family, row.seed) in set(tasks)] if kept else []
    done = {(row.family, row.seed) for row in rows}
    for row in _played([task for task in tasks if task not in done], asked, jobs):
        rows.append(row)
        if kept is not None:
            kept.append(row)
    found = {"set": families, "code": code_hash(), **figures(rows, causes, _price(price))}
    if as_json:
        print_object(found, as_json)
    else:
        _show(found)
    return 1 if found["verdict"] == "HARMS" else 0


def _played(tasks: Sequence[tuple[str, int]], asked: Asked, jobs: int) -> Iterator[Row]:
    """Tasks that share a healthy beginning follow each other."""
    ordered = sorted(tasks, key=lambda task: (task[0].partition(".")[0], task[1], task[0]))
    with workers(jobs, _one_thread) as pool:
        try:
            for future in as_completed([pool.submit(play, family, seed, asked) for family, seed in ordered]):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def code_hash() -> str:
    """Of all that diagnoses, the programs and the table of causes: what must be frozen before the final run."""
    own = Path(str(diagnosis.__file__)).parent
    files = sorted(own.glob("*.py"))
    files += [Path(str(module.__file__)) for module in (scripted_supervisor, planted)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _price(text: str) -> tuple[float, float]:
    try:
        dear, dearer = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--price {text} is not two numbers; give e.g. {PRICE}") from None
    return dear, dearer


def _show(found: dict[str, Any]) -> None:
    rows = [
        (
            way,
            _interval(found[way]["cause_right"]),
            str(found[way]["onset_error_median"]),
            _interval(found[way]["onset_near"]),
            _interval(found[way]["false_alarms"]),
            str(sum(found[way]["refused"].values())),
        )
        for way in ("detectors", "programs")
    ]
    rows.append((f"always {found['floor'].get('cause')}", _interval(found["floor"].get("right")), "", "", "", ""))
    told = {
        name: found[name] for name in ("set", "code", "runs", "families", "healthy_families", "seeds", "verdict")
    } | {
        "difference": _interval(found["difference"]),
        "fewer false alarms": _interval(found["fewer_false_alarms"]),
        "USD each": found["programs"]["usd_each"],
        "seconds each": found["programs"]["seconds_each"],
    }
    print_table(told, ("", "cause right", "onset error", "within 10 ticks", "false alarms", "refused"), rows)


def _interval(found: dict[str, float] | None) -> str:
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]" if found else "–"


BENCH = Bench(
    "supervisor",
    main,
    "diagnoses of gym runs with planted faults, and of healthy ones: cause, onset, false alarms, USD",
    "--families development --only pretraining --json",
)
