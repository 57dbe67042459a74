"""The recipe as `up` uses it: names and settings without torch, and `train`, which imports torch."""

from __future__ import annotations

import os
from pathlib import Path

from oven_recipes.base import Order
from oven_recipes.oracle.settings import OracleSettings, Start, parse_start


class OracleRecipe:
    """An oracle that reads activations and states its confidence (see the package's docstring)."""

    name = "oracle"
    default_start = "tuned"
    settings_model = OracleSettings

    def parse_start(self, text: str, seed: int, options: OracleSettings) -> Start:
        return parse_start(text, options)

    def train(self, order: Order) -> None:
        named = [order.options.get(name) for name in ("model", "oracle_lora_path")]
        if any(name and not Path(name).is_dir() for name in named):  # hub ids: read when the library is imported
            os.environ.setdefault("HF_HUB_OFFLINE", "0")
        from oven_recipes.oracle.job import build_judged
        from oven_recipes.runner import train

        train(self, order, build_judged)


RECIPE = OracleRecipe()
