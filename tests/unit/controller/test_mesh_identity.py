"""The mesh's code hash: every module of ours that decides is part of it, and none that only moves bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import oven_controller
from oven_controller.mesh.code_hash import code_hash, deciding, hash_of

HERE = Path(oven_controller.__file__).parent
LOADED = """
import json, sys
import oven_controller.mesh.machine, oven_controller.security.signing
ours = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "oven_controller"]
print(json.dumps(ours))
"""


def test_it_is_over_all_that_deciding_loads() -> None:
    """By the interpreter, which follows imports by itself. A package's `__init__` only hands names on."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = {Path(name) for name in json.loads(done.stdout)}
    names_only = {*HERE.rglob("__init__.py"), HERE / "mesh" / "code_hash.py"}
    assert loaded - names_only == deciding(HERE)
    named = {path.name for path in deciding(HERE)}
    assert {"machine.py", "subjects.py", "signing.py", "rules.py", "messages.py", "codec.py"} <= named
    assert not {"service.py", "connection.py", "tracing.py"} & named, "what moves bytes may differ between replicas"


def test_another_byte_in_any_of_them_is_another_mesh(tmp_path: Path) -> None:
    copy = tmp_path / HERE.name
    shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    plain = hash_of(copy)
    assert plain == code_hash() and len(plain) == 64, "where it is installed does not matter"
    seen = {plain}
    for path in deciding(copy):
        source = path.read_bytes()
        path.write_bytes(source + b"\n")
        seen.add(hash_of(copy))
        path.write_bytes(source)
    assert len(seen) == 1 + len(deciding(copy))
    service = copy / "replica" / "service.py"
    service.write_bytes(service.read_bytes() + b"\n")
    assert hash_of(copy) == plain
