"""A set of faults that was written without a look at any controller."""
