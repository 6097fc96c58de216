#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"

VERSION=${1:-dev}
OUT=dist/$VERSION
log() {
  printf '%s\n' "$*" >&2
}

log "building $VERSION"
mkdir -p "$OUT"
for source in src/*.c; do
  gcc -c "$source" -o "$OUT/$(basename "$source" .c).o"
done
if [[ $VERSION != dev ]]; then
  tar czf "$OUT.tgz" -C dist "$VERSION"
fi
