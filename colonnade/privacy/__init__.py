"""Protection of messages: keys and masks, groups and noise with a budget, encryption."""
