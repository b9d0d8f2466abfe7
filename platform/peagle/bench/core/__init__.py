"""What every measurement shares: options, statistics, the journal, result files, pictures."""
