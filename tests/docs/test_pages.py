"""Every code block and command of README.md and docs is run, in the order of its page; shown output is real."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs import compare, pages
from tests.docs.pages import ROOT
from tests.docs.runner import PageError, Runner
from tests.docs.setups import SETUPS

RUN = {page: blocks for page, blocks in pages.all_pages().items() if page in SETUPS}


def missing(needs: tuple[str, ...]) -> list[str]:
    return [
        need for need in needs if not (shutil.which(need.removesuffix("!")) if need.endswith("!") else find_spec(need))
    ]


def params() -> list[object]:
    return [pytest.param(page, marks=[] if SETUPS[page].quick else pytest.mark.nightly, id=page) for page in RUN]


@pytest.mark.parametrize("page", params())
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    setup = SETUPS[page]
    if absent := missing(tuple(setup.needs)):
        pytest.skip(f"needs {', '.join(absent)}")
    blocks = [block for block in RUN[page] if not any(marker in block.text for marker, _ in setup.elsewhere)]
    runner = Runner(setup, tmp_path)
    failed = []
    try:
        setup.prepare(runner)
        for block in blocks:
            try:
                runner.run(block)
            except PageError as error:  # all differences of a page are reported at once
                failed.append(f"{block.place}: {error}")
    finally:
        runner.close()
    assert not failed, "\n\n".join(failed)


def test_every_block_and_command_of_the_pages_is_run_by_a_test() -> None:
    rows = list(pages.entries())
    assert len(rows) > 300
    assert not [f"{row.place}: {row.text}" for row in rows if not row.test]


def test_each_test_that_is_named_exists() -> None:
    for name in {row.test for row in pages.entries() if row.test}:
        path, _, test = name.partition("::")
        assert re.search(rf"^def {test.partition('[')[0]}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), name


def test_what_a_setup_names_is_in_its_page() -> None:
    for page, setup in SETUPS.items():
        text = "\n".join(block.text for block in RUN[page])
        pairs = (*setup.before, *setup.handlers, *setup.actions, *setup.filters, *setup.smaller, *setup.elsewhere)
        markers = [marker for marker, _ in pairs] + [each.marker for each in setup.exempt]
        assert not [marker for marker in markers if marker not in text], page


def test_the_numbers_are_printed_by_one_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.pages"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    numbers = r"^blocks: \d+ shown, \d+ run by a test \(\d+ of them nightly\), \d+ checked, 0 by none$"
    assert re.search(numbers, done.stdout, re.MULTILINE)
    assert done.returncode == 0


# -- the comparison itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "real", "is_same"),
    [
        (["step 3"], ["step 3"], True),
        (["step 3"], ["step 4"], False),
        (["step 3"], ["step 3", "step 4"], False),
        (["step 3", "…"], ["step 3", "step 4", "step 5"], True),
        (["…", "step 5"], ["step 3", "step 4"], False),
        (["wrote runs/…/x in 3.1 s"], ["wrote runs/a/b/x in 12 ms"], True),
        (["wrote runs/…/x in 3.1 s"], ["wrote runs/a/b/y in 12 ms"], False),
        (["loss 0.25"], ["loss 0.26"], False),
        (["│ ranks │ 2 │"], ["│ ranks    │ 2      │", "└──────────┴────────┘"], True),
    ],
)
def test_only_what_varies_counts_for_nothing(shown: list[str], real: list[str], is_same: bool) -> None:
    assert (compare.difference(shown, real) == "") == is_same
