"""Read and write the trace formats of other projects."""
