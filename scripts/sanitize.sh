#!/bin/sh
# Runs the tests of the core and of the op with libraries that AddressSanitizer and UndefinedBehaviorSanitizer watch.
# Needs .venv (setup_venv.sh) and GCC.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
PATH=$bin:$PATH
cmake -S . -B build/sanitize -G Ninja -DORTFLASH_SANITIZE=ON -DORTFLASH_CUDA=OFF -DPython3_EXECUTABLE="$bin/python" \
  -DCMAKE_CXX_COMPILER=g++ >build/sanitize.log
cmake --build build/sanitize >>build/sanitize.log || {
  cat build/sanitize.log >&2
  exit 1
}
# Python keeps memory until it ends, so leaks are not looked for here.
ORTFLASH_LIBRARY_DIR=$PWD/build/sanitize/lib ASAN_OPTIONS=detect_leaks=0 \
  LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
  "$bin/pytest" -q -n 2 -p no:cacheprovider tests/test_core.py tests/test_op.py \
  tests/test_gradients.py tests/test_dropout.py tests/test_op_gradient.py
