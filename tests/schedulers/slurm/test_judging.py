"""What becomes of a job is decided by the exit code of its step, and by what is known besides."""

from __future__ import annotations

import pytest

from hpcckpt.jobs.child_process import StepResult
from hpcckpt.jobs.requeue_policy import JobCircumstances, decide
from hpcckpt.jobs.schedulers import NoScheduler, detect

pytestmark = pytest.mark.one_case

REQUEUE = ("scontrol", "requeue", "42")
ABOUT = JobCircumstances(max_restarts=3, left_s=300.0)
CHAINED = ABOUT._replace(chain="night")
CANCEL = ("scancel", "--state=PENDING", "--name=night")


def slurm(**more: str):
    return detect({"SLURM_JOB_ID": "42", **more})


def test_75_puts_the_job_into_the_queue_again():
    verdict = decide(StepResult(75, "", 1.0), ABOUT, slurm(SLURM_RESTART_COUNT="2"))
    assert (verdict.code, verdict.command) == (75, REQUEUE)
    assert "restart 3 of at most 3" in verdict.text


def test_the_number_of_restarts_is_bounded():
    verdict = decide(StepResult(75, "", 1.0), ABOUT, slurm(SLURM_RESTART_COUNT="3"))
    assert (verdict.code, verdict.command) == (75, ())
    assert "--max-restarts 3" in verdict.text


@pytest.mark.parametrize("code", [1, 2, 74, 76, 137])
def test_any_other_code_is_a_failure_and_ends_the_chain(code):
    assert decide(StepResult(code, "SIGUSR1", 1.0), ABOUT, slurm())[1:] == (code, ())
    assert decide(StepResult(code, "", 1.0), CHAINED, slurm())[1:] == (code, CANCEL)


@pytest.mark.parametrize(("asked_by", "is_told"), [("SIGUSR1", True), ("", False)])
def test_a_step_that_a_warning_has_killed_is_told_to_catch_it(asked_by, is_told):
    assert ("which it must catch" in decide(StepResult(138, asked_by, 1.0), ABOUT, slurm()).text) is is_told


def test_0_is_done_and_ends_the_chain():
    assert decide(StepResult(0, "SIGUSR1", 1.0), ABOUT, slurm())[1:] == (0, ())
    assert decide(StepResult(0, "", 1.0), CHAINED, slurm())[1:] == (0, CANCEL)


def test_a_job_of_a_chain_leaves_it_to_the_next_one():
    verdict = decide(StepResult(75, "SIGUSR1", 1.0), CHAINED, slurm())
    assert (verdict.code, verdict.command) == (75, ())


@pytest.mark.parametrize(("about", "ends"), [(ABOUT, ()), (CHAINED, CANCEL)])
def test_what_people_have_halted_stands_still(about, ends):
    verdict = decide(StepResult(75, "", 1.0), about._replace(is_halted=True), slurm())
    assert (verdict.code, verdict.command) == (75, ends)


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_job_that_slurm_has_ended_is_neither_done_nor_failed_and_its_chain_goes_on(code):
    verdict = decide(StepResult(code, "", 1.0), CHAINED._replace(is_taken=True), slurm())
    assert verdict.command == ()
    assert verdict.code not in {0, 75}


@pytest.mark.parametrize("asked_by", ["", "SIGTERM"])
@pytest.mark.parametrize(("is_taken", "code"), [(False, 75), (False, 143), (True, 75), (True, 0), (True, 143)])
def test_a_preempted_job_is_requeued_long_before_its_end(asked_by, is_taken, code):
    about = ABOUT._replace(left_s=3600.0, is_taken=is_taken, is_preempted=True)
    assert decide(StepResult(code, asked_by, 1.0), about, slurm()).command == REQUEUE
    assert decide(StepResult(code, asked_by, 1.0), about._replace(chain="night"), slurm()).command == ()
    assert decide(StepResult(code, asked_by, 1.0), about._replace(is_halted=True), slurm()).command == ()


def test_a_preempted_job_that_is_requeued_already_is_left_alone():
    about = ABOUT._replace(left_s=3600.0, is_taken=True, is_requeued=True)
    for code in (75, 143):
        verdict = decide(StepResult(code, "SIGTERM", 1.0), about, slurm())
        assert (verdict.code, verdict.command) == (code, ())
        assert "put it into the queue again" in verdict.text


@pytest.mark.parametrize(("left_s", "asked_by", "is_taken", "is_again"), [
    (300.0, "SIGTERM", False, False),  # where the scheduler cannot be asked, a TERM long before the end is no end
    (300.0, "SIGTERM", True, False),
    (300.0, "", True, False),
    (None, "SIGTERM", True, False),
    (None, "SIGTERM", False, True),
    (5.0, "SIGTERM", True, True),
    (-3.0, "SIGTERM", True, True),
    (300.0, "SIGUSR1", False, True),
])  # fmt: skip
def test_only_a_job_whose_time_was_up_goes_on_by_itself(left_s, asked_by, is_taken, is_again):
    about = ABOUT._replace(left_s=left_s, is_taken=is_taken)
    assert (decide(StepResult(75, asked_by, 1.0), about, slurm()).command == REQUEUE) is is_again


def test_without_a_scheduler_nobody_starts_it_again():
    verdict = decide(StepResult(75, "", 1.0), ABOUT, NoScheduler({}))
    assert (verdict.code, verdict.command) == (75, ())


def test_one_of_an_array_is_requeued_alone():
    scheduler = slurm(SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="2")
    assert decide(StepResult(75, "", 1.0), ABOUT, scheduler).command == ("scontrol", "requeue", "40_2")


def test_only_a_persons_own_jobs_of_a_chain_are_taken_out_of_the_queue():
    assert slurm(SLURM_JOB_USER="ada").end_chain("night") == (*CANCEL, "--user=ada")
