"""Each rank of a node gets its own device before MPI starts, unless the scheduler has seen to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcckpt.jobs.binding import bound, count_nvidia

pytestmark = pytest.mark.one_case


def devices(environ, n_nvidia=4):
    return [bound({**environ, "SLURM_LOCALID": str(rank)}, n_nvidia) for rank in range(4)]


def test_ranks_take_the_devices_of_the_node_in_order():
    assert [one["CUDA_VISIBLE_DEVICES"] for one in devices({})] == ["0", "1", "2", "3"]


def test_ranks_share_what_there_is_in_turn():
    assert [one["CUDA_VISIBLE_DEVICES"] for one in devices({}, n_nvidia=2)] == ["0", "1", "0", "1"]


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"])
def test_ranks_choose_among_what_the_scheduler_lets_the_job_see(variable):
    assert devices({variable: "5,7"})[:2] == [{variable: "5"}, {variable: "7"}]


def test_the_user_may_say_in_which_order():
    assert [one["CUDA_VISIBLE_DEVICES"] for one in devices({"HPCCKPT_GPUS": "3,2,1,0"})] == ["3", "2", "1", "0"]
    assert devices({"ZE_AFFINITY_MASK": "0,1", "HPCCKPT_GPUS": "0.0,0.1,1.0,1.1"})[3] == {"ZE_AFFINITY_MASK": "1.1"}


@pytest.mark.parametrize("order", [{}, {"HPCCKPT_GPUS": "3,2,1,0"}])
@pytest.mark.parametrize("environ", [{"CUDA_VISIBLE_DEVICES": "6"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_a_rank_that_sees_one_device_or_none_is_left_as_it_is(environ, order):
    assert devices({**environ, **order}) == [{}] * 4


@pytest.mark.parametrize(("visible", "taken"), [("0,1", "1010"), ("1,3,2", "3213"), ("4,5", "4545"), ("0,7", "0707")])
def test_an_order_is_one_of_what_the_job_sees(visible, taken):
    environ = {"CUDA_VISIBLE_DEVICES": visible, "HPCCKPT_GPUS": "3,2,1,0"}
    assert "".join(one["CUDA_VISIBLE_DEVICES"] for one in devices(environ)) == taken


def test_without_a_launcher_nothing_is_bound():
    assert bound({}, 4) == {}


def test_devices_are_counted_and_not_what_else_bears_their_name():
    assert count_nvidia(["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "null"]) == 2


def run(*words, **environ):
    command = [sys.executable, "-m", "hpcckpt.jobs.binding", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)


def test_it_becomes_the_command():
    ended = run("/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 75", CUDA_VISIBLE_DEVICES="4,5", PMI_LOCAL_RANK="1")
    assert (ended.returncode, ended.stdout) == (75, "5\n")


def test_a_command_that_is_not_there_is_named():
    ended = run("no-such-program", PATH="/usr/bin")
    assert ended.returncode == 127
    assert "'no-such-program' cannot be started" in ended.stderr
