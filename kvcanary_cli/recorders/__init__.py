"""Recorders: plugins that run inside a serving engine and write what it does as a trace."""
