"""Measurements of real engines. `speculation` compares no speculation, EAGLE-3 and P-EAGLE, interleaved."""
