"""Grammars are compiled on trial first, where they hold up nobody and can be stopped.

trials.py      what a replica asks: does this grammar compile within the limits?
trial_process.py  the process that it asks, which forks for each grammar
compile_threads.py  the engine core's own compilation of what has passed
watched_grammars.py  the end of requests whose grammars become slow later; mask_times.py says when
"""
