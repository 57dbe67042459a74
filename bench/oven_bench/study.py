"""The harness of all benches: command, options, progress, results file and report.

A bench is a `Study` around one function with click's options. The function returns a `Report` with every figure next to
its baseline from the same run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from oven_bench.worker_processes import ONE_THREAD, use_one_thread, worker_pool
from oven_core.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

PATH = click.Path(path_type=Path)
first_seed_option = click.option("--first-seed", type=int, default=1, help="The first seed. The others follow it.")
home_option = click.option(
    "--home", type=PATH, metavar="DIR", help="Keep runs and caches there, not in a temporary folder."
)


def jobs_option(default: int = 2) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    help_ = "Runs at a time, each on one thread."
    return click.option("--jobs", type=click.IntRange(min=1), default=default, help=help_)


@dataclass(frozen=True)
class Report:
    """What a bench measured."""

    figures: Mapping[str, object]
    """The flat object that `--json` prints. None stands for what was not measured."""
    rows: Sequence[Mapping[str, object]] = ()
    """A table for people, with the same keys in every row."""
    failures: Sequence[str] = ()
    """What is wrong, one sentence each. With a failure the exit code is 1."""
    error: Exception | None = None
    """Raised after the report was printed."""

    def show(self, as_json: bool) -> None:
        if as_json:
            print(json.dumps(self.figures))
        else:
            console = Console()
            if self.rows:
                table = Table(*self.rows[0], box=None, pad_edge=False)
                for row in self.rows:
                    table.add_row(*map(cell, row.values()))
                console.print(table)
            for name, value in self.figures.items():
                if not self.rows or value != list(self.rows):  # the table has those
                    console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)
        for failure in self.failures:
            print(failure, file=sys.stderr)


def cell(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "NO"
        case float():
            return f"{value:.4g}"
    return str(value)


class Study:
    """A bench and its command line."""

    def __init__(self, name: str, measure: Callable[..., Report], example: str, notes: str = "") -> None:
        """`example` are arguments that the help shows, and `notes` is more text for it."""
        self._program = "oven-controller " + (name if name == "gym" else f"bench {name}")

        @functools.wraps(measure)  # with the options that click's decorators added to it
        def command(as_json: bool, rows_file: Path | None, **options: Any) -> int:
            report = measure(**options)
            report.show(as_json)
            if rows_file is not None:
                rows_file.write_text(json.dumps(list(report.rows), indent=1) + "\n")
            if report.error is not None:
                raise report.error
            return int(bool(report.failures))

        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
        epilog = f"Example: {self._program} {example}\n\n{notes}"
        self._command = click.command(name, epilog=epilog, context_settings=settings)(command)
        self._command.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
            click.Option(
                ["--rows", "rows_file"], type=PATH, metavar="FILE", help="Write the table's rows there as JSON."
            ),
        ]

    def run(self, args: Sequence[str], summary: str = "") -> int:
        """Measure, print the report and return the exit code. Raises click's usage errors, and OvenError."""
        self._command.help = summary
        try:
            with self._command.make_context(self._program, list(args)) as ctx:
                return int(self._command.invoke(ctx))
        except click.exceptions.Exit as end:  # after --help
            return end.exit_code


def run_tasks(
    function: Callable[[T], R],
    tasks: Sequence[T],
    jobs: int,
    *,
    unit: str = "runs",
    describe: Callable[[R], str] = lambda result: "",
    failed: Callable[[T, Exception], R] | None = None,
) -> Iterator[R]:
    """Results of all tasks as they finish, with progress on stderr from the start.

    One job: in this process. More: each in a fresh process with one thread, since a fork would copy the locks of
    torch's threads. The processes end when this one does, even by kill -9. `failed` makes a result of an error; without
    it the error is raised.
    """
    os.environ.update(ONE_THREAD)  # before a worker imports torch

    def result_of(task: T, get: Callable[[], R]) -> R:
        try:
            return get()
        except Exception as error:
            if failed is None:
                raise
            return failed(task, error)

    with progress(unit, len(tasks)) as advance:
        if jobs == 1:
            use_one_thread()
            for task in tasks:
                result = result_of(task, lambda task=task: function(task))  # type: ignore[misc]
                advance(describe(result))
                yield result
            return
        with worker_pool(jobs) as pool:
            pending: dict[Future[R], T] = {pool.submit(function, task): task for task in tasks}
            try:
                while pending:
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        result = result_of(pending.pop(future), future.result)
                        advance(describe(result))
                        yield result
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def progress(unit: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show progress on stderr: a bar in a terminal, else a line at the start and at every tenth.

    Call the value of the context with a description of each item that is done.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                   TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(unit, total=total)
            yield lambda newest: bar.update(task, advance=1, description=newest or unit)
        return
    start, done = time.monotonic(), 0
    if total:
        console.print(f"{unit}: 0 of {total}", soft_wrap=True)

    def advance(newest: str) -> None:
        nonlocal done
        done += 1
        if 10 * done // total > 10 * (done - 1) // total:
            seconds = time.monotonic() - start
            console.print(f"{unit}: {done} of {total} after {seconds:.0f} s; {newest}", soft_wrap=True, markup=False)

    yield advance


class ResultsFile(Generic[R]):
    """Results as JSON lines in a file that a later call continues.

    The first line is a header with the options that the results depend on. Raises ConfigError if the file is not a
    results file of this bench, or has another header.
    """

    def __init__(self, path: Path, adapter: TypeAdapter[R], header: Mapping[str, object] | None = None) -> None:
        """Without a header the file has results only."""
        self._path, self._adapter = path, adapter
        self.rows: list[R] = []
        """Results that were in the file when it was opened."""
        first = [] if header is None else [json.dumps({"made_with": header}) + "\n"]
        lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(first))
            return
        if lines[: len(first)] != first:
            raise ConfigError(f"{path} was made with other options or by another bench; name another file")
        if not lines[-1].endswith("\n"):  # a kill cut this line off; its result is measured again
            lines.pop()
            path.write_text("".join(lines))
        for number, line in enumerate(lines[len(first) :], 1 + len(first)):
            try:
                self.rows.append(adapter.validate_json(line))
            except ValidationError as error:
                raise ConfigError(f"{path}, line {number}, is not a result of this bench; name another file") from error

    def append(self, row: R) -> None:
        with self._path.open("a") as file:
            file.write(self._adapter.dump_json(row).decode() + "\n")


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def seed_list(text: str) -> list[int]:
    """Parse "1,3-5" into [1, 3, 4, 5]. Raises ConfigError."""
    seeds: list[int] = []
    for part in comma_separated(text):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ConfigError(f"--seeds {text}: {part!r} is not a number or a range; give e.g. 100,102-104")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise ConfigError(f"--seeds {text!r} names no seed; give e.g. 100,102-104")
    return seeds


@contextlib.contextmanager
def home_folder(path: Path | None) -> Iterator[Path]:
    """The folder of `--home`, absolute, or a temporary one that is removed afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        yield (path or Path(scratch)).absolute()


def code_digest(folders: Iterable[Path], skip: Sequence[str] = ()) -> str:
    """16 hex digits over the names and contents of all files in these folders, for the header of a results file."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.name not in skip:
                data = path.read_bytes()
                digest.update(f"{path.relative_to(folder).as_posix()} {len(data)} ".encode() + data)
    return digest.hexdigest()


def package_folders(names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        spec = find_spec(name)
        yield from map(Path, spec.submodule_search_locations or () if spec else ())
