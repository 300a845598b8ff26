"""The known data sets: one file each, found by name, fetched and checked."""
