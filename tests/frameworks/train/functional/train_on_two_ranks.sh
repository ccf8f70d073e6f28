#!/usr/bin/env bash
# The same config file trains on two ranks, which share the data, and goes on with one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_orte_tmpdir_base=$work # another mpirun that ends would take away what this one has just made
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1

cat >"$work/two.hjson" <<'HJSON'
[{
    datasets: { "ktf.datasets.mnist.from_raw": { batch_size: 25, limit: 1000 } }
    model: { "ktf.models.LeNet5": {} }
    loss: { "tf.keras.losses.SparseCategoricalCrossentropy": { from_logits: true } }
    train_loop: { "ktf.train.KerasTrainLoop": { num_epochs: 1, num_valid_steps: 4 } }
    seed: 3
}]
HJSON

mpirun -n 2 hpcckpt train -c "$work/two.hjson" --run "$work/run" 2>&1 | tee "$work/output"
grep -q "level=exact" "$work/output"
if grep "level=state" "$work/output"; then exit 1; fi
hpcckpt info "$work/run/cycle-1" --json >"$work/info.json"
# 1000 images, 2 ranks, 25 images each: 20 steps
python3 - "$work/info.json" <<'PY'
import json, sys
info = json.load(open(sys.argv[1]))
assert info["step"] == 20, info["step"]
assert info["ranks"] == 2, info["ranks"]
PY

hpcckpt train -c "$work/two.hjson" --run "$work/run" --set '[0].train_loop.ktf.train.KerasTrainLoop.num_epochs=2'
hpcckpt info "$work/run/cycle-1" --json >"$work/info.json"
# one rank has 40 steps in an epoch
python3 - "$work/info.json" <<'PY'
import json, sys
info = json.load(open(sys.argv[1]))
assert info["step"] == 20 + 40, info["step"]
assert info["ranks"] == 1, info["ranks"]
PY

echo "*********** Passed ***********"
