"""The decisions, as pure functions over frozen snapshots. Nothing here imports ray, vllm, torch or kubernetes."""
