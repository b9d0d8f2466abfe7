"""Simulated replicas with known acceptance and step times, around the unchanged functions of router/."""
