"""Defaults, which can be read without the engine and without PyTorch."""

ADMIN = "lead@colonnade.internal"  # who submits
SERVER = "localhost:8002"
