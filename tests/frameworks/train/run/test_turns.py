"""Keras downloads weights into the file that it reads: ranks that may do so build their models one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.errors import CollectiveError
from hpcckpt.train.config.factories import Factory
from hpcckpt.train.run.build_cycle import in_turn, together

NETWORK = "tf.keras.applications.ResNet50"
WEIGHTS = "the weights of a network"


@pytest.mark.parametrize(
    ("kwargs", "expected"), [({}, True), ({"weights": "imagenet"}, True), ({"weights": None}, False)]
)
def test_a_network_of_keras_may_download_its_weights(kwargs: dict[str, Any], expected: bool) -> None:
    assert Factory(NETWORK, kwargs).may_download is expected
    outer = Factory("ktf.models.OneHeadNet", {"base_model": Factory(NETWORK, kwargs), "heads": [Factory("ktf.Head")]})
    assert outer.may_download is expected


def test_no_rank_reads_a_file_that_root_has_not_written_to_its_end(
    group: Callable[[int, Callable[[Any], Any]], list[Any]], tmp_path: Path
) -> None:
    file = tmp_path / "weights.h5"

    def get_weights() -> str:
        if not file.exists():  # as keras.utils.get_file does
            with file.open("w") as stream:
                for letter in WEIGHTS:
                    stream.write(letter)
                    stream.flush()
                    time.sleep(0.005)
        return file.read_text()

    def body(comm: Any) -> str:
        with in_turn(comm):
            return get_weights()

    assert group(3, body) == [WEIGHTS] * 3


def test_a_rank_that_fails_in_its_turn_holds_nobody_up(
    group: Callable[[int, Callable[[Any], Any]], list[Any]],
) -> None:
    def body(comm: Any) -> str:
        def act() -> None:
            with in_turn(comm):
                if comm.is_root:
                    raise OSError("no network")

        with pytest.raises(CollectiveError, match="no network"):
            together(comm, "build", act)
        return "told"

    assert group(2, body) == ["told"] * 2
