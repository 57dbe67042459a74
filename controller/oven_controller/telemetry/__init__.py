"""Traces by OpenTelemetry."""
