"""The `peagle` command: its own commands, and those that it forwards to the rooms."""
