"""Keys, signatures, certificates and TLS."""
