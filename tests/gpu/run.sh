#!/bin/sh
# `make gpu-test`: the tests that need an NVIDIA GPU, with this machine's own python3; installs nothing, needs no index.
#
# What the machine lacks may lie in .gpu/ (never committed): wheels/*.whl (PyCUDA and what it imports), onnxruntime-gpu
# as a tree at .gpu/ort, ONNX Runtime's headers at .gpu/headers. Arguments go to pytest, which runs twice: with workers
# where pytest-xdist is there, then by itself for the tests that watch the device's memory or the clock.
# Environment: PYTHON (python3), ORTFLASH_LIBRARY_DIR (a folder with built libraries; by default they are built here),
# WORKERS (how many at once; 12).
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}

fail() {
  echo "ortflash: $1" >&2
  exit 1
}

command -v nvidia-smi >/dev/null || fail "nvidia-smi was not found: these tests need a machine with an NVIDIA GPU."
scripts/source_tree.sh
PYTHONPATH=$PWD/build/tree${PYTHONPATH:+:$PYTHONPATH}
if ls .gpu/wheels/*.whl >/dev/null 2>&1; then
  mkdir -p build/gpu-site
  for wheel in .gpu/wheels/*.whl; do
    stamp=build/gpu-site/.$(basename "$wheel")
    [ -e "$stamp" ] || { "$python" -m zipfile -e "$wheel" build/gpu-site && touch "$stamp"; }
  done
  PYTHONPATH=$PYTHONPATH:$PWD/build/gpu-site
fi
[ -d .gpu/ort ] && PYTHONPATH=$PWD/.gpu/ort:$PYTHONPATH
export PYTHONPATH PYTHONSAFEPATH=1  # without it python -m puts this folder first, where ortflash lacks its graph_tools

if [ -z "${ORTFLASH_LIBRARY_DIR:-}" ]; then
  command -v nvcc >/dev/null || fail "nvcc was not found: install the CUDA toolkit, or set ORTFLASH_LIBRARY_DIR to a build."
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  [ "$capability" = 90 ] && capability=90a
  [ -d .gpu/headers ] && export ONNXRUNTIME_INCLUDE_DIR=$PWD/.gpu/headers
  cmake -S . -B build/gpu -G Ninja -DORTFLASH_CUDA=ON -DORTFLASH_CUDA_ARCHITECTURES="$capability-real" >build/gpu-build.log 2>&1 &&
    cmake --build build/gpu >>build/gpu-build.log 2>&1 || {
    tail -40 build/gpu-build.log >&2
    fail "the libraries do not build; the compiler's messages are above and in build/gpu-build.log."
  }
  ORTFLASH_LIBRARY_DIR=$(dirname "$(find "$PWD/build/gpu" -name libortflash_core.so | head -1)")
  for library in $(find "$PWD/build/gpu" -name 'libortflash_*.so' ! -path "$ORTFLASH_LIBRARY_DIR/*"); do
    ln -sf "$library" "$ORTFLASH_LIBRARY_DIR/"
  done
  export ORTFLASH_LIBRARY_DIR
fi

# run MARKS [ARGUMENT...]: one pass. That -k selects tests of the other pass alone is no failure.
run() {
  marks=$1
  shift
  code=0
  "$python" -m pytest -p no:benchmark -m "$marks" tests/gpu "$@" || code=$?
  case $code in
    0) ran=1 ;;
    5) ;;
    *) ran=1 failed=$code ;;
  esac
}
failed=0 ran=0
# Each worker's NumPy and PyTorch would take a thread a core.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"
if "$python" -c 'import xdist' 2>/dev/null; then
  run "gpu and not alone" -n "${WORKERS:-12}" "$@"
else
  run "gpu and not alone" "$@"
fi
run "gpu and alone" "$@"
[ $ran = 1 ] || fail "no test was run: PyCUDA is missing, or the arguments select none."
exit $failed
