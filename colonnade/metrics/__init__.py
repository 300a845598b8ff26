"""What a run is measured by, accuracy aside."""
