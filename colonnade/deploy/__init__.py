"""Parties in processes of their own: one member, all of a machine, NVFlare, and the doctor."""
