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
    "exporting/test_load_model.py::test_it_needs_no_program_of_the_users": True,
    "exporting/test_stock_files.py::test_keras_own_file_becomes_a_checkpoint_and_one_again": True,
    "exporting/test_stock_files.py::test_keras_own_file_becomes_a_checkpoint_and_one_again[functional-h5]": False,
    "exporting/test_stock_files.py::test_keras_own_file_becomes_a_checkpoint_and_one_again[sequential-keras]": False,
    "exporting/test_stock_files.py::test_keras_own_file_becomes_a_checkpoint_and_one_again[sequential-tf]": False,
    "functional": True,
    "horovod_shell": True,
    "jobs/test_doors.py::test_a_rehearsal_on_a_laptop_shows_the_command": True,
    "jobs/test_doors.py::test_a_rehearsal_on_a_laptop_shows_the_command[train]": False,
    "jobs/test_jobscript.py::test_a_rehearsal_on_a_laptop_names_the_whole_command": True,
    "jobs/test_jobscript.py::test_a_rehearsal_on_a_laptop_names_the_whole_command[slurm]": False,
    "jobs/test_requeued.py": True,
    "keras/test_backup_and_restore.py::test_a_run_of_several_steps_per_execution_saves_at_the_boundaries": True,
    "keras/test_backup_and_restore.py::test_it_saves_after_epochs_and_every_n_batches": True,
    "keras/test_backup_and_restore.py::test_it_saves_after_epochs_and_every_n_batches[options2-steps2]": False,
    "keras/test_backup_and_restore.py::test_one_line_is_written_for_each_save_and_restore": True,
    "keras/test_backup_and_restore.py::test_the_next_fit_of_the_same_model_begins_where_it_is_told": True,
    "keras/test_backup_and_restore.py::test_what_is_due_behind_the_last_batch_is_saved_when_the_epoch_has_ended": True,
    "keras/test_backup_options.py::test_a_fork_from_a_step_of_model_checkpoint_begins_with_its_model": True,
    "keras/test_backup_options.py::test_killed_by_sigkill_amid_an_epoch_the_weights_end_with_the_same_sha_256": True,
    "keras/test_exact_resume.py::test_callbacks_metrics_and_random_streams_go_on_too": True,
    "keras/test_exact_resume.py::test_callbacks_metrics_and_random_streams_go_on_too[last in the list]": False,
    "keras/test_exact_resume.py::test_later_epochs_keep_their_order_where_all_data_had_been_read_ahead": True,
    "keras/test_exact_resume.py::test_the_order_of_the_next_epoch_is_the_same_for_a_run_killed_between_epochs": True,
    "keras/test_exact_resume.py::test_the_order_of_the_next_epoch_is_the_same_for_a_run_killed_between_epochs[pipeline_shuffled_twice]": False,
    "keras/test_exact_resume.py::test_whatever_the_data_is_a_run_that_is_killed_twice_ends_as_if_never_killed": True,
    "keras/test_exact_resume.py::test_whatever_the_data_is_a_run_that_is_killed_twice_ends_as_if_never_killed[pipeline]": False,
    "lms/test_cost.py::test_a_larger_budget_never_takes_longer": True,
    "lms/test_cost.py::test_the_same_plan_in_every_process": True,
    "lms/test_distance_in_sessions.py::test_losses_are_the_same": True,
    "lms/test_equality.py": True,
    "lms/test_keras_path.py::test_a_budget_that_no_plan_keeps_is_a_warning_and_training_goes_on": True,
    "lms/test_keras_path.py::test_a_filter_holds_in_the_pass_too": True,
    "lms/test_keras_path.py::test_a_first_step_that_takes_too_much_has_the_function_made_anew": True,
    "lms/test_keras_path.py::test_a_loaded_model_trains_with_lms_without_being_given_it_again": True,
    "lms/test_keras_path.py::test_a_model_for_xla_is_left_alone_and_the_remedy_said_once": True,
    "lms/test_keras_path.py::test_a_model_saved_by_keras_has_no_swaps": True,
    "lms/test_keras_path.py::test_a_second_fit_with_the_same_object_goes_on_with_the_plan": True,
    "lms/test_keras_path.py::test_after_an_error_the_next_training_is_free_of_it": True,
    "lms/test_keras_path.py::test_checkpoints_have_the_same_names_shapes_and_signature": True,
    "lms/test_keras_path.py::test_several_steps_in_one_call_are_inside_a_loop_and_that_is_said": True,
    "lms/test_keras_path.py::test_validation_in_fit_is_left_alone": True,
    "lms/test_keras_path.py::test_without_lms_nothing_is_planned_though_it_was_armed_before": True,
    "lms/test_random_graphs.py::test_ten_hash_seeds_give_one_plan": True,
    "lms/test_ranks_horovod.py": True,
    "lms/test_report_lms.py::test_the_picture_is_drawn_with_and_without_a_run_to_compare_with": True,
    "lms/test_tiers.py::test_what_is_killed_while_it_writes_leaves_no_file": True,
    "lms/test_tiers.py::test_what_leaves_comes_back_bit_for_bit": True,
    "lms/test_tiers.py::test_what_leaves_comes_back_bit_for_bit[True-host-then-file]": False,
    "mpi/test_demo.py": True,
    "mpi/test_hdf5.py::test_h5py_finds_every_tensor_under_its_name": True,
    "mpi/test_hdf5.py::test_it_is_read_without_ranks_and_verified": True,
    "mpi/test_hdf5.py::test_it_is_read_without_ranks_and_verified[direct]": False,
    "mpi/test_hdf5.py::test_killed_the_step_before_stands": True,
    "mpi/test_hdf5.py::test_saved_on_three_ranks_it_is_restored_to_the_bit": True,
    "mpi/test_hdf5.py::test_the_command_line_reads_it": True,
    "mpi/test_hdf5.py::test_the_manifest_names_the_driver": True,
    "mpi/test_hdf5.py::test_the_tools_of_hdf5_read_it": True,
    "mpi/test_hdf5.py::test_what_goes_wrong_amid_a_collective_write_is_told_to_all_ranks": True,
    "mpi/test_killed.py::test_a_job_killed_in_its_first_save_leaves_nothing": True,
    "mpi/test_killed.py::test_killed_job_leaves_a_whole_newest_step": True,
    "mpi/test_killed.py::test_killed_job_leaves_a_whole_newest_step[2-4-manifest]": False,
    "mpi/test_killed.py::test_killed_overwrite_leaves_the_old_or_the_new_step": True,
    "mpi/test_killed.py::test_killed_restore_changes_nothing": True,
    "mpi/test_killed.py::test_killed_retention_loses_nothing_that_was_to_stay": True,
    "mpi/test_ranks.py::test_saved_on_n_ranks_restored_on_m_is_bit_exact": True,
    "mpi/test_ranks.py::test_saved_on_n_ranks_restored_on_m_is_bit_exact[2-3]": False,
    "mpi/test_ranks.py::test_saved_on_n_ranks_restored_on_m_is_bit_exact[3-1]": False,
    "mpi/test_requeue.py": True,
    "native/test_plugin_sanitized.py": True,
    "native/test_tf_ops.py::test_what_compiles_and_does_not_load_is_not_put_in_place": True,
    "packaging": True,
    "promises/test_hdf5_suite.py::TestPerRank::test_a_job_killed_at_any_phase_leaves_whole_steps_only": True,
    "promises/test_plugin_backend.py::TestPosix::test_a_job_killed_at_any_phase_leaves_whole_steps_only": True,
    "promises/test_repair.py::test_a_repair_that_is_killed_anywhere_can_be_repeated": True,
    "promises/test_tiers_kills.py::test_killed_at_a_phase_the_next_job_goes_on_from_a_whole_step": True,
    "promises/test_tiers_kills.py::test_killed_at_a_phase_the_next_job_goes_on_from_a_whole_step[2-copy-piece-0-1]": False,
    "promises/test_tiers_kills.py::test_killed_at_a_phase_the_next_job_goes_on_from_a_whole_step[2-drain-published-0-1]": False,
    "promises/test_tiers_kills.py::test_killed_at_any_instant_the_next_job_goes_on_from_a_whole_step": True,
    "reporting/test_page.py::test_a_browser_finds_no_fault": True,
    "reporting/test_page.py::test_a_screenshot_shows_its_colours_by_day_and_by_night": True,
    "slurm": True,
    "slurm/test_binding.py": False,
    "slurm/test_judging.py": False,
    "slurm/test_supervise.py": False,
    "tmci/test_ranks.py": True,
    "torch_shell/test_exact.py::test_killed_and_resumed_the_weights_are_those_of_a_run_that_never_was": True,
    "train_config/test_allow_list.py::test_checking_a_configuration_imports_nothing_that_it_names": True,
    "train_config/test_reference.py::test_its_example_of_mistakes_is_what_is_said": True,
    "train_config/test_train_verb.py::test_wrong_words_exit_with_2": True,
    "train_parts/test_configs.py": True,
    "train_parts/test_models.py::test_a_base_of_keras_own_that_gives_images_is_averaged": True,
    "train_parts/test_models.py::test_a_checkpoint_with_its_architecture_is_loaded_without_being_built_first": True,
    "train_parts/test_models.py::test_a_checkpoint_with_its_architecture_is_loaded_without_being_built_first[LeNet5]": False,
    "train_parts/test_models.py::test_a_config_is_plain_and_makes_the_same_model": True,
    "train_parts/test_models.py::test_a_config_is_plain_and_makes_the_same_model[OneHeadNet of SmallResNet]": False,
    "train_parts/test_models.py::test_a_frozen_base_is_the_same_to_the_bit_after_training": True,
    "train_parts/test_models.py::test_a_frozen_base_is_the_same_to_the_bit_after_training[batch]": False,
    "train_parts/test_models.py::test_a_program_that_imports_no_models_loads_them_without_being_told": True,
    "train_parts/test_models.py::test_keras_saves_a_model_in_its_own_file_and_loads_it_without_being_told_the_class": True,
    "train_parts/test_models.py::test_keras_saves_a_model_in_its_own_file_and_loads_it_without_being_told_the_class[SmallTransformer]": False,
    "train_parts/test_models.py::test_names_in_checkpoints_do_not_depend_on_what_was_built_before": True,
    "train_parts/test_models.py::test_names_in_checkpoints_do_not_depend_on_what_was_built_before[SmallConvNet]": False,
    "train_run": True,
    "train_run/test_custom_loop.py::test_a_tape_trains_as_fit_does": False,
    "train_run/test_differences.py": False,
    "train_run/test_environment.py::test_a_cycle_begins_with_the_last_weights_of_the_one_before": False,
    "train_run/test_environment.py::test_it_trains_what_a_script_with_keras_alone_would_to_the_bit": False,
    "train_run/test_reducing.py": False,
    "train_run/test_run_directory.py": False,
    "train_run/test_stopping_together.py": False,
    "train_run/test_submodels.py": False,
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
