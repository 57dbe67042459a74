"""The command line: one small file per group of commands, which import what is heavy inside."""
