"""Whether a script needs a controller: `OVEN_MODE`, or what the script says itself."""

from __future__ import annotations

import logging
import os
from enum import Enum

from oven_controller.errors import ConfigError

log = logging.getLogger("oven.learner")

VARIABLE = "OVEN_MODE"


class Mode(Enum):
    REQUIRED = "required"
    """Without a controller it is an error."""
    OPTIONAL = "optional"
    """Without one training continues as if no one had asked. One that is named and does not answer is an error."""
    DISABLED = "disabled"
    """None is looked for."""

    @classmethod
    def of(cls, optional: bool) -> Mode:
        """The environment's word goes before the script's. Raises ConfigError for a word that is none."""
        word = os.environ.get(VARIABLE, "")
        if not word:
            return cls.OPTIONAL if optional else cls.REQUIRED
        try:
            return cls(word.strip().lower())
        except ValueError:
            raise ConfigError(
                f"{VARIABLE}={word!r} is none of {', '.join(mode.value for mode in cls)}; unset it, or set one of them"
            ) from None

    def say_why_not(self) -> None:
        """One line, where nothing is plugged in."""
        if self is Mode.DISABLED:
            log.warning("training continues without a controller: %s=disabled", VARIABLE)
        else:
            log.warning(
                "training continues without a controller: none was found (OVEN_URL and OVEN_RUN are not both set); "
                "start it with `oven-controller run -- python train.py` to have one"
            )
