"""``hpcckpt jobscript``: a batch script, filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode


@click.command("jobscript", context_settings={"allow_interspersed_args": False})
@click.option("--scheduler", metavar="slurm|pbs|cobalt", help="The scheduler; by default that of --system.")
@click.option("--system", metavar="polaris|aurora|theta", help="A machine that is known, with its queues and nodes.")
@click.option("--nodes", metavar="N", help="How many nodes.")
@click.option("--ranks-per-node", metavar="N", help="By default one for each GPU.")
@click.option("--gpus-per-node", metavar="N", help="By default those that a node of the system has, else none.")
@click.option(
    "--cpus-per-rank", metavar="N", help="By default a node's cores divided by its ranks, if the system is known."
)
@click.option("--time", metavar="TIME", help="How long a job may take: 1:30:00, 2-12:00:00, 90m, 12h.")
@click.option("--account", metavar="NAME", help="Left out, it is given when the job is submitted.")
@click.option("--queue", metavar="NAME", help="By default one of the system that takes such jobs.")
@click.option("--partition", metavar="NAME", help="Slurm's word for --queue.")
@click.option("--qos", metavar="NAME", help="Slurm's quality of service, where a site has preemptible jobs by it.")
@click.option("--name", metavar="NAME", help="Of the job. By default that of the run directory.")
@click.option("--run", metavar="DIR", help="The run directory; what its saves have taken decides the lead time.")
@click.option("--scratch", metavar="DIR|auto", help="Node-local storage; 'auto': that of the system.")
@click.option("--filesystems", metavar="A:B", help="What a job at ALCF uses. By default those of the system.")
@click.option("--array", metavar="RANGE", help="Many jobs at once; {task} in DIR and COMMAND is the number of each.")
@click.option("--signal-lead", metavar="TIME", help="How long before its end a job is signalled to save and to stop.")
@click.option("--grace", metavar="TIME", help="What a preempted job is given: GraceTime of the partition or QOS.")
@click.option("--max-restarts", metavar="N", help="How often a job begins again. By default 20.")
@click.option("--setup", metavar="FILE", help="Sourced first: modules, an environment.")
@options.json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(*, is_json: bool, **asked: Any) -> int:
    """Print a batch script for Slurm, PBS or Cobalt.

    COMMAND is what every rank runs, without a launcher: hpcckpt train -c FILE --run DIR, or another program that
    exits with 75 when it has saved and is to be resumed. The script starts the ranks, forwards the signals that ask
    them to stop, and has the job put into the queue again.

    The job is signalled to save and to stop before its end: by twice the time of its longest save plus 30 s, at least a
    minute; 300 s if no save of the run was measured. Everything that is wrong is reported at once, with exit code 2.
    """
    from hpcckpt.jobs.jobscript import MAX_SIGNAL_S, JobscriptRequest, read_request
    from hpcckpt.jobs.jobscript_lead_time import Lead, choose_lead, describe_grace
    from hpcckpt.jobs.jobscript_template import script_of

    job = read_request(JobscriptRequest(**asked))
    given = Lead(job.lead_s, "--signal-lead says so") if job.lead_s is not None else None
    lead = given or choose_lead(job.run, job.seconds, MAX_SIGNAL_S if job.scheduler == "slurm" else None)
    grace, warnings = ("", ()) if job.grace_s is None else describe_grace(job.grace_s, lead)
    job = replace(job, warnings=(*job.warnings, *warnings))
    script = script_of(job, lead, _words(asked), grace)
    if is_json:
        document = {"scheduler": job.scheduler, "lead_seconds": lead.seconds, "lead_reason": lead.why}
        output.write_json({**document, "warnings": job.warnings, "script": script})
    else:
        click.echo(script, nl=False)
        for warning in job.warnings:
            output.log(f"hpcckpt: warning: {warning}")
    return ExitCode.OK


def _words(asked: Mapping[str, Any]) -> list[str]:
    """Return the words that ask for the same again."""
    given = {name.replace("_", "-"): value for name, value in asked.items() if value is not None and name != "command"}
    return [*(word for name, value in given.items() for word in (f"--{name}", value)), "--", *asked["command"]]
