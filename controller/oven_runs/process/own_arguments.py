"""This process's own arguments, as `ps` shows them to everybody on the machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

_START, _END = 48, 49
"""Fields of /proc/PID/stat: where its arguments are in its memory (proc_pid_stat(5), counted from 1)."""
_BEFORE: Final = 2
"""Fields before the `)` that ends the second, which may hold spaces."""


def conceal(secrets: Iterable[str]) -> bool:
    """Have stars in the place of what follows the scheme of each of these addresses. From here on: until then they were
    to be seen. Whether it could be done: on Linux it can."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(fields[number - 1 - _BEFORE]) for number in (_START, _END))
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            shown = said = memory.read(end - start)
            for secret in secrets:
                scheme, mark, rest = secret.partition("://")
                stars = f"{scheme}{mark}".encode() + b"*" * len(rest.encode())
                shown = shown.replace(secret.encode(), stars)
            if shown != said:
                memory.seek(start)
                memory.write(shown)
    except (OSError, ValueError, IndexError):
        return False
    return True
