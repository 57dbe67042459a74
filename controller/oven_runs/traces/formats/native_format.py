"""The project's own lossless format, with one trace per line."""

from __future__ import annotations

from oven_runs.traces import jsonl
from oven_runs.traces.formats.trace_format import LineFormat

FORMAT = LineFormat(
    about="ours: one trace per line, steps with states, rewards and sampled tokens",
    recognises=lambda row: row.get("kind") == "trace",
    traces=lambda row, _: [jsonl.parse_row(row)],
    rows=lambda trace: [jsonl.to_row(trace)],
    file_name="traces.jsonl",
)
