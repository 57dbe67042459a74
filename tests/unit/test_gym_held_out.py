"""The held-out faults on a trainee of a few weights: they draw, act from their onset on and not before, and the same
again from the same state."""

from __future__ import annotations

import copy
import tomllib
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.trainee import Trainee

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
ONSET = 4
GROUP, PROMPTS = 4, 3


def families() -> list[Family]:
    group = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["oven.held_out"]
    made = []
    for target in group.values():
        module, _, name = target.partition(":")
        made.append(getattr(import_module(module), name)())
    return made


FAMILIES = families()
