"""What an import of 3 million triples takes: `python -m tests.support.import_figures [--edges N] [FORMAT…]`.

A seeded, hub-heavy graph is written as CSV, ConceptNet and N-Triples, and each is imported as a user does, in a process
of its own. CSV and ConceptNet hold the same graph and have to give the same edges.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

RELATIONS: Final = ("Causes", "IsA", "HasPrerequisite", "RelatedTo", "PartOf", "Solves", "Antonym")
FORMATS: Final = ("csv", "conceptnet", "ntriples")
HUBS: Final = 6
"""Exponent of the ends' draw: one node in a thousand gets a third of the edges."""


def written(folder: Path, formats: list[str], nodes: int, edges: int) -> None:
    import numpy as np

    draw = np.random.default_rng(7)
    ends = draw.permutation(nodes)[np.minimum((nodes * draw.random(edges) ** HUBS).astype(int), nodes - 1)]
    starts, kinds = draw.integers(0, nodes, edges), draw.integers(0, len(RELATIONS), edges)
    back = (kinds == RELATIONS.index("HasPrerequisite")) & (starts >= ends)  # requirements have no circles
    starts, ends = np.where(back, ends, starts), np.where(back, starts, ends)
    kinds[starts == ends] = 0
    weights = np.round(draw.random(edges) * 4 + 0.1, 3)
    rows = list(zip(starts.tolist(), kinds.tolist(), ends.tolist(), weights.tolist(), strict=True))
    for name in formats:
        with (folder / name).open("w") as file:
            if name == "csv":
                file.write("source,relation,target,weight\n")
                file.writelines(f"term number {s},{RELATIONS[k]},term number {o},{w}\n" for s, k, o, w in rows)
            elif name == "conceptnet":
                file.writelines(map(_assertion, rows))
            else:
                base = "http://example.org"
                file.writelines(
                    f"<{base}/term/{s}> <{base}/r/{RELATIONS[k]}> <{base}/term/{o}> .\n" for s, k, o, _ in rows
                )


def _assertion(row: tuple[int, int, int, float]) -> str:
    source, kind, target, weight = row
    relation, start, end = f"/r/{RELATIONS[kind]}", f"/c/en/term_number_{source}/n", f"/c/en/term_number_{target}"
    about = (
        '{"dataset": "/d/conceptnet/4/en", "license": "cc:by/4.0", "sources": [{"activity": '
        '"/s/activity/omcs/omcs1_possibly_free_text", "contributor": "/s/contributor/omcs/dev"}], "surfaceEnd": '
        f'"term number {target}", "surfaceText": "[[term number {source}]] is like [[term number {target}]]", '
        f'"weight": {weight}}}'
    )
    return f"/a/[{relation}/,{start}/,{end}/]\t{relation}\t{start}\t{end}\t{about}\n"


def imported(path: Path, to: Path) -> dict[str, Any]:
    command = [
        str(Path(sys.executable).with_name("oven-controller")),
        "kg",
        "import",
        str(path),
        "--to",
        str(to),
        "--json",
    ]
    begun = time.monotonic()
    with subprocess.Popen(
        [*command, *(["--languages", "en"] if path.name == "conceptnet" else [])], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        said = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "bytes": path.stat().st_size,
        "wall_s": round(time.monotonic() - begun, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": usage.ru_maxrss // 1024,
        "nodes": sum(said["nodes"].values()),
        "edges": said["edges"],
    }


def main() -> int:
    """The exit code: 1 if two files of one graph give two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", default=FORMATS, metavar="FORMAT")
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--edges", type=int, default=3_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # By a child: the memory that this process has had would count as that of all it starts.
        if not (child := os.fork()):
            written(folder, list(args.formats), args.nodes, args.edges)
            os._exit(0)
        os.waitpid(child, 0)
        found = {name: imported(folder / name, folder / f"{name}.graph") for name in args.formats}
    print(json.dumps(found, indent=1))
    same = [found[name]["edges"] for name in ("csv", "conceptnet") if name in found]
    return 1 if any(edges != same[0] for edges in same) else 0


if __name__ == "__main__":
    sys.exit(main())
