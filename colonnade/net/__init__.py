"""Parties in processes of their own: who they are to each other."""
