"""Keys, signatures, permissions and TLS."""
