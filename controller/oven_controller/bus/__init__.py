"""The connection to NATS: publish, request, append to a run's log and read it."""

from oven_controller.process.nats_import import import_nats

import_nats()
