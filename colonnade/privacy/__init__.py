"""What hides things on the wire: keys and masks, groups and noise with a budget, encryption."""
