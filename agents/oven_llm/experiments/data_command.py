"""`supervise data`: questions about the installed library's sources, as a data file in QASPER's layout."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_core.plugged_command import PluggedCommand
from oven_llm.tasks.qasper import examples_in
from oven_llm.tasks.stdlib import made


def _data(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="JSON file to write; - for standard output.")],
    count: Annotated[int, typer.Option("-n", metavar="N", help="Questions.")] = 200,
    seed: Annotated[int, typer.Option(help="Random seed; another one asks about other modules.")] = 42,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> int:
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.absolute().parent}; make it, or name another")
    papers = made(seed, count)
    text = json.dumps(papers, ensure_ascii=False, indent=1)
    if str(out) == "-":
        print(text)
        return 0
    write_atomic(out, text)
    kinds = Counter(one.references[0].kind for one in examples_in(papers.items(), str(out)))
    if as_json:
        print(json.dumps({"file": str(out), "questions": count, "documents": len(papers), "kinds": dict(kinds)}))
    else:
        said = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        print(f"{out}: {count} questions about {len(papers)} modules ({said})")
    return 0


DATA = PluggedCommand(
    "supervise",
    "data",
    "Make questions with known answers out of the installed library's sources, in QASPER's layout.",
    "stdlib.json -n 200",
    _data,
)
