"""Fair shares between the clients of one server.

step_sharing.py  whose requests take part in an engine's next step
"""
