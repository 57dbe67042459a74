"""Reviews the synthetic runs of example_runs.py as the command `review` does, for docs/what-is-wrong.md.

Each run is written to a file, read by the command's own importer and judged by its rules. So the pictures and sentences
change with the program.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from example_runs import HEALTHY, RUNS, ExampleRun

from oven_agents.diagnosis.engine import find_findings, read_record
from oven_agents.diagnosis.finding import Finding
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.review.chart import HEIGHT, LEFT, WIDTH, Mark, render_chart
from oven_agents.review.findings_page import CSS_CLASSES
from oven_agents.review.flagged_proposals import Series
from oven_controller.cli.main import run as run_command
from oven_controller.finding_report import describe
from oven_controller.importing.declared_knobs import Knob
from oven_controller.importing.open_log import open_log
from oven_core.terminal_text import wrapped

CAPTION: Final = 20
"""Height of a chart's caption in pixels."""
MARGIN: Final = 10
"""Pixels around the charts."""
STYLE: Final = """
.card { fill: #fff; stroke: #d0d7de; } text { font: 13px system-ui, sans-serif; fill: #57606a; }
.name { font-weight: 600; fill: #24292f; } .grid { stroke: #d8dee4; }
.band { fill: #3b6ea8; stroke: #3b6ea8; stroke-width: 1.4; fill-opacity: 0.45; }
.harm line { stroke: #c0392b; stroke-width: 2; } .harm text { fill: #c0392b; font-weight: 600; }
.alarm line { stroke: #9a6300; stroke-width: 2; } .alarm text { fill: #9a6300; font-weight: 600; }
.unknown line { stroke: #7d5ba6; stroke-width: 2; } .unknown text { fill: #7d5ba6; font-weight: 600; }
@media (prefers-color-scheme: dark) {
.card { fill: #16191d; stroke: #3d444d; } text { fill: #9aa4ae; } .name { fill: #e6e6e6; } .grid { stroke: #343b43; }
.band { fill: #7fb0e6; stroke: #7fb0e6; }
.harm line { stroke: #ff7b6b; } .harm text { fill: #ff7b6b; }
.alarm line { stroke: #e8b64c; } .alarm text { fill: #e8b64c; }
.unknown line { stroke: #c3a2ec; } .unknown text { fill: #c3a2ec; }
}
"""
"""The picture has its own background, because the page's may differ from what the system prefers."""


def finding_block(kind: str) -> str:
    """Return the picture of a kind of finding, and the lines that the command prints for it."""
    finding = _finding(kind)
    record, _ = _reviewed(kind)
    lines = [line for text in describe(finding, record) for line in wrapped(text)]
    parts = [f"![A curve with the finding {kind}](findings/{kind}.svg)", "", "```text", *lines, "```"]
    if finding.severity != "act":
        parts += ["", f"**If this finding is wrong, following it costs** {finding.cost}."]
    return "\n".join(parts)


def _finding(kind: str) -> Finding:
    """Return the finding that the example of this kind shows. Raises LookupError if the rules no longer find it."""
    _, findings = _reviewed(kind)
    for finding in findings:
        if finding.kind == kind:
            return finding
    raise LookupError(f"the example of {kind} in docs/example_runs.py shows {[item.kind for item in findings]}")


def pictures() -> dict[str, str]:
    """Return the SVG files: path under docs/ → contents."""
    return {f"findings/{run.kind}.svg": _draw(run) for run in (HEALTHY, *RUNS)}


def printed(files: Mapping[str, str], *options: str) -> str:
    """Return what `review` prints about these files: name → kind of the example that it logs, as a table if the name
    ends with .csv, otherwise as text."""
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for file, kind in files.items():
            Path(file).parent.mkdir(exist_ok=True)
            (_run(kind).write_csv if file.endswith(".csv") else _run(kind).write_text)(Path(file))
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            run_command(["review", *files, *options])
    return re.sub(r" +$", "", output.getvalue(), flags=re.MULTILINE).rstrip("\n")


def _run(kind: str) -> ExampleRun:
    return next(run for run in (HEALTHY, *RUNS) if run.kind == kind)


@cache
def _reviewed(kind: str) -> tuple[RunRecord, Sequence[Finding]]:
    run = _run(kind)
    knobs = [] if run.clip is None else [Knob("grad.clip", run.clip)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        run.write_csv(path)
        with open_log(str(path), knobs=knobs) as log:
            record = read_record(log.events())
    return record, find_findings(record)


def _draw(run: ExampleRun) -> str:
    record, _ = _reviewed(run.kind)
    marks = []
    if run is not HEALTHY:
        finding = _finding(run.kind)
        tick = finding.onset_tick
        marks = [Mark(run.kind, tick, CSS_CLASSES[finding.severity], finding.message)]
    first, last = record.ticks[0], record.ticks[-1]
    ends = f"step {record.steps[0]:,}", f"{record.steps[-1]:,}"
    width, height = WIDTH + 2 * MARGIN, len(run.charts) * (CAPTION + HEIGHT) + MARGIN
    parts = []
    for index, name in enumerate(run.charts):
        top = MARGIN // 2 + index * (CAPTION + HEIGHT)
        chart = render_chart(name, Series(*record.series[name]), marks, first, last, ends)
        svg = chart[chart.index("<svg") : chart.index("</figure>")]
        place = f'<svg x="{MARGIN}" y="{top + CAPTION}" width="{WIDTH}" height="{HEIGHT}"'
        caption = chart[chart.index("<figcaption>") + len("<figcaption>") : chart.index("</figcaption>")]
        parts.append(f'<text class="name" x="{MARGIN + LEFT}" y="{top + 16}">{caption}</text>')
        parts.append(svg.replace("<svg", place, 1))
    card = f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<style>{STYLE}</style>{card}\n" + "\n".join(parts) + "\n</svg>\n"
    )
