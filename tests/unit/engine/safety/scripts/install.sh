#!/bin/sh
set -e
PREFIX=${PREFIX:-/usr/local}
case "$(uname -s)" in
  Linux) os=linux ;;
  Darwin) os=mac ;;
  *) echo "no $os" >&2; exit 1 ;;
esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
curl -fsSL "https://example.org/$os.tgz" | tar xz -C "$tmp"
sudo install -m 755 "$tmp/tool" "$PREFIX/bin/tool"
