"""Rows of hpcckpt's outline: its parts, and the programs it works with."""

from __future__ import annotations

import re
import sys

from tests.features.table import row
from tests.features.work import Work
from tests.support.jobs.batch_server import BatchServer
from tests.support.paths import ROOT, TESTS
from tests.support.slurm.cluster import missing as slurm_missing

SRUN = """
    #!/bin/bash
    # Stands in for srun on one host: -n or --ntasks RANKS, other options are left out.
    ranks=1
    while [[ $1 == -* ]]; do
        case $1 in
            -n) ranks=$2; shift ;;
            --ntasks=*) ranks=${1#*=} ;;
        esac
        shift
    done
    exec mpirun -n "$ranks" "$@"
"""
TINY = """
    [{
      "seed": 1
      "datasets": { "ktf.datasets.synthetic.from_raw": { "n_images": 640, "size": 8, "batch_size": 16 } }
      "model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } }
      "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } }
      "train_loop": { "ktf.train.KerasTrainLoop": { "num_epochs": 3 } }
    }]
"""


def srun(work: Work) -> str:
    """Return a PATH with a simulated srun, which starts ranks with mpirun."""
    work.write("bin/srun", SRUN).chmod(0o755)
    return f"{work.directory}/bin:{work.environment()['PATH']}"


@row("works")
def c1(work: Work) -> str:
    """C1: The tree of the project

    Every directory and file that the outline names exists, and Python imports the package from there.
    """
    names = ("pyproject.toml", "hpcckpt/__init__.py", "hpcckpt/collective", "hpcckpt/backends", "hpcckpt/native", "hpcckpt/lms",
             "scripts/theta", "scripts/slurm", "tests")  # fmt: skip
    absent = [name for name in names if not (ROOT / name).exists()]
    assert not absent, absent
    done = work.sh("python -c 'import hpcckpt; print(hpcckpt.__file__)'")
    assert done.out.strip() == str(ROOT / "hpcckpt/__init__.py"), done.out
    return " ".join(names)


@row("works")
def c2(work: Work) -> str:
    """C2: TensorFlow, mpi4py, Horovod, h5py, numpy, each in its place

    Of these, importing hpcckpt loads only numpy. The sources import mpi4py, h5py and Horovod only in the modules meant
    for them.
    """
    loaded = work.python("""
        import sys
        import hpcckpt, hpcckpt.cli
        print("LOADED", *(name for name in ("tensorflow", "keras", "mpi4py", "horovod", "h5py", "torch") if name in sys.modules), "-")
    """)
    loaded.find(r"^LOADED -$")
    places = {name: _importers(name) for name in ("mpi4py", "horovod", "h5py")}
    assert places == {"mpi4py": {"collective", "testing"}, "horovod": {"horovod"}, "h5py": {"backends", "keras"}}, (
        places
    )
    return "; ".join(f"{name} in {', '.join(sorted(found))}" for name, found in places.items())


def _importers(name: str) -> set[str]:
    pattern = re.compile(rf"^\s*(?:import|from) {name}\b", re.MULTILINE)
    found = [
        path.relative_to(ROOT / "hpcckpt")
        for path in (ROOT / "hpcckpt").rglob("*.py")
        if pattern.search(path.read_text("utf-8"))
    ]
    return {path.parts[0] for path in found}


@row("works")
def c3(work: Work) -> str:
    """C3: pytest-mpi

    A part of the suite runs under `mpirun -n 2 pytest --with-mpi`. Tests have its marks, and `-m mpi` selects them.
    """
    pytest = "mpirun -n 2 python -m pytest --with-mpi -q -p no:cacheprovider"
    done = work.sh(f"cd {ROOT} && {pytest} tests/unit/checkpointer/test_round_trip.py")
    marked = work.sh(f"cd {ROOT} && {pytest} -m mpi tests/conformance/test_messages.py", code=None)
    assert marked.code == 0, f"no test has the mark mpi: {marked.out.splitlines()[-1:]}"
    return f"2 ranks: {done.line('[0-9]+ passed')}; -m mpi: {marked.line('[0-9]+ passed')}"


@row("works")
def c4(work: Work) -> str:
    """C4: Native code accesses buffers, the MPI layer assigns the writes, plugins write parallel HDF5 or files per rank

    A sharded and a replicated tensor are saved on 2 ranks with rankfile, hdf5 through MPI-IO, hdf5 per rank and a C
    plugin. All are verified, and h5py reads the shared file.
    """
    done = work.python(
        """
        import numpy as np
        from mpi4py import MPI
        import hpcckpt as hc
        from hpcckpt import native
        comm = MPI.COMM_WORLD
        kinds = {"rankfile": {}, "hdf5-mpio": {"driver": "mpio"}, "hdf5-per-rank": {"driver": "per-rank"}, "plugin:posix": {}}
        for name, options in kinds.items():
            state = {"w": np.arange(8.0), "table": hc.Sharded(np.full((4, 5), 1.0 + comm.rank), global_shape=(8, 5), offset=(4 * comm.rank, 0))}
            backend = name.partition("-")[0]
            run = "runs/" + name.replace(":", "-")
            with hc.Checkpointer(run, comm=comm, backend=backend, backend_options=options) as ckpt:
                ckpt.save(1, state)
            if comm.rank == 0:
                print(name, native.IMPLEMENTATION, hc.load(run)["table"].sum(), flush=True)
        """,
        ranks=2,
    )
    for name in ("rankfile", "hdf5-mpio", "hdf5-per-rank", "plugin-posix"):
        work.sh(f"hpcckpt verify runs/{name}")
        done.find(rf"{name.replace('plugin-', 'plugin:')} native 60\.0")
    read = work.python("""
        import h5py
        from pathlib import Path
        with h5py.File(next(Path("runs/hdf5-mpio").rglob("checkpoint.h5"))) as file:
            print("H5PY", sorted(file), file["table"].shape, float(file["table"][:].sum()))
    """)
    files = sorted(path.name for path in (work.directory / "runs/rankfile").rglob("rank-*"))
    assert files == ["rank-00000.safetensors", "rank-00001.safetensors"], files
    return f"4 backends verified; {read.line('^H5PY')}"


@row("works")
def c5(work: Work) -> str:
    """C5: LMS on each rank before distributed training

    Two Horovod ranks plan before the first step and compare the digests of their plans. They swap while gradients are
    averaged.
    """
    done = work.example(
        "lms_horovod", "--run", "runs/lms", "--epochs", "1", "--limit", "512", "--data", str(work.mnist()), ranks=2
    )
    assert done.total(r"plan as on rank 0: True, [1-9]") == 2, done.tail()
    work.sh("hpcckpt verify runs/lms")
    return f"{done.line('plan as on rank 0: True')}; {done.line('^losses')}"


@row("works")
def c6(work: Work) -> str:
    """C6: `aprun` and `srun` start trainings

    Three epochs run on 2 ranks: with the script in `scripts/theta` under simulated qsub and aprun, and under a
    simulated srun. A test with a real Slurm runs where Slurm is installed.
    """
    cobalt = BatchServer(work.directory / "spool", "cobalt", work.directory / "login")
    (cobalt.work / "c.hjson").write_text(TINY, encoding="utf-8")
    options = ["-A", "mine", "-n", "2", "-t", "0:20:00", "--env", "HPCCKPT_RANKS_PER_NODE=1"]
    cobalt.submit(*options, str(ROOT / "scripts/theta/train.qsub"), "c.hjson")
    (ran,) = cobalt.drain()
    work.write("job.out", ran.out)
    assert ran.code == 0, ran.out[-2000:]
    assert "ranks=2" in ran.out
    work.write("c.hjson", TINY)
    done = work.sh("srun -n 2 hpcckpt train -c c.hjson --run runs/c && hpcckpt list runs/c/cycle-1", PATH=srun(work))
    done.find(r"cycle=1/1 complete epochs=3 step=48")
    absent = slurm_missing()
    if absent:
        work.needs("Slurm", f"not installed: {', '.join(absent)}")
    else:
        test = f"{TESTS}/schedulers/slurm/test_training.py::test_a_training_that_is_warned_is_requeued_and_ends_with_the_same_bits"
        real = work.sh(f"cd {ROOT} && {sys.executable} -m pytest -q -rs -p no:cacheprovider {test}", limit_s=1800)
        if "skipped" in real.out.splitlines()[-1]:
            work.needs("a Slurm that starts ranks of this MPI", real.line("SKIPPED"))
    work.needs("ALPS", "aprun is simulated: no machine has it any more")
    return f"aprun: {_last(ran.out)}; srun: {done.line('latest')[:80]}"


def _last(text: str) -> str:
    return next(line for line in reversed(text.splitlines()) if line.strip())[:60]


@row("works")
def c7(work: Work) -> str:
    """C7: Horovod's callbacks

    `RestoreCallback` runs beside Horovod's callbacks. Rank 1 of 2 is killed in the third epoch. The same command
    resumes on 2 ranks with level exact.
    """
    work.write("train.py", """
        import os, signal
        from pathlib import Path
        import keras, numpy as np
        import hpcckpt as hc
        hc.enable_exact_resume(seed=1)
        import horovod.tensorflow.keras as hvd
        hvd.init()
        class Dies(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 2 and hvd.rank() == 1 and not Path("killed").exists():
                    Path("killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        hc.keras.stateless(Dies)
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
        x = np.random.default_rng(hvd.rank()).normal(size=(160, 8)).astype("float32")
        model.fit(x, x.sum(1), 16, 4, verbose=0, callbacks=[
            hc.horovod.RestoreCallback("runs/a", "epoch"), hvd.callbacks.MetricAverageCallback(), Dies()])
        print(f"rank {hvd.rank()} done", flush=True)
    """)  # fmt: skip
    killed = work.mpirun(2, "python", "train.py", code=None)
    assert killed.code != 0
    done = work.mpirun(2, "python", "train.py")
    assert done.total(r"rank \d done") == 2, done.tail()
    return done.line(r"resume step=[12]0 epoch=[12] .*ranks 2->2 level=exact")[:140]


@row("works")
def c8(work: Work) -> str:
    """C8: A command that restores a checkpoint to a file, on rank 0 alone

    `mpirun -n 2 hpcckpt restore RUN best --out best.npz` runs, and the same under a simulated srun. Only one rank
    writes the file, once.
    """
    work.python("""
        import numpy as np, hpcckpt as hc
        with hc.Checkpointer("runs/a", max_to_keep=None) as ckpt:
            for step, loss in ((10, 0.5), (20, 0.2), (30, 0.4)):
                ckpt.save(step, {"w": np.full(4, float(step))}, metrics={"loss": loss})
    """)
    done = work.mpirun(2, "hpcckpt", "restore", "runs/a", "best", "--out", "best.npz")
    work.sh("srun -n 2 hpcckpt restore runs/a best --out again.npz", PATH=srun(work))
    read = work.python("""
        import numpy as np
        print("VALUES", np.load("best.npz")["w"].tolist(), np.load("again.npz")["w"].tolist())
    """)
    read.find(r"^VALUES \[20\.0, 20\.0, 20\.0, 20\.0\] \[20\.0")
    assert done.count(r"best\.npz") == 1, done.tail()
    return done.line(r"best\.npz")[:120]


@row("works")
def c9(work: Work) -> str:
    """C9: Templates for qsub and sbatch

    `train.qsub`, `restart.qsub`, `train.sbatch` and `restart.sbatch` run in dry-run mode outside the directories that
    contain them. So does a user's program with `program.sbatch` and with `hpcckpt jobscript`. A complete run reports
    that it is complete, and ends without importing TensorFlow.
    """
    work.write("c.hjson", TINY)
    copied = work.directory / "copied"
    copied.mkdir()
    lines = []
    for script, words in (
        ("theta/train.qsub", "c.hjson"), ("theta/restart.qsub", "runs/c"), ("slurm/train.sbatch", "c.hjson"),
        ("slurm/restart.sbatch", "runs/c"), ("slurm/program.sbatch", "runs/p python p.py"),
    ):  # fmt: skip
        where = ROOT / "scripts" / script
        if script.startswith("slurm"):  # sbatch also runs a copy
            where = copied / where.name
            where.write_bytes((ROOT / "scripts" / script).read_bytes())
        dry = work.sh(f"bash {where} {words}", HPCCKPT_DRY_RUN="1")
        lines.append(dry.line(r"would start: (aprun|srun) "))
    job = work.sh(
        "hpcckpt jobscript --scheduler slurm --nodes 1 --time 1h --run runs/p -- python p.py > job && HPCCKPT_DRY_RUN=1 bash job"
    )
    job.find(r"would start: srun .*python p\.py")
    work.sh("hpcckpt train -c c.hjson --run runs/c --set train_loop.num_epochs=1")
    again = work.sh("hpcckpt train -c c.hjson --run runs/c --set train_loop.num_epochs=1", PYTHONPROFILEIMPORTTIME="1")
    again.find(r"complete cycles=1 .*nothing is left to train")
    assert again.count(r"\| +tensorflow$") == 0, "a complete run imports TensorFlow to say that it is complete"
    return f"{len(lines)} scripts: {lines[-1][:90]}; complete run: {again.seconds:.0f} s"
