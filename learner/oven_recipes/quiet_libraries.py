"""Silences messages that libraries print into the output of recipes and commands."""

from __future__ import annotations

import os
import warnings

# This must precede the import of TRL, which sends telemetry about each trainer.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from transformers.utils import logging as transformers_logging


def quiet_libraries() -> None:
    """Turn off transformers' progress bars, TRL's note that environments are experimental, and a deprecation warning
    that TRL 1.16 and peft 0.21 cause."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)
