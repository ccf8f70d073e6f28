"""The reference is made of the schema, and is up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpcckpt
from hpcckpt.train.config import schema
from hpcckpt.train.config.cycles import cycles, effective
from hpcckpt.train.config.read import parse
from hpcckpt.train.config.reference_docs import filled, main
from hpcckpt.train.names import keras_resolver

PAGE = Path(hpcckpt.__file__).parents[1] / "docs" / "train-config.md"


def test_the_page_is_up_to_date() -> None:
    assert filled(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8"), (
        f"run: python -m hpcckpt.train.config.reference_docs {PAGE}"
    )


def test_every_key_stands_in_it_with_its_default() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for keys in (schema.CycleKeys, schema.CheckpointKeys, schema.LmsKeys):
        for name, field in keys.model_fields.items():
            words = re.escape((field.description or "").split(" ")[0])
            (row,) = re.findall(rf"^\| `{name}` \| `?{words}.*$", page, re.MULTILINE)[:1]
            if keys is not schema.CycleKeys:
                assert row.endswith(f"`{json.dumps(field.default)}` |")
    assert all(f"`tf.keras.{name}`" in page for name in keras_resolver.CLOSED)


def test_a_page_that_is_not_up_to_date_is_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("# x\n<!-- table: checkpoint -->\nold\n<!-- end -->\ny\n", encoding="utf-8")
    assert main([str(page), "--check"]) == 1
    assert "is not up to date" in capsys.readouterr().err
    assert main([str(page)]) == 0
    assert "| `max_to_keep` |" in page.read_text(encoding="utf-8")
    assert main([str(page), "--check"]) == 0
    assert page.read_text(encoding="utf-8").endswith("<!-- end -->\ny\n")


def test_the_marks_of_an_unknown_table_are_an_error() -> None:
    with pytest.raises(KeyError):
        filled("<!-- table: nonsense -->\n<!-- end -->")


def test_its_example_is_a_configuration() -> None:
    (text,) = re.findall(r"```hjson\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    first, second = effective(cycles(parse(text, "docs")))
    assert first["datasets"] == second["datasets"]
    assert second["optimizer"] == {"tf.keras.optimizers.SGD": {}}


def test_its_example_of_mistakes_is_what_is_said(tmp_path: Path) -> None:
    (console,) = re.findall(
        r"```console\n\$ hpcckpt train -c broken.hjson\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "broken.hjson").write_text(
        """[
          { "datasets": {"ktf.datasets.digits.from_raw": {}}, "model": {"ktf.models.OneHedNet": {}}, "loss": "mse"
            "optimiser": {}, "checkpoint": {"max_to_keep": 0} }
          { "train_loop": {"ktf.train.KerasTrainLoop": {}, "num_epochs": 3} }
        ]""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "hpcckpt", "train", "-c", "broken.hjson"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if line.startswith(("hpcckpt: ", "  ["))]
    assert sorted(told) == sorted(console.splitlines())


def test_making_it_loads_no_framework() -> None:
    code = (
        f"import sys; from hpcckpt.train.config.reference_docs import main; main([{str(PAGE)!r}, '--check'])\n"
        "print([name for name in ('tensorflow', 'keras', 'mpi4py') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
