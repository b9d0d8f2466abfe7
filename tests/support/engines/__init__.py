"""Real engines and schedulers, tiny models, and checks of an engine on a GPU."""
