"""What is to be learnt, and how good a prediction is."""
