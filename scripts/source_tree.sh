#!/bin/sh
# Lays the package out as an installed one by links, in build/tree: for tools that read sources and know nothing of
# editable installs (mypy), and for machines where nothing gets installed (PYTHONPATH=build/tree).
set -eu
cd "$(dirname "$0")/.."
rm -rf build/tree
mkdir -p build/tree/ortflash
for file in "$PWD"/ortflash/* "$PWD"/graph_tools; do
  ln -s "$file" build/tree/ortflash/
done
