"""What a run leaves behind: its folder, its result, and what an observer is told."""
