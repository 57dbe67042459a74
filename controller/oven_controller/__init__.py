"""The controller: messages, bus, mesh, log, stack and command line. Imports none of the parts that it starts."""
