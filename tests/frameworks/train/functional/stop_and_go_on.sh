#!/usr/bin/env bash
# What a scheduler or a cluster does: a job on two ranks is told to stop by SIGTERM, saves, ends with 75, and goes on when it is
# started again.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1

cat >"$work/long.hjson" <<'HJSON'
[{
    datasets: { "ktf.datasets.mnist.from_raw": { batch_size: 10, limit: 4000 } }
    model: { "ktf.models.OneHeadNet": { num_outputs: 10 } }
    loss: { "tf.keras.losses.SparseCategoricalCrossentropy": { from_logits: true } }
    train_loop: { "ktf.train.KerasTrainLoop": { num_epochs: 1, num_valid_steps: 4 } }
    checkpoint: { every_n_batches: 10, max_to_keep: 1 }
    seed: 3
}]
HJSON
train=("$root/examples/requeue.sh" mpirun -n 2 hpcckpt train -c "$work/long.hjson" --run "$work/run")

"${train[@]}" >"$work/first" 2>&1 &
job=$!
# 200 steps of two ranks with 10 images each: the first checkpoint is far from the end
for ((n = 0; n < 6000; n++)); do
    if compgen -G "$work/run/cycle-1/step-*/manifest.json" >/dev/null; then break; fi
    kill -0 "$job" || { cat "$work/first"; exit 1; }
    sleep 0.02
done
kill -TERM "$job"
code=0
wait "$job" || code=$?
[ "$code" = 75 ] || { cat "$work/first"; echo "exit code $code"; exit 1; }
grep -q 'stopped step=' "$work/first"
stopped=$(hpcckpt info "$work/run/cycle-1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["step"])')
[ "$stopped" -lt 200 ]

"${train[@]}" >"$work/second" 2>&1 || { cat "$work/second"; exit 1; }
grep -q "resume step=$stopped .*level=exact" "$work/second" || { cat "$work/second"; exit 1; }
[ "$(hpcckpt info "$work/run/cycle-1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["step"])')" = 200 ]

echo "*********** Passed ***********"
