"""The type of a setting that names an environment variable with a secret."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator


def _check(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("it should be the name of an environment variable, and not the key itself")
    return value


Variable: TypeAlias = Annotated[str, AfterValidator(_check)]
"""The name of an environment variable; empty for none."""
