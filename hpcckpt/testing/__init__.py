"""For tests and plugin authors: ranks as threads, fault injection."""
