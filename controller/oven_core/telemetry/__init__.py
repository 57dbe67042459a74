"""Tracing with OpenTelemetry."""
