"""Measures of a run beside accuracy, and the attacks that they score."""
