"""Engines in this process: no speculation, EAGLE-3 and P-EAGLE, interleaved."""
