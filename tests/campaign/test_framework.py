"""The campaigns' own machinery: what hangs, dies or raises is counted, and parts add up."""

from __future__ import annotations

import pytest

from tests.campaign import _cli, _common, _report
from tests.campaign._common import Outcome, load_file
from tests.campaign._driver import BrokenCampaignError, run_cases
from tests.campaign._report import Tally

pytestmark = [pytest.mark.stack_b, pytest.mark.slow]

TOY = """
import os, signal, subprocess, time
from tests.campaign._common import Campaign, Case, Outcome

def prepare(scratch):
    (scratch / "x").write_text("prepared")
    return scratch / "x"

def run(case):
    assert case.prepared.read_text() == "prepared"
    assert list(case.scratch.iterdir()) == []
    (case.scratch / "rubbish").write_text("x")
    print("noise")
    if case.number == 3:
        subprocess.Popen(["sleep", "1000"])
        time.sleep(1000)
    if case.number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if case.number == 5:
        raise ValueError("raised in a case")
    if case.number == 6:
        return Outcome("lost", "loss", "it is gone")
    return Outcome("detected", "even" if case.number % 2 == 0 else "odd", figures={"random": case.rng.random()})

CAMPAIGN = Campaign("{name}", "toys do what they should", 12, run, prepare, timeout_s=8.0, jobs=2)
"""


@pytest.fixture
def toy(tmp_path, request):
    path = tmp_path / f"toy_{abs(hash(request.node.name)) % 10**8}.py"
    path.write_text(TOY.replace("{name}", path.stem), encoding="utf-8")
    return load_file(path)


def tally_of(toy, numbers, seed=1):
    tally = Tally.of(toy)
    run_cases(toy, seed, numbers, lambda n, o: tally.count(seed, n, o))
    tally.spans = [[seed, min(numbers), max(numbers) + 1]]
    return tally


def test_what_hangs_dies_raises_or_loses_is_counted_and_the_rest_runs(toy):
    tally = tally_of(toy, range(12))
    assert tally.verdicts == {"detected": 8, "hung": 1, "wrong": 2, "lost": 1}
    assert tally.kinds == {"even": 4, "odd": 4, "loss": 1}
    assert (tally.run, tally.n_failed, tally.is_broken) == (12, 4, True)
    texts = {failure["number"]: failure["text"] for failure in tally.failures}
    assert "no end after 8 s" in texts[3]
    assert "in run" in texts[3], "where it hangs"
    assert "ended with -9" in texts[4]
    assert "ValueError: raised in a case" in texts[5]
    assert texts[6] == "it is gone"
    page = _report.page([tally])
    assert f"| {toy.name} | 12 | 12 | 0 | 8 | 1 | 2 | 1 |" in page


def test_a_case_follows_from_seed_and_number_alone(toy):
    def figures(numbers, seed):
        found = {}
        run_cases(toy, seed, numbers, lambda n, o: found.update({n: o.figures}), jobs=1)
        return found

    whole = figures(range(7, 12), 1)
    assert figures([9], 1) == {9: whole[9]}
    assert figures([9], 2) != {9: whole[9]}


def test_parts_add_up_and_none_counts_twice(toy, tmp_path):
    parts = [tally_of(toy, range(3)), tally_of(toy, range(6, 9)), tally_of(toy, range(2), seed=2)]
    for number, part in enumerate(parts):
        _report.write(tmp_path / f"part-{number}", [part])
    read = [tally for number in range(3) for tally in _report.read(tmp_path / f"part-{number}.json")]
    (total,) = _report.merged(read)
    assert (total.run, total.verdicts) == (8, {"detected": 7, "lost": 1})
    assert total.figures["random"].count == 7
    with pytest.raises(ValueError, match="in two of the parts"):
        _report.merged([tally_of(toy, range(3)), tally_of(toy, range(2, 3))])


def test_a_campaign_that_cannot_be_prepared_is_broken_and_says_why(tmp_path):
    path = tmp_path / "toy_broken.py"
    path.write_text(
        TOY.replace("{name}", "toy_broken").replace("return scratch", "raise OSError('no toys'); return scratch"),
        encoding="utf-8",
    )
    with pytest.raises(BrokenCampaignError, match="no toys"):
        run_cases(load_file(path), 1, range(3), lambda n, o: None)


def test_the_exit_code_says_whether_anything_was_lost_wrong_or_hung(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_cli, "load", lambda name: toy)
    monkeypatch.setattr(_cli.signal, "signal", lambda *_: None)  # the handlers of this process are the suite's
    run = [toy.name, "--reports", str(tmp_path)]
    assert _cli.main([*run, "--count", "3"]) == 0
    assert _cli.main([*run, "--from", "6", "--count", "2"]) == 1
    assert _cli.main([*run, "--only", "5"]) == 1
    assert "ValueError: raised in a case" in capsys.readouterr().out
    parts = [str(path) for path in tmp_path.glob("part-*.json")]
    assert _cli.main(["--reports", str(tmp_path), "--merge", *parts]) == 1
    (total,) = _report.read(tmp_path / "report.json")
    assert (total.run, total.verdicts["lost"]) == (5, 1)


def test_programs_of_others_may_fail_without_failing_us(toy):
    import dataclasses

    tally = Tally.of(dataclasses.replace(toy, is_gate=False))
    tally.count(1, 0, Outcome("lost"))
    assert tally.n_failed == 1
    assert not tally.is_broken


def test_every_campaign_declares_itself():
    for name in _common.names():
        campaign = _common.load(name)
        assert campaign.full > 0
        assert campaign.promise
