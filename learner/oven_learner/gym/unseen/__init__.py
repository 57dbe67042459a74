"""A fourth set of faults, held out and written without a look at any controller."""
