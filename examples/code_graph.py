"""A knowledge graph of Python code, as triples that `kg import` takes: what defines, calls, raises and catches what.

python examples/code_graph.py SOURCES > code.csv
oven-controller kg import code.csv --to code --cut-cycles
oven-controller kg info code
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from oven_kg.token_prior.python_triples import triples_of


def main(folders: list[str]) -> None:
    if not folders:
        raise SystemExit("usage: code_graph.py FOLDER…; give folders with Python sources")
    rows = csv.writer(sys.stdout)
    rows.writerow(("source", "relation", "target"))
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            rows.writerows(triple for triple in triples_of(path) if all(triple))


if __name__ == "__main__":
    main(sys.argv[1:])
