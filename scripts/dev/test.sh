#!/usr/bin/env bash
# Runs parts of the suite. All of them run even if one fails; a summary follows.
#   test.sh quick              what `make test` runs: every promise at its cheapest level, on stack A, in about 5 minutes
#   test.sh serial mpi b       what `make test-all` runs:
# serial: tests that need no ranks, or more than two or three; some start MPI jobs.
# mpi: what is tested with ranks, on 3 processes, some of it on 1 and 2.
# b: what holds for both stacks, on TensorFlow 2.21, Keras 3 and NumPy 2.
#   test.sh nightly            what `make test-nightly` runs: what `make test-all` leaves out, on both stacks (tests/levels.py)
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$ROOT"
# Under mpirun -n 3: what is tested with ranks in the packages of the engine, the conformance tests and the faults.
ENGINE=(tests/unit/{backends,checkpointer,preemption,restoring,rundir,saving,state,tiers})
MPI_TESTS=("${ENGINE[@]}" tests/conformance tests/faults)
# On two ranks, which are root and one other: sharding, agreement and errors by MPI. HDF5 packs in the same way on any number of ranks.
TWO_RANKS=(
    tests/unit/restoring/test_elastic.py tests/faults/test_faults.py
    tests/conformance/test_hdf5_mpio.py::TestMpioPacked::test_{every_dtype_comes_back_to_the_bit,a_state_may_grow_and_shrink}
    tests/conformance/test_hdf5_mpio.py::TestMpioPacked::test_{tensors_of_many_blocks_come_back,parts_can_be_read_by_name_and_box}
    tests/conformance/test_hdf5_mpio.py::TestMpioPacked::test_{scalars_and_empty_tensors_come_back,a_damaged_byte_is_found_and_named}
    tests/conformance/test_hdf5_mpio.py::TestMpioPacked::test_shards_are_read_by_any_number_of_ranks_cut_otherwise
    tests/conformance/test_hdf5_mpio.py::TestMpioPacked::test_values_of_each_rank_come_back_and_may_change_their_size
    tests/unit/checkpointer/test_round_trip.py::test_every_dtype_comes_back_bit_exact
    tests/unit/saving/test_async.py::test_what_changes_after_save_does_not_reach_the_checkpoint
    tests/unit/saving/test_ranks_differ.py::test_{ranks_with_different_trees_are_told_who_and_what,an_mpi4py_communicator_is_duplicated}
    tests/unit/saving/test_ranks_differ.py::test_without_a_communicator_all_ranks_of_the_launch_save_together
    tests/unit/preemption/test_stop.py::test_all_ranks_stop_at_one_step_soon_after_one_was_asked
)
# One rank under MPI is much like one without.
ONE_RANK=(
    tests/unit/checkpointer/test_round_trip.py::test_every_dtype_comes_back_bit_exact
    tests/unit/restoring/test_elastic.py::test_every_rank_is_told_the_same_of_a_save
    tests/unit/saving/test_ranks_differ.py::test_without_a_communicator_all_ranks_of_the_launch_save_together
    tests/unit/preemption/test_stop.py::test_all_ranks_stop_at_one_step_soon_after_one_was_asked
    tests/conformance/test_hdf5_mpio.py::TestMpio::test_{every_dtype_comes_back_to_the_bit,each_step_holds_its_own_values}
)
# Of the promises, stack B runs those in which NumPy 2, Keras 3, TensorFlow 2.21 or another h5py could tell.
B_TESTS=(
    tests/unit/test_imports.py tests/unit/native/test_{dlpack,nonfinite,tfinfo,views}.py
    tests/unit/native/test_tf_ops.py::test_{a_name_says_what_a_library_is_made_for,set_up_has_built_the_ops_for_the_tensorflow_that_is_installed}
    tests/unit/backends/test_{hdf5_files,safetensors}.py tests/unit/checkpointer/test_round_trip.py
    tests/unit/restoring/test_scalars.py
    tests/conformance/test_hdf5_suite.py::TestDirect::test_{every_dtype_comes_back_to_the_bit,any_memory_layout_can_be_saved}
    tests/conformance/test_hdf5_suite.py::TestDirect::test_{names_are_free_text,scalars_and_empty_tensors_come_back}
    tests/format/{test_golden,test_hdf5_golden}.py tests/format/fuzz/test_found.py
    tests/frameworks/keras/test_{exact_resume,exactness,examples,holding,names,pipelines,preprocessing,state,unbuilt}.py
    tests/frameworks/keras/test_backup_and_restore.py::test_{a_run_killed_between_epochs_ends_as_if_never_killed,the_train_counter_goes_on}
    tests/frameworks/keras/test_backup_and_restore.py::test_with_a_pipeline_with_a_position_a_kill_within_an_epoch_changes_nothing
    tests/frameworks/keras/test_backup_options.py::test_where_all_is_deterministic_the_level_is_exact
    tests/frameworks/keras/test_checkpoint_files.py::test_{the_files_own_reader_opens_what_is_saved,a_path_is_accepted_or_refused_as_keras_does}
    tests/frameworks/keras/test_checkpoint_files.py::test_{options_with_a_keras_file_are,another_directory_at_that_path_is}_refused_in_keras_words
    tests/frameworks/keras/test_checkpoint_files.py::test_an_optimizer_that_horovod_wraps_is_that_of_keras_in_the_file
    tests/frameworks/keras/test_model_checkpoint.py::test_{all_of_keras_options_are_there_in_keras_order,options_are_those_of_keras_2}
    tests/frameworks/keras/test_model_checkpoint.py::test_{monitor_and_mode_choose_what_is_best,verbose_says_what_keras_says}
    tests/frameworks/keras/test_model_checkpoint.py::test_{a_metric_that_is_missing_is_treated_as_keras_does,save_freq_counts_epochs_or_batches}
    tests/frameworks/keras/test_model_checkpoint.py::test_save_weights_only_leaves_out_what_the_model_is_built_from
    tests/frameworks/keras/test_model_checkpoint.py::test_load_weights_on_restart_is_keras_2s_old_way_to_go_on
    tests/frameworks/keras/test_model_checkpoint.py::test_the_tutorials_code_runs_after_changing_one_import
    tests/frameworks/tensorflow/test_{tracking,custom_loop}.py
    tests/frameworks/tensorflow/test_manager.py::test_{it_does_what_tensorflows_does,it_refuses_what_tensorflows_refuses}
    tests/frameworks/tensorflow/test_manager.py::test_it_takes_tensorflows_arguments_by_their_names_and_places
    tests/frameworks/tmci/test_{calls,weights}.py
    tests/frameworks/lms/test_{equality,importers,keras_path,pass}.py
    tests/frameworks/lms/test_session.py::test_the_hook_edits_the_graph_of_a_monitored_session
    tests/frameworks/train/config/test_allow_list.py tests/frameworks/train/parts/test_models.py
    tests/frameworks/train/run/test_environment.py::test_it_trains_what_a_script_with_keras_alone_would_to_the_bit
    tests/frameworks/train/run/test_killed.py::test_two_ranks_that_are_killed_at_two_of_these_places_end_with_the_same_bits
    tests/unit/tools/convert/test_{code,round_trips,same_model,stock_files}.py
)
# Limits in seconds, in addition to pytest's own time-out per test, for what hangs outside a test.
QUICK_S=1800 SERIAL_S=3900 MPI_S=600 B_S=1800 NIGHTLY_S=14400
# One test more at a time than there are cores, for some always wait (for Slurm, for a disk, for a process to end); up to
# four: MPI jobs and thread pools of their own are among them.
WORKERS=$(($(nproc 2>/dev/null || echo 1) + 1))
[ "$WORKERS" -le 4 ] || WORKERS=4
IN_PARALLEL=(-n "$WORKERS" --dist worksteal)
PARTS=("$@")
[ $# -gt 0 ] || PARTS=(quick)
for name in "${PARTS[@]}"; do
    case $name in quick | serial | mpi | b | nightly) ;; *) die "no part '$name': one of quick, serial, mpi, b, nightly" ;; esac
done
RESULTS=$ROOT/build/logs/test
rm -rf "$RESULTS"
mkdir -p "$RESULTS"
trap 'exit 130' INT # Ctrl-C ends all parts, not only the one that runs
# The tests themselves read and write UTF-8; what they start has the caller's locale (see tests/support/caller.py).
export PYTHONUTF8=1
# Blanks are too much for LD_PRELOAD, a long name for the sockets of MPI.
export TMPDIR=${TMPDIR:-/tmp}
if [[ $TMPDIR == *[[:space:]]* || ${#TMPDIR} -gt 60 || ! -w $TMPDIR ]]; then TMPDIR=/tmp; fi
# The closing lines are read below, and mpirun's pseudo-terminal would colour them.
export PY_COLORS=0

summary=() failed=0
# part NAME COMMAND...: run it, keep its output, remember how it ended.
part() {
    local name=$1 t0=$SECONDS rc=0 log closing
    shift
    log=$RESULTS/${name//[^a-z0-9]/-}
    say "== $name"
    "$@" 2>&1 </dev/null | tee "$log.log" || rc=$?
    closing=$(closing_line "$log.log")
    if [ "$rc" != 0 ]; then
        failed=1
        if [ -z "$closing" ]; then closing="1 failed (the job itself)"; fi
    fi
    summary+=("$(printf '%-12s %-24s %4d s   %s' "$name" "$(verdict "$rc")" $((SECONDS - t0)) "$closing")")
}

verdict() {
    case $1 in
        0) echo ok ;;
        5) echo "FAILED: ran no test" ;;
        124 | 137) echo "FAILED: out of time" ;;
        *) echo "FAILED ($1)" ;;
    esac
}

closing_line() { sed -nE 's/^=+ (([0-9]+ ([a-z]+ )?[a-z]+,? ?)+in [^=]*[^= ]) *=+$/\1/p' "$1" | tail -n 1; }

# Over all parts, as one line; an error while a test is set up counts as a failure.
total() {
    printf '%s\n' "${summary[@]}" | { grep -oE '[0-9]+ (passed|failed|errors?|skipped)' || true; } |
        awk '{n[$2] += $1} END {printf "total: %d passed, %d failed, %d skipped\n", n["passed"], n["failed"] + n["error"] + n["errors"], n["skipped"]}'
}

# The tests that failed, by name: the output of the part that holds them may be far above.
failures() {
    find "$RESULTS" -name '*.log' -exec grep -hoE '^(FAILED|ERROR|\[rank [0-9]+\]) [^ ]*\.py.*' {} + | cut -c1-300 | sort -u | head -n 40
}

existing() { local path; for path in "$@"; do if [ -e "${path%%::*}" ]; then echo "$path"; fi; done; }

pytest_under_mpi() { # ranks
    local logs=$RESULTS/ranks-$1 rc=0 tests=("${MPI_TESTS[@]}")
    [ "$1" != 1 ] || tests=("${ONE_RANK[@]}")
    [ "$1" != 2 ] || tests=("${TWO_RANKS[@]}")
    mkdir -p "$logs"
    timeout --foreground --kill-after=20 "$MPI_S" "$HPCCKPT_MPIRUN" -n "$1" scripts/dev/rank.sh "$logs" \
        python -m pytest --with-mpi -p no:cacheprovider "${tests[@]}" || rc=$?
    if [ "$rc" != 0 ]; then tail -n 40 "$logs"/rank-*.log 2>/dev/null || true; fi
    return "$rc"
}

on_stack() { # stack, command...
    local stack=$1
    shift
    # In a subshell: the two stacks must not see each other's PATH.
    (
        use_stack "$stack"
        scripts/dev/setup.sh "$stack" || exit # spelled out: where the caller looks at the outcome, `set -e` is off
        mpi_settings
        "$@"
    )
}

# In memory where there is room: thousands of tests wait for a disk otherwise. Those of the other parts are on the disk.
in_memory() { # pytest_in_parallel's arguments
    PLACE=$(mktemp -d -p "$(roomy /dev/shm || echo "$TMPDIR")" hpcckpt-XXXXXX) || exit
    trap 'rm -rf "$PLACE"' EXIT
    pytest_in_parallel "$@" --basetemp "$PLACE/t"
}

# roomy DIRECTORY: print its name if 4 GiB are free there.
roomy() { [ -w "$1" ] && [ "$(df -k --output=avail "$1" | tail -n 1)" -ge $((4 << 20)) ] && echo "$1"; }

# pytest_in_parallel SECONDS ARGUMENT...
pytest_in_parallel() {
    local limit=$1
    shift
    timeout --foreground --kill-after=20 "$limit" python -m pytest "${IN_PARALLEL[@]}" "$@"
}

# shellcheck disable=SC2046 # paths without blanks
stack_b() { pytest_in_parallel "$1" -m "$2" $(existing "${B_TESTS[@]}"); }

for name in "${PARTS[@]}"; do
    case $name in
        quick) HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-quick} part quick on_stack a in_memory "$QUICK_S" -m "not slow" tests ;;
        serial) HPCCKPT_TEST_TOOLS=1 part serial on_stack a in_memory "$SERIAL_S" -m "not under_mpi and not nightly" tests ;;
        mpi) for n in 1 2 3; do part "mpirun -n $n" on_stack a pytest_under_mpi "$n"; done ;;
        b) part "stack b" on_stack b stack_b "$B_S" "not nightly" ;;
        nightly)
            HPCCKPT_TEST_TOOLS=1 part nightly on_stack a in_memory "$NIGHTLY_S" -m "not under_mpi and nightly" tests
            part "nightly b" on_stack b stack_b "$NIGHTLY_S" nightly
            ;;
    esac
done

say ""
printf '== %s\n' "${summary[@]}"
total
if [ "$failed" != 0 ]; then
    failures || true
    die "tests failed; the whole output is in build/logs/test"
fi
