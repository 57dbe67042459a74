"""The bench that checks, for a table of trainers and options, that attaching in `observe` changes no bit."""
