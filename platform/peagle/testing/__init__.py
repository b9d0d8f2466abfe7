"""Stand-ins for what a test or a comparison cannot afford to run."""
