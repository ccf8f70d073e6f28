#!/usr/bin/env bash
# Fuzzes the readers with atheris (coverage-guided) on a native part built with AddressSanitizer and UBSan.
#   fuzz.sh step [SECONDS]        made-up step directories, every checksum made to fit (default: 60 seconds)
#   fuzz.sh manifest [SECONDS]    texts of manifests
# The corpus is kept in build/fuzz, where the next run goes on; what broke a promise is there too, as crash-…
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
use_stack fuzz
"$ROOT/scripts/dev/setup.sh" fuzz
target=${1:?which: step or manifest}
place=$ROOT/build/fuzz/$target
mkdir -p "$place"
cd "$place"
preload=$("$VENV/bin/python" -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so
# Python leaks on purpose at its end; numpy must get NULL for what is too large, not be ended.
# The compiler aligns frames of 64-byte vectors as if stacks were never faked (GCC bug 110027).
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
LD_PRELOAD=$preload exec "$VENV/bin/python" "$ROOT/tests/format/fuzz/fuzz_readers.py" "$target" corpus \
    -max_total_time="${2:-60}" -timeout=20 -rss_limit_mb=4096 -max_len=8192 -len_control=0 -artifact_prefix="$place/" -print_final_stats=1
