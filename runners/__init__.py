"""Declaring, launching and recording training runs, and the command line."""
