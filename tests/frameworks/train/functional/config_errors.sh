#!/usr/bin/env bash
# A config that is wrong is refused before anything is built: code 2, the place, the nearest name, and no traceback.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DATASETS='"datasets": { "ktf.datasets.mnist.from_raw": { "limit": 100 } }'
MODEL='"model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } }'
LOSS='"loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } }'

# refused CONFIG WORD...: the config is refused, and the message has all the words in it.
refused() {
    local code=0 word
    printf '%s\n' "$1" >"$work/config.hjson"
    hpcckpt train -c "$work/config.hjson" --run "$work/run" >"$work/out" 2>&1 || code=$?
    if [ "$code" != 2 ]; then cat "$work/out"; echo "exit code $code for: $1"; exit 1; fi
    if grep -q Traceback "$work/out"; then cat "$work/out"; echo "a traceback for: $1"; exit 1; fi
    [ ! -e "$work/run" ]
    shift
    for word in "$@"; do
        grep -qF -- "$word" "$work/out" || { cat "$work/out"; echo "no '$word' in that"; exit 1; }
    done
}

refused "[ { $DATASETS, $MODEL, $LOSS, \"optimiser\": { \"tf.keras.optimizers.Adam\": {} } } ]" '[0].optimiser' 'optimizer'
refused "[ { $DATASETS, $MODEL, $LOSS, \"optimizer\": { \"tf.keras.optimizers.Adan\": {} } } ]" '[0].optimizer' 'Adan' 'Adam'
refused "[ { $DATASETS, $LOSS, \"model\": { \"ktf.models.OneHeadNet\": { \"num_output\": 10 } } } ]" '[0].model' 'num_output' 'num_outputs'
refused "[ { $DATASETS, $MODEL, $LOSS }, { \"train_loop\": { \"ktf.train.KerasTrainLoop\": { \"num_epoch\": 2 } } } ]" '[1].train_loop' 'num_epochs'
refused "[ { $DATASETS, $LOSS, \"model\": { \"ktf.models.OneHeadNet\": {}, \"ktf.models.LeNet5\": {} } } ]" '[0].model'
refused "[ { $DATASETS, $MODEL, $LOSS, \"metrics\": [ { \"os.system\": { \"command\": \"touch $work/harm\" } } ] } ]" '[0].metrics[0]' 'os.system'
refused "[ { $DATASETS, $MODEL, $LOSS " 'config.hjson'
# all of them at once
refused "[ { $MODEL, $LOSS, \"sead\": 1, \"optimizer\": { \"tf.keras.optimizers.Adan\": {} } } ]" '[0].sead' 'seed' 'Adan' 'datasets'
[ ! -e "$work/harm" ]

code=0
hpcckpt train -c "$work/nowhere.hjson" --run "$work/run" >"$work/out" 2>&1 || code=$?
[ "$code" != 0 ]
grep -q 'nowhere.hjson' "$work/out"

echo "*********** Passed ***********"
