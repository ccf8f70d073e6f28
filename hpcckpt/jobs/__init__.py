"""The job side: what batch scripts leave to the command line, and the scripts themselves.

A batch script is scheduler lines and one command, ``hpcckpt supervise``; what schedulers do differently stands in one
file each, behind `hpcckpt.jobs.schedulers.Scheduler`.
"""
