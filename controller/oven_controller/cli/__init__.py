"""The command line: one small file a group. Heavy imports stand inside the commands, so that --help is quick."""
