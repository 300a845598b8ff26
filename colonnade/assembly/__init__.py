"""From a configuration to the parties: who holds which rows, and who plays which role."""
