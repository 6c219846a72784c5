"""Chooses K for a build on this machine: passes measured, a machine model between them, the best measured again."""
