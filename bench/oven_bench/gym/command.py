"""`oven-controller gym`: plays what is missing, and says its outcome."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from oven_bench.gym import arm_registry, episode_rows
from oven_bench.gym.arm import Arm, LearnsFromArm
from oven_bench.gym.best_rule import BEST, RULE
from oven_bench.gym.episode_rows import Row
from oven_bench.gym.fault import HELD_OUT, Fault
from oven_bench.gym.faults import catalogue
from oven_bench.gym.plot import svg
from oven_bench.gym.report import Report, plain, report
from oven_bench.gym.runner import Task, missing, played
from oven_bench.gym.score import ArmScore, Healthy
from oven_bench.gym.task_report import TaskReport
from oven_bench.gym.task_table import TASKS, USUAL
from oven_bench.progress import progress
from oven_bench.statistics import Interval
from oven_core.errors import ConfigError, ProcessError, UnknownNameError

SUBJECT = "mesh+kg"
"""The arm that the verdict is on, unless another is named: the controller as it is shipped."""
QUICK_ARMS = (
    "nothing",
    "random",
    "rule.cut_8",
    "rule.rollback_cut_8",
    "rule.rollback_skip",
    "loss_spike",
    "not_a_number",
    "zclip",
    "plateau",
    SUBJECT,
)
LEGEND = (
    "undone: share of the harm, mean over families; worse: episodes that ended worse than with nothing done; "
    "cost: of the final loss where nothing was wrong; acts: changes there in 1,000 gradient steps"
)
SEEDS, QUICK_SEEDS = 3, 1
LONGEST = 300
"""Gradient steps after the onset: a run of 430 steps reads 3,440 rows, and the smallest sub-corpus has 4,000."""
QUICK_EVERY = 3
"""Of the training families in the order of their names, healthy ones among them."""


def main(
    *,
    quick: bool,
    arms: Sequence[str],
    families: Sequence[str],
    seeds: int | None,
    first_seed: int,
    held_out: bool,
    tasks: Sequence[str],
    horizon: int,
    jobs: int,
    resume: Path | None,
    subject: str,
    as_json: bool,
    plot: Path | None,
) -> int:
    """Entry point of oven.commands. Exit code 1: it says HARMS. Raises OvenError; when episodes failed, after saying
    the outcome of the others."""
    if plot and not plot.parent.is_dir():
        raise ConfigError(f"--plot {plot}: there is no folder {plot.parent}; make it first")
    known = arm_registry.arms()
    chosen = _chosen("arm", arms, known, [name for name in QUICK_ARMS if name in known] if quick else known)
    chosen = ["nothing", *(name for name in chosen if name != "nothing")]
    kinds = _chosen("task of the gym", tasks, TASKS, USUAL)
    faults = {
        name: family
        for name, family in catalogue.families().items()
        if family.kind in kinds and (held_out or not family.held_out)
    }
    if held_out and not any(family.held_out for family in faults.values()):
        raise ConfigError(
            f"--held-out: no installed family of faults was written for {' or '.join(sorted(HELD_OUT))} "
            f"in {', '.join(kinds)}; leave it out"
        )
    usual = _few(faults) if quick else [*faults]
    wanted = _chosen("family of faults", families, faults, usual)
    if not 1 <= horizon <= LONGEST:
        raise ConfigError(f"--horizon {horizon} is not from 1 to {LONGEST}: longer episodes read their data twice")
    if jobs < 1 or (seeds is not None and seeds < 1):
        raise ConfigError(f"--jobs {jobs} and --seeds {seeds}: both are at least 1")
    range_ = range(first_seed, first_seed + (seeds or (QUICK_SEEDS if quick else SEEDS)))
    picked = [family for name, family in faults.items() if name in wanted]
    with nullcontext(resume) if resume else tempfile.TemporaryDirectory() as folder:
        gym = Gym({name: known[name] for name in chosen}, Path(folder), jobs, horizon)
        rows = gym.play(picked, range_)
    found = report(rows, subject)
    if plot:
        plot.write_text(svg(found.arms, _title(found)))
    if as_json:
        print(json.dumps(plain(found)))
    else:
        show(found, Console())
    if gym.failures:
        raise ProcessError(f"{len(gym.failures)} episodes failed, all others are done. First: {gym.failures[0]}")
    return 1 if found.verdict.word == "HARMS" else 0


def _few(faults: Mapping[str, type[Fault]]) -> list[str]:
    """Those held out all, if they are asked for."""
    training = sorted(name for name, family in faults.items() if not family.held_out)
    return [*training[::QUICK_EVERY], *(name for name, family in faults.items() if family.held_out)]


def _chosen(kind: str, asked: Sequence[str], known: Collection[str], otherwise: Iterable[str]) -> list[str]:
    """What was asked for by name, or by how its name begins with a `*` at the end."""
    if not asked:
        return list(otherwise)
    found: list[str] = []
    for name in asked:
        fits = [each for each in sorted(known) if each == name or (name[-1:] == "*" and each.startswith(name[:-1]))]
        if not fits:
            raise UnknownNameError(kind, name, known)
        found += [each for each in fits if each not in found]
    return found


class Gym:
    """Arms, and the folder that has their episodes."""

    def __init__(self, arms: Mapping[str, Arm], folder: Path, jobs: int, horizon: int) -> None:
        """Raises ConfigError for an arm that would learn from one that is not among them."""
        self.failures: list[str] = []
        """Of episodes, by name."""
        self._arms, self._folder, self._jobs, self._horizon = arms, folder, jobs, horizon
        self._teachers = {name: arm.learns_from for name, arm in arms.items() if isinstance(arm, LearnsFromArm)}
        for name, source in self._teachers.items():
            if source not in arms or source in self._teachers:
                raise ConfigError(f"the arm {name!r} learns from {source!r}; add it to --arms")

    def play(self, families: Sequence[type[Fault]], seeds: Collection[int]) -> list[Row]:
        """All rows that were asked for: those that the folder has, and the rest, which it gets. Arms
        that learn come when what they learn from is done."""
        there = [row for row in episode_rows.read(self._folder) if row.horizon == self._horizon]
        others = [name for name in self._arms if name not in self._teachers]
        there += self._run(missing(families, seeds, others, there, self._horizon))
        for name, source in self._teachers.items():
            tasks = missing(families, seeds, [name], there, self._horizon)
            there += self._run([_taught(task, there, source) for task in tasks])
        wanted = {family.name for family in families}
        return [row for row in there if row.family in wanted and row.seed in seeds and row.arm in self._arms]

    def _run(self, tasks: Sequence[Task]) -> list[Row]:
        if not tasks:
            return []
        found: list[Row] = []
        with progress("episodes", sum(len(task.arms) for task in tasks)) as advance:
            for rows, failures in played(tasks, self._jobs):
                episode_rows.append(self._folder, rows)
                found += rows
                self.failures += failures
                advance(len(rows) + len(failures), f"{rows[-1].family} {rows[-1].seed}" if rows else "failed")
        return found


def _taught(task: Task, rows: Sequence[Row], source: str) -> Task:
    """With what was kept on the training families of the other tasks; where one task alone was played, on its families
    other than this one."""
    known = [row for row in rows if row.arm == source and not row.held_out]
    past = [row for row in known if row.kind != task.kind]
    past = past or [row for row in known if row.family != task.family]
    return replace(task, past=tuple(row.kept for row in sorted(past, key=lambda row: (row.seed, row.family))))


def _title(found: Report) -> str:
    count = max((len(each.families) for each in found.arms.values()), default=0)
    return f"{found.subject}: {found.verdict.word} ({count} {'held-out' if found.held_out else 'training'} families)"


def show(found: Report, console: Console) -> None:
    console.print(_table(found.arms, found.healthy))
    if found.tasks is not None:
        _show_tasks(found.tasks, found.subject, console)
    console.print(LEGEND)
    console.print(f"{_title(found)}: {found.verdict.why}", highlight=False, markup=False)


def _show_tasks(of: TaskReport, subject: str, console: Console) -> None:
    for kind, part in of.tasks.items():
        console.print(f"\n{kind}, {'held-out' if part.held_out else 'training'} families", highlight=False)
        console.print(_table(part.arms, part.healthy))
    if (new := of.not_developed_on) is not None:
        console.print("\ntasks the agents were not developed on, the rule chosen on other tasks:", highlight=False)
        console.print(f"{', '.join(new.tasks)}", highlight=False)
        console.print(_table(new.arms, new.healthy))
        if new.difference is not None:
            console.print(f"{subject} to {BEST}: {_shown(new.difference)}", highlight=False, markup=False)
    console.print("\nleave one task out: nothing was chosen on the task it is judged on", highlight=False)
    table = Table("task", "rule of the others", subject, "best rule", "difference", box=None, padding=(0, 1, 0, 0))
    for kind, left in of.left_out.items():
        mine, rule = (left.arms.get(arm) for arm in (subject, BEST))
        table.add_row(
            kind,
            left.rule.removeprefix(RULE),
            f"{mine.score.mean:+.3f}" if mine else "",
            f"{rule.score.mean:+.3f}" if rule else "",
            _shown(left.difference) if left.difference else "",
        )
    console.print(table)
    console.print()


def _shown(of: Interval) -> str:
    return f"{of.mean:+.2f} [{of.low:+.2f}, {of.high:+.2f}]"


def _table(arms: Mapping[str, ArmScore], healthy: Mapping[str, Healthy]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("arm", "undone", "95 %", "worse", "episodes", "cost", "acts"):
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("arm", "95 %") else "right")
    for arm, each in arms.items():
        calm = healthy.get(arm)
        table.add_row(
            arm,
            f"{each.score.mean:+.3f}",
            f"{each.score.low:+.2f} … {each.score.high:+.2f}",
            f"{each.worse.mean:.0%}",
            str(each.episodes),
            f"{calm.harm.mean:+.2%}" if calm else "",
            f"{calm.interventions_per_1000:.1f}" if calm else "",
        )
    return table
