"""Access to a running server for commands: its URL, key and models."""
