"""The controller: messages, bus, mesh, log, stack and command line. It imports none of the parts."""
