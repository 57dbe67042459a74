"""The controller application: the command line, the stack, notifications, imports and the MCP server."""
