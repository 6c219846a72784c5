"""Engines: graphs that run, one file a backend behind one protocol."""
