"""Drives roles: all of them in one process, or one party per process."""
