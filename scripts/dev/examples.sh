#!/usr/bin/env bash
# Runs the examples at small settings, one after the other, with the output of each in build/examples; all run even if one
# fails.   examples.sh [NAME...]   (default: all that this stack can run; HPCCKPT_STACK=b takes stack B)
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
use_stack "${HPCCKPT_STACK:-a}"
[ -x "$VENV/bin/python" ] || die "no ${VENV##*/} yet: run scripts/dev/setup.sh $STACK first"
mpi_settings
cd "$ROOT"
OUT=$ROOT/build/examples/$STACK
rm -rf "$OUT"
mkdir -p "$OUT"
export TF_CPP_MIN_LOG_LEVEL=2 CUDA_VISIBLE_DEVICES='' PYTHONUNBUFFERED=1
WANTED=("$@")
failed=() ran=0

wanted() {
    local name
    [ "${#WANTED[@]}" != 0 ] || return 0
    for name in "${WANTED[@]}"; do [ "$name" != "$1" ] || return 0; done
    return 1
}

# example NAME COMMAND...
example() {
    local name=$1 t0=$SECONDS
    shift
    wanted "$name" || return 0
    ran=$((ran + 1))
    if timeout --kill-after=20 600 "$@" >"$OUT/$name.log" 2>&1 </dev/null; then
        say "$(printf '%-20s ok       %4d s   %s' "$name" $((SECONDS - t0)) "$(tail -n 1 "$OUT/$name.log" | cut -c1-60)")"
    else
        say "$(printf '%-20s FAILED   %4d s   see %s' "$name" $((SECONDS - t0)) "${OUT#"$ROOT"/}/$name.log")"
        failed+=("$name")
    fi
}

RUNS=$OUT/runs
example custom_loop python examples/custom_loop.py --directory "$RUNS/custom" --steps 60
example tf_custom_loop python examples/tf_custom_loop.py --run "$RUNS/tf" --steps 100
example tmci_lenet5 python examples/tmci_lenet5.py --limit 2000
example lenet5 "$HPCCKPT_MPIRUN" -n 2 python examples/lenet5.py --run "$RUNS/lenet5" --epochs 1 --limit 4000
example lms_mnist_session python examples/lms_mnist_session.py --steps 200 --graph "$RUNS/graph"
example lms_mnist_keras python examples/lms_mnist_keras.py --limit 4096 --save "$RUNS/keras"
example lms_large python examples/lms_large.py --image-size 64 --batch-size 4 --stats-csv "$RUNS/resnet.csv"
example lms_unet3d python examples/lms_large.py --network unet3d --image-size 32 --batch-size 1
if [ "$STACK" = a ]; then
    example lms_mnist_estimator python examples/lms_mnist_estimator.py --steps 60
    example lms_horovod "$HPCCKPT_MPIRUN" -n 2 python examples/lms_horovod.py --run "$RUNS/horovod" --epochs 1
fi
[ "$ran" != 0 ] || die "no example is called ${WANTED[*]} on stack $STACK"
[ "${#failed[@]}" = 0 ] || die "examples failed: ${failed[*]}"
