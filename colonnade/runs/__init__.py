"""One run, and what can be done with it afterwards."""
