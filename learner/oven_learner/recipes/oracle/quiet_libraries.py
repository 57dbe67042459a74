"""Libraries that print beside a command's own output, told not to."""

from __future__ import annotations

import logging
import warnings

from transformers.utils import logging as transformers_logging


def quiet_libraries() -> None:
    """No progress bars of transformers, no notes of bitsandbytes on kernels that it could have, and no warning of an
    attribute that peft 0.21 reads under its old name: a user could do nothing. To be called before peft is imported."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)
