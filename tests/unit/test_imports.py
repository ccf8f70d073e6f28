"""Importing the package starts nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpcckpt


def modules_after(code: str) -> set[str]:
    probe = f"{code}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_hpcckpt_loads_nothing_heavy():
    loaded = modules_after("import hpcckpt")
    assert "hpcckpt" in loaded
    assert not loaded & {"mpi4py", "tensorflow", "keras", "h5py", "horovod", "torch", "numpy", "hpcckpt.native._native"}


def test_a_checkpointer_on_one_rank_loads_neither_mpi_nor_a_framework():
    loaded = modules_after("import hpcckpt; hpcckpt.Checkpointer('/nonexistent/run')")
    assert "hpcckpt.checkpointer" in loaded
    assert not loaded & {"mpi4py", "tensorflow", "keras", "h5py", "horovod", "torch"}


def test_a_name_of_a_package_is_loaded_on_first_use_and_an_unknown_one_refused():
    assert "hpcckpt.lms.report.report" not in modules_after("import hpcckpt.lms")
    assert "hpcckpt.lms.report.report" in modules_after("import hpcckpt.lms; hpcckpt.lms.Report")
    assert "hpcckpt.train.losses" not in modules_after("import hpcckpt.train")
    assert "hpcckpt.train.losses" in modules_after("import hpcckpt.train; hpcckpt.train.losses")
    with pytest.raises(AttributeError, match=r"^module 'hpcckpt\.lms' has no attribute 'Tale'$"):
        _ = hpcckpt.lms.Tale
    assert dir(hpcckpt) == sorted(hpcckpt.__all__)


def test_every_public_name_is_there_and_documented():
    for name in hpcckpt.__all__:
        value = getattr(hpcckpt, name)
        assert name.startswith("__") or (value.__doc__ or "").strip(), name


def test_no_module_has_the_name_of_what_its_package_loads_on_first_use():
    root = Path(hpcckpt.__file__).parent
    for init in root.rglob("__init__.py"):
        tree = ast.parse(init.read_text(encoding="utf-8"))
        homes = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "_HOME"]
        modules = {path.stem for path in init.parent.glob("*.py")} | {
            path.parent.name for path in init.parent.glob("*/__init__.py")
        }
        for home in homes:  # importing such a module would put it in the place of the name
            assert not modules & set(ast.literal_eval(home.value)), init
