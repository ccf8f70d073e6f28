"""Coordination over ranks: communicators, sharding, planning and the commit protocol."""
