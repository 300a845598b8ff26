"""What is to be learnt, and how good a prediction of it is."""

from colonnade.task.task import DEFAULT_METRIC, KINDS, Task

__all__ = ["DEFAULT_METRIC", "KINDS", "Task"]
