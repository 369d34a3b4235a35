#!/bin/sh
# Makes .venv: a virtual environment with ortflash installed from this checkout (editable), its libraries built, and the
# tools for testing. Runs again in a second where nothing has changed; rebuilds only what has.
#
# Usage: scripts/setup_venv.sh [EXTRA...]     extras of pyproject.toml beside cpu and dev
# Environment: PYTHON (python3), CXX (the system's), ORTFLASH_CUDA and ORTFLASH_CUDA_ARCHITECTURES (CMakeLists.txt);
# ORTFLASH_INSTALL=wheel installs a wheel that is built into dist/ instead, which is what CI tests
set -eu
cd "$(dirname "$0")/.."
venv=.venv
python=${PYTHON:-python3}
install=${ORTFLASH_INSTALL:-editable}
extras=$(echo "cpu dev $*" | tr -s ' ' ',' | sed 's/,$//')

fail() {
  echo "ortflash: $1" >&2
  exit 1
}

command -v "$python" >/dev/null || fail "$python was not found: install Python 3.10 or newer, or set PYTHON to one."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version 2>&1) is too old: install Python 3.10 or newer, or set PYTHON to one."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$python has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)."
command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null ||
  fail "no C++ compiler was found: install one (Debian, Ubuntu: apt-get install g++), or set CXX."

# What the environment depends on. A checkout that was moved has a broken environment, so the folder is part of it.
stamp=$(
  {
    echo "$PWD $extras $install ${CXX:-} ${ORTFLASH_CUDA:-AUTO} ${ORTFLASH_CUDA_ARCHITECTURES:-}"
    "$python" --version
    cat pyproject.toml scripts/setup_venv.sh
  } | cksum
)
installed=$(cat $venv/.ortflash-stamp 2>/dev/null || true)

if [ "$stamp" = "$installed" ] && [ "$install" = wheel ]; then
  exit 0
elif [ "$stamp" = "$installed" ] && [ -d build/editable ]; then
  "$venv/bin/cmake" --build build/editable >build/setup.log 2>&1 || {
    cat build/setup.log >&2
    fail "the libraries do not build; the compiler's messages are above."
  }
  exit 0
fi

if ! "$venv/bin/python" -c "import sys; sys.exit(sys.prefix != '$PWD/$venv')" 2>/dev/null; then
  rm -rf $venv build/editable
  "$python" -m venv $venv
fi
pip="$venv/bin/python -m pip --disable-pip-version-check"
echo "ortflash: installing into $venv and building (some minutes the first time)"
$pip install -q "scikit-build-core>=0.11" "cmake>=3.24" "ninja>=1.11" "tomli>=2"
set -- -C cmake.define.ORTFLASH_WERROR=ON \
  -C cmake.define.ORTFLASH_CUDA="${ORTFLASH_CUDA:-AUTO}" \
  -C cmake.define.ORTFLASH_CUDA_ARCHITECTURES="${ORTFLASH_CUDA_ARCHITECTURES:-80-real;90a-real}"
PATH="$PWD/$venv/bin:$PATH"
if [ "$install" = wheel ]; then
  rm -rf dist
  $pip wheel -q --no-build-isolation --no-deps -w dist . "$@"
  $pip install -q --force-reinstall --no-deps dist/ortflash-*.whl
  $pip install -q "$(echo dist/ortflash-*.whl)[$extras]"
else
  $pip install -q --no-build-isolation -e ".[$extras]" "$@"
fi
echo "$stamp" >$venv/.ortflash-stamp
