"""The example's loop, interrupted and resumed, ends with the weights of one that never was."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import examples

tf_custom_loop = examples.load("tf_custom_loop")


class Killed(Exception):  # noqa: N818 - it is no error
    """Simulates SIGKILL."""


def kill_at(step: int) -> Any:
    def on_step(manager: Any) -> None:
        if int(manager.checkpoint.training.step) == step:
            manager.sync()  # else what was under way would end beside the next run, for this process lives on
            raise Killed

    return on_step


def test_interrupted_and_resumed_the_weights_are_those_of_a_run_that_never_was(tmp_path, capsys):
    common = ["--steps", "60", "--per-call", "5", "--every", "10"]
    tf_custom_loop.main(["--run", str(tmp_path / "straight"), *common])
    for step in (25, 45):
        with pytest.raises(Killed):
            tf_custom_loop.main(["--run", str(tmp_path / "killed"), *common], kill_at(step))
    tf_custom_loop.main(["--run", str(tmp_path / "killed"), *common])
    out = capsys.readouterr().out
    begun = [int(step) for step in re.findall(r"begin: step=(\d+)", out)]
    straight, resumed = re.findall(r"done: step=60 loss=\S+ sha256=([0-9a-f]{64})", out)
    assert begun == [0, 0, 25, 45]
    assert resumed == straight
