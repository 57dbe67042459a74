"""Uploads: requests too large for one message of the bus, sent in parts. Their number, size and age are limited."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Final

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import PartTaken, RequestPart

MOST_UPLOADS: Final = 4
"""Uploads in progress at a time. A run has one learner, which sends one."""
UPLOAD_BYTES: Final = 4 * 2**20
"""The largest upload, compressed. A vocabulary of 300,000 tokens has 1.5 MB."""
IDLE_S: Final = 60.0
"""An upload is dropped after this many seconds without another part: its sender is gone."""


@dataclass(slots=True)
class _Upload:
    part_count: int
    last_part_at: float
    parts: dict[int, bytes] = field(default_factory=dict)


class Uploads:
    """Holds the parts of each upload until all have arrived. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._uploads: dict[str, _Upload] = {}

    def add(self, part: RequestPart, now: float) -> PartTaken:
        """Store a part; a repeated part replaces the earlier one. Raises ConfigError for a part that does not fit its
        upload, and when a limit is reached."""
        self._uploads = {id_: upload for id_, upload in self._uploads.items() if now - upload.last_part_at <= IDLE_S}
        upload = self._uploads.get(part.upload)
        if upload is None:
            if len(self._uploads) >= MOST_UPLOADS:
                raise ConfigError(f"{MOST_UPLOADS} uploads are already in progress; try again in {IDLE_S:g} s")
            upload = _Upload(part.parts, now)
        if part.parts != upload.part_count or part.part >= part.parts:
            raise ConfigError(
                f"part {part.part} of {part.parts} does not belong to an upload of {upload.part_count} parts; "
                "send all parts again"
            )
        try:
            data = base64.b64decode(part.data, validate=True)
        except binascii.Error:
            raise ConfigError(f"part {part.part} of upload {part.upload} is not base64; send it again") from None
        parts = {**upload.parts, part.part: data}
        if (size := sum(map(len, parts.values()))) > UPLOAD_BYTES:
            self._uploads.pop(part.upload, None)
            raise ConfigError(f"the upload has {size} bytes, compressed; the limit is {UPLOAD_BYTES}")
        upload.parts, upload.last_part_at = parts, now
        self._uploads[part.upload] = upload
        return PartTaken(upload=part.upload, missing=upload.part_count - len(parts))

    def pop(self, upload_id: str) -> bytes:
        """Return all parts in order, and forget the upload. Raises ConfigError if it is unknown or incomplete."""
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise ConfigError(
                f"there is no upload {upload_id[:32]!r}, or it was idle for more than {IDLE_S:g} s; send it again"
            )
        if missing := sorted(set(range(upload.part_count)) - set(upload.parts)):
            raise ConfigError(f"part {missing[0]} of upload {upload_id} is missing; send it and ask again")
        del self._uploads[upload_id]
        return b"".join(upload.parts[number] for number in range(upload.part_count))
