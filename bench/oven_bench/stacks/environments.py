"""Virtual environments with other versions of TRL, transformers and Lightning, which are created once and kept.

All environments share torch and our own requirements through a path file that points to a base environment, so that
each needs a minute and some 300 MB. pip resolves the requirements of each together with ours.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from oven_core.errors import ConfigError

ROOT: Final = Path(__file__).resolve().parents[3]
"""The checkout."""
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oven-controller" / "environments"
TORCH: Final = "torch==2.13.0"
SHARED: Final = ("networkx>=3", "numpy")
"""Packages of the base environment, in addition to torch and our requirements. The bench reads the knowledge graph."""
VERSIONS: Final = ("trl", "transformers", "accelerate", "lightning", "torch")
"""Packages whose versions are reported."""
COMPLETE: Final = "complete.json"


@dataclass(frozen=True)
class Stack:
    """An environment of a user, and the kind of training to check in it."""

    name: str
    requirements: tuple[str, ...]
    kind: Literal["trl", "transformers", "lightning"]


# TRL before 1.16 imports requests without requiring it. transformers 4 required it.
STACKS: Final = (
    Stack("TRL 0.24", ("trl==0.24.0", "requests"), "trl"),
    Stack("TRL 0.24 with transformers 4", ("trl==0.24.0", "transformers<5", "requests"), "trl"),
    Stack("TRL 1.0", ("trl==1.0.0", "requests"), "trl"),
    Stack("TRL 1.9", ("trl==1.9.0", "requests"), "trl"),
    Stack("TRL 1.16", ("trl==1.16.0",), "trl"),
    Stack("transformers 4.56", ("transformers==4.56.0", "accelerate==1.10.0", "datasets"), "transformers"),
    Stack("transformers 5.24", ("transformers==5.24.0", "accelerate", "datasets"), "transformers"),
    Stack("Lightning 2.5", ("lightning==2.5.6",), "lightning"),
    Stack("Lightning 2.6", ("lightning==2.6.6",), "lightning"),
)


@dataclass(frozen=True)
class Environment:
    """A complete virtual environment."""

    python: Path
    versions: dict[str, str]
    """Package → version, of those in VERSIONS."""

    def run(self, module: str, arguments: Sequence[str], scratch: Path) -> None:
        """Run a module of this checkout. `scratch` receives the metadata of our distribution, whose entry points name
        the agents. Raises ConfigError with the last line of the error if the module fails."""
        folders = [scratch, *(ROOT / name for name in ("controller", "agents", "learner", "kg", "bench"))]
        _copy_metadata(scratch)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}
        _run([str(self.python), "-m", module, *arguments], environment)


def open_environment(stack: Stack) -> Environment:
    """Return the stack's environment, and create it if it does not exist. Raises ConfigError if pip fails."""
    own = own_requirements()
    base = _create("base", (TORCH, *own, *SHARED), None)
    return _create(stack.name, (TORCH, *own, *stack.requirements), base)


def own_requirements() -> tuple[str, ...]:
    """Return the requirements of our base installation."""
    return tuple(line for line in metadata.requires("oven-controller") or () if "extra ==" not in line)


def _create(name: str, requirements: Sequence[str], base: Environment | None) -> Environment:
    key = hashlib.sha256(json.dumps([sys.version_info[:2], *requirements]).encode()).hexdigest()[:12]
    folder = CACHE / f"{name.lower().replace(' ', '-')}-{key}"
    python, complete = folder / "bin" / "python", folder / COMPLETE
    with _locked(folder):
        if not complete.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)])
            if base is not None:
                (site_packages(folder) / "oven-base.pth").write_text(f"{site_packages(base.python.parents[1])}\n")
            _run([str(python), "-m", "pip", "install", "--quiet", "--no-compile", *requirements])
            complete.write_text(_run([str(python), "-c", _LIST_VERSIONS, *VERSIONS]))
    return Environment(python, json.loads(complete.read_text()))


_LIST_VERSIONS: Final = """
import importlib.metadata, json, sys
versions = {item.name.lower(): item.version for item in reversed(list(importlib.metadata.distributions()))}
print(json.dumps({name: versions[name] for name in sys.argv[1:] if name in versions}))
"""


def site_packages(folder: Path) -> Path:
    """Return the folder in which a virtual environment keeps its packages."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from creating the same environment."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _copy_metadata(folder: Path) -> None:
    distribution = metadata.distribution("oven-controller")
    target = folder / f"oven_controller-{distribution.version}.dist-info"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("METADATA", "entry_points.txt"):
        (target / name).write_text(distribution.read_text(name) or "")


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last_line = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ConfigError(f"`{' '.join(command[:4])} …` failed with exit code {done.returncode}: {last_line}")
    return done.stdout
