"""Hide secrets in this process's command-line arguments, which `ps` shows to every user of the machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

_START_FIELD, _END_FIELD = 48, 49
"""Fields of /proc/PID/stat with the addresses of the arguments in memory (proc_pid_stat(5), counted from 1)."""
_SKIPPED_FIELDS: Final = 2
"""Number of fields up to the last parenthesis, which ends the second field. That field may contain spaces."""


def conceal(secrets: Iterable[str]) -> bool:
    """Overwrite these secrets with stars, but keep the scheme of an address. Return whether it worked (Linux only)."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(fields[number - 1 - _SKIPPED_FIELDS]) for number in (_START_FIELD, _END_FIELD))
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            arguments = concealed = memory.read(end - start)
            for secret in secrets:
                shown_length = secret.find("://") + len("://") if "://" in secret else 0
                stars = secret[:shown_length].encode() + b"*" * len(secret[shown_length:].encode())
                concealed = concealed.replace(secret.encode(), stars)
            if concealed != arguments:
                memory.seek(start)
                memory.write(concealed)
    except (OSError, ValueError, IndexError):
        return False
    return True
