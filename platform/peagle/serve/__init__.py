"""The adapter to Ray: server class, application builder, launcher. It decides nothing about depth or routing."""
