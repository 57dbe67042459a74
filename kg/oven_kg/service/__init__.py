"""The prior service's process and endpoints."""
