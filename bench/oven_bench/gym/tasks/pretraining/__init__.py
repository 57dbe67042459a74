"""Next bytes of Python sources: a byte model of one block, AdamW, a short warm-up and then a constant rate."""
