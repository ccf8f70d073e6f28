"""What the engine measures: memory, times of ops; and what it says where the library is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import BackendError, ConfigError
from hpcckpt.lms.runtime import native_engine
from hpcckpt.native import lms_ops, tf_ops

MIB = 1 << 20


def test_without_the_library_and_a_compiler_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    lms_ops.load_lms.cache_clear()
    try:
        with pytest.raises(
            BackendError, match=r"the TensorFlow ops of LMS cannot be built for .*: no C\+\+ compiler .*; run: "
        ):
            native_engine.load()
    finally:
        lms_ops.load_lms.cache_clear()


def test_a_library_for_another_tensorflow_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path))
    made = tf_ops.target(tf_ops.LMS)._replace(tensorflow="2.14.0")
    (tmp_path / made.filename).write_bytes(b"not loaded")
    with pytest.raises(
        BackendError, match=rf"LMS are built for TensorFlow 2\.14\.0, and {tf.__version__} is installed"
    ):
        tf_ops.find_built(tf_ops.LMS)


def test_importing_the_engine_imports_no_tensorflow() -> None:
    code = "import sys, hpcckpt.lms.runtime.native_engine; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_peak_is_seen_though_it_is_over() -> None:
    with native_engine.peak_resident() as peak:
        held = np.ones(64 * MIB, np.uint8)
        del held
    assert peak.nbytes > 60 * MIB
    with native_engine.peak_resident() as low:
        pass
    assert low.nbytes < 30 * MIB


FREED = """
import numpy as np
from hpcckpt.lms.runtime import native_engine as engine
np.ones(31 << 20, np.uint8)  # from now on malloc keeps what is smaller
assert engine.release_freed_memory()
with engine.peak_resident() as peak:
    held = [np.ones(1 << 20, np.uint8) for _ in range(64)]
    behind = np.ones(1 << 20, np.uint8)
    del held
with engine.peak_resident() as after:
    pass
print(peak.highest - after.start >> 20)
"""
"""A separate program: what it sets is set for the rest of the process."""


def test_freed_memory_goes_back_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@tf.function
def product(x: Any) -> Any:
    return tf.reduce_sum(tf.matmul(x, x, name="times_itself"), name="all_of_it")


def test_times_of_ops_are_those_of_the_graph_and_tell_their_order() -> None:
    product(tf.ones([300, 300]))
    with native_engine.op_times() as times:
        for _ in range(3):
            product(tf.ones([300, 300]))
    first, last = times["times_itself"], times["all_of_it"]
    assert first.count == last.count == 3
    assert first.mean_ns > 1000
    assert first.first_ns < last.first_ns


def test_times_of_ops_are_measured_in_sessions_too() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = tf.matmul(tf.random.uniform([200, 200]), tf.random.uniform([200, 200]), name="in_a_session")
        with native_engine.op_times() as times:
            session.run(made)
    assert times["in_a_session"].total_ns > 1000


def test_two_at_a_time_cannot_record() -> None:
    with (
        native_engine.op_times(),
        pytest.raises(ConfigError, match="while a profiler records"),
        native_engine.op_times(),
    ):
        pass
