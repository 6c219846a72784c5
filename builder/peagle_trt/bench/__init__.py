"""Measures what speculation gains; nothing here is asserted by a test."""
