"""Builds that other projects' servers run: checkpoints, settings, launch lines and a Triton repository; no graphs."""
