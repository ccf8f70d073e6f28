"""A scheduler signals the workers of data loaders too: the training continues to its last save."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcckpt import native
from tests.support.listing import listed

PROGRAM = """
import os, subprocess, sys, time
import numpy as np
import torch
import hpcckpt as hc

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        return torch.ones(2)

def prepared(worker_id):
    torch.set_num_threads(1)

def main(directory, method, name, is_plain):
    ckpt = hc.Checkpointer(directory)
    guard = hc.preemption.watch(ckpt, verbose=0)
    options = {"num_workers": 2, "multiprocessing_context": method}
    if is_plain:
        init = hc.preemption.ignore_job_signals
        loader = torch.utils.data.DataLoader(Data(), batch_size=2, worker_init_fn=init, **options)
    else:
        sampler = hc.torch.BatchSampler(10_000, batch_size=2, rank=0, size=1)
        loader = sampler.loader(Data(), worker_init_fn=prepared, **options)
    batches = iter(loader)
    for step, batch in enumerate(batches, 1):
        if step == 3:
            scheduler_sends(name)
        if guard.should_stop(step):
            try:
                guard.save_and_exit({"w": np.ones(3)})
            finally:
                scheduler_sends(name)  # again, on the way out
                time.sleep(0.5)

def scheduler_sends(name):
    me = os.getpid()
    workers = open(f"/proc/{me}/task/{me}/children").read()
    subprocess.run(["sh", "-c", f"kill -{name} {workers} {me}"], check=True)

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "plain")
"""


@pytest.mark.skipif(native.IMPLEMENTATION == "pure", reason="without the native part")
@pytest.mark.parametrize(
    ("method", "name", "kind"), [("fork", "TERM", "plain"), ("spawn", "TERM", "sampler"), ("spawn", "USR1", "plain")]
)
def test_a_signal_to_all_processes_of_the_job_spares_the_workers(tmp_path, method, name, kind):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "run"), method, name, kind]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 75, ended.stderr
    assert listed(tmp_path / "run")
    assert "DataLoader worker" not in ended.stderr, ended.stderr
