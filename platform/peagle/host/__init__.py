"""This machine: terminal, ports, processes, cores, memory and folders."""
