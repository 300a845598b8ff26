"""The results of a run: its folder, its result.json, and the events for an observer."""
