"""Common parts of all measurements: options, statistics, the journal, result files, pictures."""
