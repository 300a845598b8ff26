"""`colonnade doctor`: what would go wrong, before it does."""
