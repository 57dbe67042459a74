"""The mesh's code hash: every module of ours that decides is part of it, and none that only moves bytes."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import oven_core
from oven_core.mesh.code_hash import deciding_files, hash_package, mesh_code_hash

HERE = Path(oven_core.__file__).parent
LOADED = """
import json, sys
import oven_core.mesh.state_machine, oven_core.security.signing
ours = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "oven_core"]
print(json.dumps(ours))
"""
BESIDE = {"ConfigError": {"validate"}, "removed_content_message": {"decode"}}
"""What the mesh uses of modules outside of the hash, and who does."""
BESIDE_SIGNING = {"Credentials": {"Signer"}, **{name: {"load_keys"} for name in ("ConfigError", "read_file", "reason")}}
"""Judging events uses none of it."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package's sources: no file is edited where it is installed."""
    return shutil.copytree(HERE, tmp_path / HERE.name, ignore=shutil.ignore_patterns("__pycache__"))


def loaded() -> set[Path]:
    """The files that deciding imports, by the interpreter."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    return {Path(name) for name in json.loads(done.stdout)}


def beside(path: Path) -> Iterator[tuple[str, str]]:
    """The names that a file imports from modules of ours outside of the hash, and the functions and classes in which
    it uses them."""
    tree, inside = ast.parse(path.read_bytes()), {name.removesuffix(".py") for name in names(deciding_files(HERE))}
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith(HERE.name)], (
                "imported by `from` alone"
            )
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == HERE.name:
            module = "/".join(node.module.split(".")[1:])
            imported |= {alias.name for alias in node.names if not {module, f"{module}/{alias.name}"} & inside}
    for part in tree.body:
        own = {node.arg for node in ast.walk(part) if isinstance(node, ast.arg)}
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and node.id in imported - own:
                yield node.id, part.name if isinstance(part, ast.FunctionDef | ast.ClassDef) else ""


def names(paths: Iterable[Path]) -> set[str]:
    return {path.relative_to(HERE).as_posix() for path in paths}


def used(paths: list[Path]) -> dict[str, set[str]]:
    parts_by_name: dict[str, set[str]] = {}
    for path in paths:
        for name, part in beside(path):
            parts_by_name.setdefault(name, set()).add(part)
    return parts_by_name


def test_the_hash_covers_mesh_protocol_and_signing() -> None:
    hashed = names(deciding_files(HERE))
    assert hashed == names(HERE.glob("mesh/*.py")) | names(HERE.glob("protocol/*.py")) | {"security/signing.py"}
    assert {"mesh/state_machine.py", "protocol/actuators.py", "protocol/rules.py", "security/signing.py"} <= hashed


def test_no_deciding_code_is_outside_the_hash() -> None:
    imported = loaded()
    decide = [path for path in deciding_files(HERE) if path in imported]
    signing = HERE / "security" / "signing.py"
    assert used([path for path in decide if path != signing]) == BESIDE, "an error's text decides nothing"
    assert used([signing]) == BESIDE_SIGNING
    for path in {*HERE.glob("__init__.py"), *HERE.glob("security/__init__.py")}:
        body = ast.parse(path.read_bytes()).body
        assert all(isinstance(part, ast.Expr) for part in body), f"{path} is imported with them, and is a docstring"


def test_a_changed_byte_in_any_covered_file_changes_the_hash(copy: Path) -> None:
    plain = hash_package(copy)
    assert plain == mesh_code_hash() and len(plain) == 64, "where it is installed does not matter"
    seen = {plain}
    for path in deciding_files(copy):
        source = path.read_bytes()
        path.write_bytes(source[:-1] + b" ")
        seen.add(hash_package(copy))
        path.write_bytes(source)
    assert len(seen) == 1 + len(deciding_files(copy))
    imported = {path for path in loaded() if path.parent.name in ("mesh", "protocol") or path.name == "signing.py"}
    assert names(imported) <= names(deciding_files(HERE)) and len(imported) > 25
    service = copy / "replica" / "replica_process.py"
    service.write_bytes(service.read_bytes() + b"\n")
    assert hash_package(copy) == plain


@pytest.mark.parametrize("folder", ["mesh", "protocol"])
def test_an_added_module_changes_the_hash(copy: Path, folder: str) -> None:
    plain = hash_package(copy)
    (copy / folder / "another.py").touch()
    assert hash_package(copy) != plain
    (copy / folder / "another.py").rename(copy / folder / "yet_another.py")
    assert hash_package(copy) != plain
    (copy / folder / "yet_another.py").unlink()
    assert hash_package(copy) == plain
