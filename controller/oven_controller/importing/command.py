"""The whole of an import: a source recognised, read, and left as a run; or nothing at all."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oven_controller.errors import ConfigError
from oven_controller.home import IMPORTED, Home
from oven_controller.importing.rows import rows
from oven_controller.importing.source import recognise
from oven_controller.importing.writer import SCALE, write


def import_run(source: Path, home: Home, run: str | None, renamed: Mapping[str, str]) -> dict[str, Any]:
    """What was made of it, for people and scripts. Raises ConfigError where `source` cannot be read or holds no
    measurement, NameInUseError where there is a run of that name; then no run is left behind."""
    try:
        name, importer, path = recognise(source)
    except OSError as error:
        raise _unusable(error, source) from error
    skipped: Counter[str] = Counter()
    folder = home.create(run, IMPORTED)
    try:
        try:
            recording = importer.open(path, skipped)
            measured = rows(recording.logged, skipped, renamed)
            detail = f"imported: {name}, {path.name}"
            found = write(
                folder,
                measured,
                max_steps=recording.max_steps,
                reached=recording.reached,
                changed=path.stat().st_mtime,
                detail=detail,
            )
        except OSError as error:
            raise _unusable(error, path) from error
        if not found.observations:
            why = ", ".join(f"{count} {what}" for what, count in skipped.items()) or "nothing was logged"
            raise ConfigError(f"{path} holds no measurement at any step: {why}")
        missing = sorted(set(renamed.values()) - set(found.metrics))
        if missing:
            raise ConfigError(
                f"--rename: nothing in {path} became {', '.join(missing)}; its metrics: {_some(found.metrics)}"
            )
        ended = "completed" if found.completed else "stopped"
        folder.write_info(folder.info().model_copy(update={"start": name, "embedded": False, "ended": ended}))
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return {
        "run": folder.run,
        "folder": str(folder.path),
        "source": str(path),
        "format": name,
        "observations": found.observations,
        "first_step": found.first_step,
        "last_step": found.last_step,
        "max_steps": found.max_steps,
        "incarnations": found.incarnations,
        "untimed": found.observations - found.timed,
        "metrics": dict(sorted(found.metrics.items())),
        "actuators": [SCALE.name] if "learning_rate" in found.metrics else [],
        "skipped": dict(skipped),
    }


def _unusable(error: OSError, path: Path) -> ConfigError:
    return ConfigError(f"{error.filename or path} cannot be used: {error.strerror or error}")


def _some(metrics: Mapping[str, int]) -> str:
    names = sorted(metrics)
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
