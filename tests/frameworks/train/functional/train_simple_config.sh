#!/usr/bin/env bash
# A config file alone trains a model: comments in three styles, defaults for what it leaves out, checkpoints and logs behind.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/simple.hjson" <<'HJSON'
# one cycle
[
    {
        // real images
        "datasets": { "ktf.datasets.mnist.from_raw": { "batch_size": 50, "limit": 3000 } },
        /* a base of convolutions,
           and one head */
        "model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } }
        "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } },
        "metrics": [ { "tf.keras.metrics.SparseCategoricalAccuracy": { "name": "accuracy" } } ],
        "seed": 1
    }
]
HJSON

hpcckpt train -c "$work/simple.hjson" --print-config >"$work/effective.json"
grep -q 'keras.optimizers.Adam' "$work/effective.json"
grep -q 'KerasTrainLoop' "$work/effective.json"
[ ! -e "$work/run" ]

hpcckpt train -c "$work/simple.hjson" --check
[ ! -e "$work/run" ]

hpcckpt train -c "$work/simple.hjson" --run "$work/run"
hpcckpt verify "$work/run/cycle-1"
# 60 batches of 50; better than one in two after one epoch, where chance gives one in ten
hpcckpt info "$work/run/cycle-1" --json >"$work/info.json"
python3 - "$work/info.json" <<'PY'
import json, sys
info = json.load(open(sys.argv[1]))
assert info["step"] == 60, info["step"]
assert info["metrics"]["val_accuracy"] > 0.5, info["metrics"]
PY

# trained to its end, it has nothing left to do
hpcckpt train -c "$work/simple.hjson" --run "$work/run"
[ "$(hpcckpt info "$work/run/cycle-1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["step"])')" = 60 ]

echo "*********** Passed ***********"
