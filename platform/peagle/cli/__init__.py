"""The `peagle` command: its own commands, and command groups of other packages."""
