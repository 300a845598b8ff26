"""The network between parties: certificates, connections, and frames that arrive once, in order."""
