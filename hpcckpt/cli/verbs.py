"""The table of the tool's own verbs.

A verb is added by one row here and one file beside this one; help, completion, hints for misspelt verbs, exit codes
and mpirun need nothing more.  It also gets a row and a section in ``docs/cli.md``, and a place in the list in
``README.md``.  Tests compare these with the table, and so they do with the summaries, which are here because
``hpcckpt --help`` loads no verb.

Arguments that verbs share are in `options`, printing in `output`, errors in `failures`.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK = "Look at checkpoints"
TAKE = "Take things out"
CHANGE = "Change a run directory"
TRAIN = "Train"
JOBS = "Jobs, and what became of them"
ENVIRONMENT = "This installation"
SECTIONS = (LOOK, TAKE, CHANGE, TRAIN, JOBS, ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Attributes
    ----------
    name, summary, section : str
        How ``hpcckpt --help`` shows it.
    target : str
        Where its command is: ``module:attribute``.
    is_parallel : bool
        Whether all ranks run it; otherwise only rank 0 does, and the others take over its exit code.
    """

    name: str
    target: str
    section: str
    summary: str
    is_parallel: bool = False


VERBS = (
    Verb("list", "hpcckpt.cli.list:command", LOOK, "List the checkpoints of a run."),
    Verb("info", "hpcckpt.cli.info:command", LOOK, "Show what one checkpoint is and where it comes from."),
    Verb("tensors", "hpcckpt.cli.tensors:command", LOOK, "List the tensors of a checkpoint."),
    Verb("verify", "hpcckpt.cli.verify:command", LOOK, "Check every byte of a checkpoint against its checksums."),
    Verb("verify-resume", "hpcckpt.cli.verify_resume:command", LOOK, "Check that a killed training ends the same."),
    Verb("diff", "hpcckpt.cli.diff:command", LOOK, "Compare two checkpoints, tensor by tensor."),
    Verb("restore", "hpcckpt.cli.restore:command", TAKE, "Write a checkpoint as one file for other programs."),
    Verb("convert", "hpcckpt.cli.convert:command", TAKE, "Convert a checkpoint to another format, or from one."),
    Verb("prune", "hpcckpt.cli.prune:command", CHANGE, "Remove old checkpoints and what killed jobs left."),
    Verb("rm", "hpcckpt.cli.rm:command", CHANGE, "Remove checkpoints from a run."),
    Verb("repair", "hpcckpt.cli.repair:command", CHANGE, "Rebuild lost or damaged manifests from the data files."),
    Verb("reshard", "hpcckpt.cli.reshard:command", CHANGE, "Rewrite a checkpoint as another number of ranks would."),
    Verb("copy", "hpcckpt.cli.copy:command", CHANGE, "Copy checkpoints to another run directory, verified.", True),
    Verb("pin", "hpcckpt.cli.pin:pin", CHANGE, "Keep checkpoints for ever, whatever retention says."),
    Verb("unpin", "hpcckpt.cli.pin:unpin", CHANGE, "Leave pinned checkpoints to retention again."),
    Verb("train", "hpcckpt.cli.train:command", TRAIN, "Train from a configuration file, on any number of ranks.", True),
    Verb("supervise", "hpcckpt.cli.supervise:command", JOBS, "Run a batch job's step, and requeue the job.", True),
    Verb("halt", "hpcckpt.cli.halt:command", JOBS, "Ask a running job to save and to stop."),
    Verb("watch", "hpcckpt.cli.watch:command", JOBS, "Show a run in progress."),
    Verb("report", "hpcckpt.cli.report:command", JOBS, "Write what became of a run as one HTML page."),
    Verb("advise", "hpcckpt.cli.advise:command", JOBS, "Recommend how often to save, and compare intervals."),
    Verb("jobscript", "hpcckpt.cli.jobscript:command", JOBS, "Print a batch script for Slurm, PBS or Cobalt."),
    Verb("doctor", "hpcckpt.cli.doctor:command", ENVIRONMENT,
         "Look for what is wrong, and say what to do about it.", True),
    Verb("plugin", "hpcckpt.cli.plugin:group", ENVIRONMENT, "Write a storage plugin in C, C++ or Python; check one."),
    Verb("completion", "hpcckpt.cli.completion:command", ENVIRONMENT, "Print the code for completion in a shell."),
    Verb("backends", "hpcckpt.cli.backends:command", ENVIRONMENT, "List the storage backends that are installed."),
)  # fmt: skip


MEANT = {
    "cat": "tensors", "check": "verify", "compare": "diff", "cp": "copy", "delete": "rm", "export": "restore",
    "ls": "list", "remove": "rm", "show": "info", "status": "watch", "stop": "halt",
}  # fmt: skip
"""What other tools call a verb."""


def find_verb(name: str) -> Verb | None:
    """Return the tool's own verb of this name, or ``None``."""
    return next((verb for verb in VERBS if verb.name == name), None)
