"""Trainings of random elements that are killed and resumed: whichever says ``exact`` ends with the same bits.

One case is one training, put together from the elements of ``tests/support/keras/training_elements.py``: layers,
loss, class of the model, callbacks, data, optimizer, options.  It is trained to its end twice, which has to give the
same bits; killed with SIGKILL within an epoch, once or twice; and resumed.  What it ends with, all variables of the
model, of its optimizer and of its training step, is compared.

Even cases have only elements of which everything can be saved: they have to be ``exact``.  Odd ones have one at least
of which that is not so: they have to be ``state``, with its reason.

``python tests/campaign/exact.py REPORT.json…`` prints how often each element was in a training that was called what.

All processes of a case are forked from one that has imported TensorFlow, and has not used it yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.campaign._common import Campaign, Case, Outcome

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

N_BATCHES = 30
EXACT = "share reported exact"


@dataclass(frozen=True)
class Ended:
    """How a process of a training ended: what it wrote, or by which signal it was killed."""

    told: dict[str, Any]
    signal: int


def prepare(scratch: Path) -> dict[str, Any]:
    """Import what all processes need, and return what elements there are; nothing of TensorFlow is used here."""
    warnings.simplefilter("ignore")  # what these libraries and elements warn of is no fault
    import keras  # noqa: F401 - for the processes that are forked
    import tensorflow as tf  # noqa: F401 - the same

    import hpcckpt.keras.callbacks.backup_and_restore  # noqa: F401 - the same

    ended = _in_child(scratch / "elements.json", _elements)
    return ended.told


def run(case: Case) -> Outcome:
    """Train, kill, resume and compare."""
    names = _drawn(case)
    known = case.prepared
    reasons = [known[name]["reason"] for name in names if known[name]["reason"]]
    every = case.rng.choice([1, 2, 3, 5])
    kills = sorted(case.rng.sample(range(12, N_BATCHES), case.rng.choice([1, 2])))
    about = f"{names}, saved every {every} batches, killed behind batches {kills}"
    straight = [_train(case.scratch / f"straight-{number}", names, every) for number in range(2)]
    for ended in straight:
        if ended.signal or "error" in ended.told:
            return Outcome("wrong", "a training failed", f"{about}\n{ended.told.get('error', ended.signal)}")
    if straight[0].told["sha256"] != straight[1].told["sha256"]:
        return Outcome("wrong", "trainings that cannot be repeated", about)
    level = straight[0].told["level"]
    for kill in kills:
        killed = _train(case.scratch / "run", names, every, kill)
        if killed.signal != signal.SIGKILL and "error" not in killed.told:
            return Outcome("wrong", "a training was not killed", f"{about}\n{killed}")
    resumed = _train(case.scratch / "run", names, every)
    if "compiles_again" in names and "error" in resumed.told:
        is_reported = level == "state" and "compiled again" in "; ".join(straight[0].told["reasons"])
        figures = {f"{name}: {EXACT}": 0.0 for name in names}
        text = f"{about}\n{resumed.told}"
        return Outcome("detected" if is_reported else "wrong", "not resumed, as reported", text, figures)
    if "error" in resumed.told or resumed.signal:
        return Outcome("wrong", "a run that was killed failed", f"{about}\n{resumed.told.get('error', resumed.signal)}")
    return _judge(names, reasons, straight[0].told, resumed.told, about)


def _judge(names: list[str], reasons: list[str], straight: Any, resumed: Any, about: str) -> Outcome:
    is_same = straight["sha256"] == resumed["sha256"]
    text = f"{about}\n{straight['level']} {straight['reasons']}\n{resumed['level']} {resumed['reasons']}"
    level = resumed["level"] if resumed["level"] == straight["level"] else "state"
    figures = {f"{name}: {EXACT}": float(level == "exact") for name in names}
    if not is_same and "exact" in (straight["level"], resumed["level"], resumed["began"]):
        different = [name for name, digest in straight["tensors"].items() if resumed["tensors"].get(name) != digest]
        return Outcome("wrong", "called exact and is not", f"{text}\n{different}", figures)
    if not reasons and level != "exact":
        return Outcome("wrong", "could be exact and is not", text, figures)
    missing = [reason for reason in reasons if not any(reason in one for one in resumed["reasons"])]
    if missing and "run_eagerly" not in names:  # which has one reason for all of Python
        return Outcome("wrong", "a reason was not given", f"{text}\n{missing}", figures)
    return Outcome("good", f"{level}, {'the same' if is_same else 'other'} bits", figures=figures)


# -- what is trained -----------------------------------------------------------------------------------


def _drawn(case: Case) -> list[str]:
    """Return the elements of a case: two that the issue of wrong claims names, each in turn, and some others."""
    known: dict[str, Any] = case.prepared
    is_exact = case.number % 2 == 0
    claimed = [name for name, one in known.items() if one["claimed"] and bool(one["reason"]) != is_exact]
    turn = case.number // 2
    chosen = [claimed[turn % len(claimed)]]
    second = [claimed[(turn + len(claimed) // 2 + more) % len(claimed)] for more in range(len(claimed))]
    chosen += [name for name in second if _go_together(chosen[0], name, known)][:1]
    pool = [name for name, one in known.items() if not (is_exact and one["reason"])]
    for part in ("layer", "layer", "loss", "model", "callback", "data", "optimizer", "options"):
        fitting = [name for name in pool if known[name]["part"] == part and name not in chosen]
        taken = {known[name]["part"] for name in chosen}
        if part in ("layer", "callback") or part not in taken:
            chosen += [case.rng.choice(fitting)] if fitting and case.rng.random() < 0.5 else []
    if _SETTING_THE_RATE & set(chosen) and "sgd_with_a_schedule" in chosen:
        chosen.remove("sgd_with_a_schedule")  # whose learning rate cannot be set
    if "compiled_by_xla" in chosen and not _suits_xla(chosen):
        chosen.remove("compiled_by_xla")
    return chosen


def _go_together(one: str, other: str, known: dict[str, Any]) -> bool:
    return one != other and (known[one]["part"] != known[other]["part"] or known[one]["part"] in ("layer", "callback"))


_SETTING_THE_RATE = {
    "callback_with_state_dict", "schedule_plateau_and_early_stopping", "schedule_that_counts_in_a_closure",
    "warm_up_counted_in_an_attribute",
}  # fmt: skip


def _suits_xla(names: list[str]) -> bool:
    return not {"numpy_generator_by_numpy_function", "stateful_lstm", "stateful_bidirectional_gru"} & set(names)


def _elements() -> dict[str, Any]:
    from tests.support.keras.training_elements import ELEMENTS

    return {name: {"part": one.part, "reason": one.reason, "claimed": one.is_claimed} for name, one in ELEMENTS.items()}


def _train(directory: Path, names: list[str], every: int, kill_at: int = 0) -> Ended:
    """Train in a new process, which is killed behind a batch of this process if that is wished."""
    result = directory.with_suffix(".json")
    return _in_child(result, lambda: _trained(directory, names, every, kill_at))


def _trained(directory: Path, names: list[str], every: int, kill_at: int) -> dict[str, Any]:
    import keras
    import numpy as np

    import hpcckpt as hc
    from hpcckpt.state.tree import flatten

    hc.enable_exact_resume(seed=7)
    from tests.support.keras import training_elements

    @hc.keras.stateless
    class Kill(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if kill_at and backup.step >= kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    backup = hc.keras.BackupAndRestore(directory, every_n_batches=every, delete_checkpoint=False, verbose=0)
    training_elements.fresh()
    model = training_elements.train(names, backup, Kill())
    arrays = {name: leaf.read() for name, leaf in flatten({"model": model}).tensors.items()}
    exactness = backup._backup._training.exactness  # type: ignore[union-attr]  # it has trained
    arrays |= {f"step/{name}": np.asarray(variable) for name, variable in exactness.variables.items()}
    digests = {
        name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for name, array in arrays.items()
    }
    return {
        "sha256": hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest(),
        "tensors": digests,
        "level": backup.level,
        "reasons": backup.reasons,
        "began": backup._backup.start.level,  # type: ignore[union-attr]  # the same
    }


def _in_child(result: Path, body: Any) -> Ended:
    """Run `body` in a forked process; return what it returned, or how it was killed."""
    child = os.fork()
    if child == 0:
        try:
            found = body()
        except BaseException:  # noqa: BLE001 - the parent reports it
            found = {"error": traceback.format_exc()[-3000:]}
        result.write_text(json.dumps(found), encoding="utf-8")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    told = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    result.unlink(missing_ok=True)
    return Ended(told, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


def reason_to_skip() -> str:
    """Say why it cannot be run here."""
    return "" if find_spec("tensorflow") else "TensorFlow is not installed"


CAMPAIGN = Campaign(
    "exact",
    "a training that is called exact ends with the same bits when it is killed and resumed, and whatever can be saved "
    "makes it so",
    60,
    run,
    prepare,
    timeout_s=600.0,
    in_memory=True,
    reason_to_skip=reason_to_skip,
)


def table(reports: list[Path]) -> str:
    """Return, as a page, for each element in how many trainings it was, and how many of these were called what."""
    counts: dict[str, list[int]] = {}
    for report in reports:
        for tally in json.loads(report.read_text(encoding="utf-8"))["campaigns"]:
            for name, figure in tally["figures"].items():
                found = counts.setdefault(name.removesuffix(f": {EXACT}"), [0, 0])
                found[0] += figure["count"]
                found[1] += round(figure["total"])
    lines = ["| element | trainings | `exact` | `state` |", "|---|---:|---:|---:|"]
    return "\n".join([*lines, *(f"| {name} | {n} | {k} | {n - k} |" for name, (n, k) in sorted(counts.items()))])


if __name__ == "__main__":
    print(table([Path(argument) for argument in sys.argv[1:]]))
