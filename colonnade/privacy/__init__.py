"""What keeps a party's values from the others: keys, masks."""
