"""Coordination over ranks.

`launchers`, `communicator`, `mpi`, `connect`
    Which rank this is; messages and collective operations; which communicator ``comm=`` means.
`calls`, `peers`, `notes`, `waits`, `deadlines`, `interrupts`
    Which collective call each rank is in, and every wait for other ranks.
`sharding`, `planner`
    Which rank writes what. Pure, except for one message at the first save.
`background`
    Work on all ranks while the program continues.
"""
