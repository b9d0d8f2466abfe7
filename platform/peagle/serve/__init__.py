"""The adapter to Ray: server class, application builder, launcher. It holds no depth or routing policy."""
