"""What became of a run, from its journal and its steps: for the verbs ``report``, ``watch`` and ``advise``.

:mod:`~hpcckpt.reporting.parts` finds the run directories, :mod:`~hpcckpt.reporting.reading` reads them into a
:class:`~hpcckpt.reporting.story.Story`, :mod:`~hpcckpt.reporting.figures` computes from that; the others show it.
"""
