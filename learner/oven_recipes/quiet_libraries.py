"""Libraries that print beside a recipe's or a command's own output, told not to."""

from __future__ import annotations

import logging
import warnings

from transformers.utils import logging as transformers_logging


def quiet_libraries() -> None:
    """No progress bars of transformers, no notes of bitsandbytes on kernels that it could have (once peft is imported
    they are out), and no warning of an option that TRL 1.16, at each generation, and peft 0.21 read under its old
    name: a user could do nothing about it."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)
