"""This machine: its terminal, ports, processes, cores, memory and folders."""
