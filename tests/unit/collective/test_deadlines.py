"""How long a wait is silent, with a clock that the test turns."""

from __future__ import annotations

import itertools
import logging
import threading
from types import SimpleNamespace

from hpcckpt.collective import deadlines
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.collective.deadlines import Patience, Waited, wait_and_log
from hpcckpt.collective.waits import wait_for_all, wait_until
from hpcckpt.core.system import CLOCK


def due_at(patience: Patience, until_s: int, tick_s: float = 0.25) -> list[float]:
    """Return the times at which a line is due in a wait."""
    now = [0.0]
    waited = Waited(patience, SimpleNamespace(monotonic=lambda: now[0], sleep=None))
    times = []
    while now[0] < until_s:
        if waited.is_log_due():
            times.append(now[0])
        now[0] += tick_s
    return times


def test_no_wait_is_silent_for_over_15_s_and_the_first_line_comes_after_10_s():
    times = due_at(Patience(), 600)
    assert times[0] == 10.0
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 15.0


def test_a_wait_with_a_short_time_out_is_logged_before_it_ends():
    assert due_at(Patience().within(8.0), 8) == [4.0]


def test_a_rank_alone_that_waits_for_its_own_work_logs_it(caplog):
    comm = SerialCommunicator(Patience(first_note_s=0.0, every_s=0.0))
    wait_until(comm, lambda: bool(caplog.records), lambda: [0], doing=lambda: "writes its part", text="save step 3")
    assert "in save step 3 (writes its part) for 0 s" in caplog.text


def test_what_is_waited_for_is_logged(caplog, monkeypatch):
    monkeypatch.setattr(deadlines, "Patience", lambda: Patience(first_note_s=0.0))
    is_logged = threading.Event()

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            is_logged.set()

    handler = Watching()
    logging.getLogger("hpcckpt").addHandler(handler)
    try:
        wait_and_log(lambda: is_logged.wait(0.01), "files of retired steps are removed")
    finally:
        logging.getLogger("hpcckpt").removeHandler(handler)
    assert ": files of retired steps are removed" in caplog.text


def test_a_rank_whose_peers_make_no_checkpointer_logs_that_mpi_does_not_name_them(caplog):
    looks = itertools.count()
    patience = Patience(peer_timeout_s=60.0, first_note_s=0.0, every_s=0.0)
    with caplog.at_level(logging.WARNING, "hpcckpt"):
        wait_for_all(SimpleNamespace(rank=0, size=3, patience=patience, clock=CLOCK), lambda: next(looks) >= 1)
    (text,) = {record.getMessage() for record in caplog.records}
    assert "at least one of the 3 ranks has not made its checkpointer; MPI does not report which" in text
    assert text.endswith("the job is ended after 60 s (peer_timeout_s)")
