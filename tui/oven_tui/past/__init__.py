"""The past of a run, read from its log.jsonl: a preview at once, then all of it, verified and folded."""
