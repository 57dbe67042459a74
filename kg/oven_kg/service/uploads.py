"""Requests that come in parts, because one message of the bus does not hold them: bounded in number, size and time."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Final

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import PartTaken, RequestPart

MOST: Final = 4
"""Uploads under way at a time: one run has one learner, which makes one."""
LIMIT: Final = 4 * 2**20
"""Bytes of an upload, compressed: a vocabulary of 300,000 tokens has 1.5 MB."""
IDLE_S: Final = 60.0
"""After so many seconds without another part an upload is dropped: its sender is gone."""


@dataclass(slots=True)
class _Upload:
    parts: int
    heard: float
    came: dict[int, bytes] = field(default_factory=dict)


class Uploads:
    """Holds the parts until all of an upload have come and it is asked for. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Upload] = {}

    def take(self, part: RequestPart, now: float) -> PartTaken:
        """Keep a part; one that comes twice counts once. Raises ConfigError for one that cannot be, and where the
        limits are reached."""
        self._under_way = {id_: one for id_, one in self._under_way.items() if now - one.heard <= IDLE_S}
        upload = self._under_way.get(part.upload)
        if upload is None:
            if len(self._under_way) >= MOST:
                raise ConfigError(f"{MOST} uploads are under way already; ask again in {IDLE_S:g} s")
            upload = _Upload(part.parts, now)
        if part.parts != upload.parts or part.part >= part.parts:
            raise ConfigError(
                f"part {part.part} of {part.parts} is not of an upload in {upload.parts} parts; send all of them anew"
            )
        try:
            data = base64.b64decode(part.data, validate=True)
        except binascii.Error:
            raise ConfigError(f"part {part.part} of upload {part.upload} is not base64; send it again") from None
        came = {**upload.came, part.part: data}
        if (size := sum(map(len, came.values()))) > LIMIT:
            self._under_way.pop(part.upload, None)
            raise ConfigError(f"the upload has {size} bytes, compressed; a request may have {LIMIT}")
        upload.came, upload.heard = came, now
        self._under_way[part.upload] = upload
        return PartTaken(upload=part.upload, missing=upload.parts - len(came))

    def whole(self, upload: str) -> bytes:
        """The parts in their order, which are forgotten here. Raises ConfigError where it is unknown or some are
        missing."""
        found = self._under_way.get(upload)
        if found is None:
            raise ConfigError(
                f"no upload {upload[:32]!r} is known here, or it took longer than {IDLE_S:g} s; send it anew"
            )
        if missing := sorted(set(range(found.parts)) - set(found.came)):
            raise ConfigError(f"part {missing[0]} of upload {upload} has not come; send it and ask again")
        del self._under_way[upload]
        return b"".join(found.came[part] for part in range(found.parts))
