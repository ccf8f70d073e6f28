"""The history of a run, from its journal and its steps: for the verbs ``report``, ``watch`` and ``advise``.

:mod:`~hpcckpt.tools.report.run_dirs` finds the run directories, :mod:`~hpcckpt.tools.report.read_history` reads them
into a :class:`~hpcckpt.tools.report.history.RunHistory`, :mod:`~hpcckpt.tools.report.statistics` computes statistics of
it; the other modules show both.
"""
