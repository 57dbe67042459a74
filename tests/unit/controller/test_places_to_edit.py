"""A message of the log, and an actuator: added in the places that docs/places-to-edit.md names, and nowhere else.

The places are edited in a copy of the package, which a process of its own imports.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.mesh_log import Log

from oven_learner.actuators import Actuators

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "controller" / "oven_core"


def edited(folder: Path, edits: dict[str, tuple[str, str]], program: str) -> Any:
    """What `program` prints as JSON where, in each of these files, the second text stands for the first."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, text) in edits.items():
        source = (copy / name).read_text()
        assert before in source
        (copy / name).write_text(source.replace(before, text, 1))
    path = os.pathsep.join(map(str, (folder, ROOT / "kg")))
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


END = "class RunEnded(LearnerMessage):"
MESSAGE = f'''class Milestone(LearnerMessage):
    """learner → all. The training got to where its user wanted to hear of it."""

    type: Literal["Milestone"] = "Milestone"
    text: str


{END}'''
TABLE = "SUBJECTS: Final = (\n"
ROW = f"""from oven_core.protocol.messages import Milestone

{TABLE}    Subject("milestone", (Milestone,), "learner", agents_may_read=True),
"""
READ = f"""
import json, runpy
from datetime import UTC, datetime

from oven_core.bus.streams import configs
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import codec, messages, subjects
from oven_core.protocol.asyncapi import generate_asyncapi
from oven_core.protocol.events import Event

body = messages.Milestone(incarnation=1, n=0, text="halfway")
event = Event.read(1, "oven.r.milestone", body.wire(), datetime(2026, 1, 1, tzinfo=UTC))
document = generate_asyncapi()
tables = runpy.run_path({str(ROOT / "docs" / "generate.py")!r})
votes, log = configs("r")
print(json.dumps({{
    "read": event.body == body,
    "misplaced": codec.decode("receipt", body.wire()).fault,
    "decided": len(Mesh("r").step(event)),
    "signer": subjects.SIGNERS["milestone"],
    "stream": "oven.r.milestone" in log.subjects and "oven.r.milestone" not in votes.subjects,
    "schema": "Milestone" in codec.json_schema()["$defs"],
    "channel": document["channels"]["milestone"]["address"],
    "operations": [name for name in document["operations"] if "milestone" in name],
    "table": "| `oven.<run>.milestone` | `Milestone` |" in tables["subjects"](),
    "permissions": [line.split(" | ")[0] for line in tables["who"]().splitlines() if "oven.<run>.milestone`" in line],
    "described": "#### Milestone" in tables["logged"](),
}}))
"""


def test_a_new_log_message_needs_edits_in_two_places(tmp_path: Path) -> None:
    """Its class and its row: who may write and read it, who signs, where it is kept and what the docs say follow."""
    places = {"protocol/messages.py": (END, MESSAGE), "protocol/subjects.py": (TABLE, ROW)}
    edits = edited(tmp_path, places, READ)
    reading = [f"{role}.receive.milestone" for role in ("agent", "operator", "monitor")]
    assert edits.pop("operations") == ["learner.send.milestone", *reading]
    assert edits == {
        "read": True, "misplaced": "misplaced", "decided": 0, "signer": "learner", "stream": True, "schema": True,
        "channel": "oven.{run}.milestone", "table": True, "permissions": ["| learner", "| agent"], "described": True,
    }  # fmt: skip


MOMENTUM = "optimizer.momentum"
KNOWN = '    ActuatorSpec(name="grad.clip"'
SPEC = f'    ActuatorSpec(name="{MOMENTUM}", kind="scalar", unit="share of the last step"),\n{KNOWN}'
NAMED = f"""
import json
from dataclasses import replace

from oven_controller.importing.declared_knobs import parse_knobs
from oven_kg.graph.lint import lint
from oven_kg.graph.graph_yaml import read

records = read()
nodes = [replace(node, changes=("{MOMENTUM}:down",)) if node.changes else node for node in records.nodes]
faults = lint(replace(records, nodes=tuple(nodes)))
[knob] = parse_knobs(["{MOMENTUM}=0.9"])
print(json.dumps({{"knob": knob.spec().value, "unknown": [one for one in faults if "no learner announces" in one]}}))
"""


def test_a_new_actuator_needs_edits_in_two_places(tmp_path: Path) -> None:
    """Where the learner announces it, and the table that the graph and imported logs read."""
    assert edited(tmp_path, {"protocol/actuators.py": (KNOWN, SPEC)}, NAMED) == {"knob": 0.9, "unknown": []}

    momentum, knobs = [0.9], Actuators()
    knobs.scalar(MOMENTUM, lambda: momentum[0], lambda value: momentum.__setitem__(0, value), low=0.5, high=0.99)
    log = Log()
    log.start(specs=knobs.specs(), alone={"lr": (MOMENTUM,)})
    log.join("lr", moves=(MOMENTUM,))
    log.propose("lr", 0.8, MOMENTUM, confidence=0.9)
    assert (log.last.verdict, log.last.actuator, log.last.value) == ("adopted", MOMENTUM, 0.8)
    assert knobs.apply(MOMENTUM, log.last.value).status == "applied" and momentum == [0.8]
