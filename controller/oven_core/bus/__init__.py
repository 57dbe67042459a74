"""The connection to NATS: publish, request, append to a run's log and read it."""

from oven_core.bus.nats_import import import_nats

import_nats()
