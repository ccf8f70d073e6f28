"""Submodels by path: found by all their names, frozen, and shown where there is none."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from hpcckpt.train.run import submodels

layers = keras.layers


class Block(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.resample = layers.Dense(3)
        self.norm = layers.BatchNormalization()

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.norm(self.resample(inputs), training=training)


class Net(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.base_model = Block()
        self.blocks = [Block(), Block()]
        self.head = keras.Sequential([layers.Dense(2), layers.Dense(2, name="chosen")])

    def call(self, inputs: Any, training: Any = None) -> Any:
        hidden = self.base_model(inputs, training=training)
        for block in self.blocks:
            hidden = block(hidden, training=training)
        return self.head(hidden)


@pytest.fixture
def net() -> Any:
    model = Net()
    model(np.zeros((1, 4), "float32"))
    return model


def test_a_submodel_is_found_by_its_attribute_at_any_depth(net: Any) -> None:
    assert submodels.find(net, "base_model") is net.base_model
    assert submodels.find(net, "base_model@resample") is net.base_model.resample


def test_a_submodel_in_a_list_is_found_by_the_list_and_its_number(net: Any) -> None:
    assert submodels.find(net, "blocks@1") is net.blocks[1]
    assert submodels.find(net, "blocks@1@resample") is net.blocks[1].resample


def test_a_layer_is_found_by_the_name_that_it_was_given(net: Any) -> None:
    assert submodels.find(net, "head@chosen") is net.head.layers[1]


def test_a_layer_is_found_by_its_name_in_checkpoints_whatever_was_built_before(net: Any) -> None:
    assert submodels.find(net, "head@dense") is net.head.layers[0]
    assert submodels.find(net, "block_1") is net.blocks[0]


def test_layers_of_a_functional_model_are_found_by_name() -> None:
    entry = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="deep")], name="encoder")
    model = keras.Model(entry, layers.Dense(1)(inner(entry)))
    assert submodels.find(model, "encoder@deep") is inner.layers[-1]


def test_a_wrong_path_says_how_far_it_leads_what_is_nearest_and_what_there_is(net: Any) -> None:
    with pytest.raises(submodels.SubmodelNotFoundError) as caught:
        submodels.find(net, "base_model@resampel")
    text = str(caught.value)
    assert "no submodel 'base_model@resampel'" in text
    assert "did you mean 'base_model@resample'?" in text
    assert "nothing in 'base_model' is called 'resampel'" in text
    assert "norm  BatchNormalization, 12 parameters" in text


def test_a_wrong_first_name_shows_the_tree_of_the_whole_model(net: Any) -> None:
    with pytest.raises(submodels.SubmodelNotFoundError) as caught:
        submodels.find(net, "encoder")
    lines = str(caught.value).splitlines()
    assert "  base_model  Block, 27 parameters" in lines
    assert "    resample  Dense, 15 parameters" in lines
    assert "  blocks@1  Block, 24 parameters" in lines


def test_the_tree_of_a_large_model_stays_short() -> None:
    model = keras.Sequential([keras.Input((2,)), *(layers.Dense(2) for _ in range(200))])
    lines = submodels.tree(model, most_lines=30).splitlines()
    assert len(lines) == 31
    assert lines[-1] == "  … and 170 more"


def test_freezing_leaves_so_many_fewer_numbers_to_train(net: Any) -> None:
    before = submodels.count(net.trainable_weights)
    submodels.freeze(net, ["base_model", "head@chosen"])
    assert before - submodels.count(net.trainable_weights) == (15 + 6) + 6
    assert "frozen" in next(line for line in submodels.tree(net).splitlines() if "base_model" in line)


def test_nothing_is_frozen_where_one_of_the_paths_is_wrong(net: Any) -> None:
    with pytest.raises(submodels.SubmodelNotFoundError):
        submodels.freeze(net, ["base_model", "nowhere"])
    assert net.base_model.trainable
