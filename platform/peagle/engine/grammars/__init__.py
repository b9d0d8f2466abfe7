"""Grammars compile on trial first, in a process where they delay no request and can be stopped.

trials.py           asks whether a grammar compiles within the limits
trial_process.py    the process that it asks, which forks for each grammar
compile_threads.py  the engine core's own compilation of grammars that have passed
watched_grammars.py ends requests whose grammars become slow later; mask_times.py decides when
"""
