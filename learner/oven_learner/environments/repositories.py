"""The files of an instance: those that it holds, or those of a checkout at its commit."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from oven_controller.errors import ConfigError, reason
from oven_learner.environments.instance import Instance
from oven_learner.environments.patches import apply_patch

FILE_BYTES: Final = 2_000_000
"""A larger file of a checkout is not source."""


@dataclass(frozen=True)
class Repositories:
    """`folder`: checkouts as `owner__name`, the name that SWE-bench's instances have. None: there are none."""

    folder: Path | None = None

    def checkout(self, instance: Instance) -> Path | None:
        """Where the instance's repository should be; None where the instance holds it."""
        if instance.files:
            return None
        return (self.folder or Path("repositories")) / instance.repo.replace("/", "__")

    def check(self, instance: Instance) -> None:
        """Raises ConfigError where an instance cannot be worked on: no repository, or one without its commit."""
        path = self.checkout(instance)
        if path is None:
            return
        if find_spec("pytest") is None:
            raise ConfigError(f"the tests of {instance.repo} run by pytest, which is not installed: pip install pytest")
        if self.folder is None or not (path / ".git").exists():
            raise ConfigError(
                f"{instance.instance_id} is about {instance.repo}, whose repository is not at {path}: clone it there "
                f"(git clone https://github.com/{instance.repo} {path}), and name the folder with --repositories"
            )
        try:
            _git(path, "cat-file", "-e", f"{instance.base_commit}^{{commit}}")
        except ConfigError:
            raise ConfigError(
                f"{path} has no commit {instance.base_commit[:40]}, which {instance.instance_id} starts from: fetch it"
            ) from None

    def files(self, instance: Instance) -> Mapping[str, str]:
        """Path → text, with the instance's tests in it. Raises ConfigError."""
        if instance.files:
            return instance.files
        self.check(instance)
        path = self.checkout(instance)
        assert path is not None
        packed = io.BytesIO(_git(path, "archive", "--format=tar", instance.base_commit))
        with tarfile.open(fileobj=packed) as archive:
            return apply_patch(_texts(archive), instance.test_patch)


def _texts(archive: tarfile.TarFile) -> dict[str, str]:
    """Regular files that are text."""
    found = {}
    for member in archive:
        if not member.isfile() or member.size > FILE_BYTES:
            continue
        content = archive.extractfile(member)
        assert content is not None
        try:
            found[member.name] = content.read().decode()
        except UnicodeDecodeError:
            continue
    return found


def _git(path: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git cannot be run: {reason(error)}") from None
    if done.returncode:
        raise ConfigError(f"git {arguments[0]} fails in {path}: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout
