"""Dumps of a server's canary: every row and cached chain verified, and what is wrong put into words."""
