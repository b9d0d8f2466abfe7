"""`peagle serve`: arguments, checks of this machine, the local Ray cluster, the wait for every replica."""
