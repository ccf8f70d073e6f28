"""Looking for what is wrong with an installation or a run directory, each finding with its remedy.

Nothing is imported into the process that asks: versions come from package metadata, the rest from
short child processes.
"""
