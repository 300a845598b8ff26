"""Runs a config, and predicts and measures with the run afterwards."""
