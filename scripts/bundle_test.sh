#!/usr/bin/env bash
# A bundle is self-contained. The check rejects a bundle that lacks a library, the launcher or a licence.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v patchelf >/dev/null || { echo "bundle_test: patchelf is missing: scripts/install --for package"; exit 77; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export PYTHONDONTWRITEBYTECODE=1

"$here/build" package shardmark
(cd "$here/.." && cpack --preset bundle -B "$place" >"$place/cpack.log") || { cat "$place/cpack.log"; exit 1; }
bundle=$(echo "$place"/shardmark-*.tar.xz)
"$here/packages/check_bundle.py" "$bundle"

# broken NAME COMMAND: the bundle after COMMAND, run inside its folder, must not pass the check.
broken() {
  mkdir "$place/$1"
  tar --extract --xz --file "$bundle" --directory "$place/$1"
  (cd "$place/$1"/shardmark-* && bash -c "$2")
  (cd "$place/$1" && tar --create --use-compress-program="xz -0" --file "$place/$1.tar.xz" shardmark-*)
  if "$here/packages/check_bundle.py" "$place/$1.tar.xz" >"$place/$1.out" 2>&1; then
    echo "bundle_test: $1: the check let it pass" >&2
    exit 1
  fi
  echo "bundle_test: $1: $(tail -n 1 "$place/$1.out")"
}

broken lacks_a_library 'rm lib/libmpich.so.12'
broken lacks_the_launcher 'rm bin/mpiexec'
broken lacks_the_recipes 'rm -r share/shardmark/recipes'
broken lacks_a_license 'rm share/doc/shardmark/licenses/libmpich12'
broken has_another_file 'echo >>LICENSE'
