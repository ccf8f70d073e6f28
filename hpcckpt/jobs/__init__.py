"""The job side: what batch scripts leave to the command line, and the scripts themselves.

A batch script is scheduler lines and one command, ``hpcckpt supervise``; what differs between schedulers is in one
file each, a subclass of `hpcckpt.jobs.schedulers.Scheduler`.
"""
