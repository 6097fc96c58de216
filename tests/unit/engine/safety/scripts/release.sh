#!/bin/bash
set -e
bump() {
  local part=$1
  sed -i "s/^version = .*/version = \"$part\"/" pyproject.toml
}
bump "$(git describe --tags | cut -c2-)"
git commit -am "Release" && git tag -a v1 -m v1
git push origin main && git push --force origin v1
