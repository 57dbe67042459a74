"""Serve the gauges of a run in Prometheus' text format, at http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from oven_core.errors import ProcessError
from oven_runs.log.gauges import Family, Sample

HOST: Final = "127.0.0.1"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def page(run: str, samples: Iterable[Sample]) -> str:
    """Return the samples in the text format. Samples of one family must be adjacent."""
    lines = list[str]()
    previous: Family | None = None
    for family, labels, value in samples:
        if family is not previous:
            lines.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n")
            previous = family
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in {"run": run, **labels}.items())
        lines.append(f"{family.name}{{{pairs}}} {_number(value)}\n")
    return "".join(lines)


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))


@contextmanager
def serve(run: str, read: Callable[[], Iterable[Sample]], port: int) -> Iterator[int]:
    """Serve what `read` returns, from a thread, during the block, and yield the port. Port 0 chooses a free one.
    Raises ProcessError if the port is in use."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            text = page(run, read()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: a scrape every few seconds is not news."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ProcessError(
            f"the metrics port {port} on {HOST} cannot be used ({error.strerror}); choose another with --metrics-port"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
