"""Benches of judges: a committee whose members fail, over the bus alone or over real HTTP."""
