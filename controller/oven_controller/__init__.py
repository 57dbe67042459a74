"""The application on top of every other package: command line, stack, notifications, imports and MCP server."""
