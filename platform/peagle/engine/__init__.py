"""Inside vLLM's processes: engine arguments, live depth, step statistics, drafter checks."""
