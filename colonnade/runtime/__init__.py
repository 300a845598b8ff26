"""What drives roles: all in one process, or one party each."""
