"""What `make test` leaves out: the table of slow tests.

`make test` runs ``pytest -m "not slow"``: every promise at its cheapest level.  A test is slow if it has the mark
``slow``, if the table says so, or if it runs on more than `QUICK_COUNT` threads although it takes fewer as well.
A test that is new is quick, unless it is in a directory or file that is slow.  ``tests/PROMISES.md`` lists which
tests prove which promise.
"""

from __future__ import annotations

QUICK = "not slow"
QUICK_COUNT = 2
"""The largest number of threads as ranks that is quick."""

TABLE = {
    "campaign": True,
    "functional": True,
    "horovod_shell": True,
    "jobs/test_doors.py": True,
    "jobs/test_doors.py::test_a_rehearsal_on_a_laptop_shows_the_command[train]": False,
    "jobs/test_jobscript.py::test_a_rehearsal_on_a_laptop_names_the_whole_command": True,
    "jobs/test_jobscript.py::test_a_rehearsal_on_a_laptop_names_the_whole_command[slurm]": False,
    "keras/test_backup_and_restore.py": True,
    "keras/test_backup_and_restore.py::test_a_run_killed_between_epochs_ends_as_if_never_killed": False,
    "keras/test_backup_and_restore.py::test_it_restores_before_the_first_batch": False,
    "keras/test_backup_and_restore.py::test_options_that_make_no_sense_are_refused": False,
    "keras/test_backup_and_restore.py::test_with_a_pipeline_that_knows_its_position_a_kill_within_an_epoch_changes_nothing": False,
    "lms/test_cost.py::test_a_larger_budget_never_takes_longer": True,
    "lms/test_cost.py::test_the_same_plan_in_every_process": True,
    "lms/test_distance_in_sessions.py::test_losses_are_the_same": True,
    "lms/test_equality.py": True,
    "lms/test_equality.py::test_losses_and_weights_are_equal_to_the_bit_with_and_without[session]": False,
    "lms/test_keras_path.py": True,
    "lms/test_keras_path.py::test_a_saved_model_has_no_swaps": False,
    "lms/test_random_graphs.py::test_ten_hash_seeds_give_one_plan": True,
    "lms/test_ranks_horovod.py": True,
    "lms/test_report_lms.py::test_the_picture_is_drawn_with_and_without_a_run_to_compare_with": True,
    "lms/test_tiers.py::test_what_is_killed_while_it_writes_leaves_no_file": True,
    "packaging": True,
    "promises/test_hdf5_suite.py::TestPerRank::test_a_job_killed_at_any_phase_leaves_whole_steps_only": True,
    "promises/test_plugin_backend.py::TestPosix::test_a_job_killed_at_any_phase_leaves_whole_steps_only": True,
    "promises/test_repair.py::test_a_repair_that_is_killed_anywhere_can_be_repeated": True,
    "promises/test_tiers_kills.py": True,
    "promises/test_tiers_kills.py::test_killed_at_a_phase_the_next_job_goes_on_from_a_whole_step[2-copy-piece-0-1]": False,
    "promises/test_tiers_kills.py::test_killed_at_a_phase_the_next_job_goes_on_from_a_whole_step[2-drain-published-0-1]": False,
    "reporting/test_page.py::test_a_browser_finds_no_fault": True,
    "reporting/test_page.py::test_a_screenshot_shows_its_colours_by_day_and_by_night": True,
    "slurm": True,
    "tmci/test_ranks.py": True,
    "torch_shell/test_exact.py::test_killed_and_resumed_the_weights_are_those_of_a_run_that_never_was": True,
    "train_config/test_allow_list.py::test_checking_a_configuration_imports_nothing_that_it_names": True,
    "train_config/test_reference.py::test_its_example_of_mistakes_is_what_is_said": True,
    "train_config/test_train_verb.py::test_wrong_words_exit_with_2": True,
    "train_parts/test_configs.py": True,
    "train_run": True,
}
"""Directories, files, tests and cases below tests/: whether they are slow. The longest entry that fits decides."""


def is_slow(name: str) -> bool:
    """Return what the table says of a directory, file or test below tests/, named as pytest does. Pure."""
    while name and name not in TABLE:
        name = name.partition("[")[0] if "[" in name else name.rpartition("::" if "::" in name else "/")[0]
    return TABLE.get(name, False)


def has_quick(path: str) -> bool:
    """Return whether a directory or file below tests/ may have tests that are quick. Pure."""
    below = (f"{path}/", f"{path}::")
    return not is_slow(path) or any(not slow and name.startswith(below) for name, slow in TABLE.items())
