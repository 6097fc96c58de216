#!/bin/bash
fail=0
for tool in git jq curl; do
  if ! command -v "$tool" > /dev/null 2>&1; then
    echo "missing: $tool" >&2
    fail=1
  fi
done
if git diff --quiet && git diff --cached --quiet; then
  echo clean
else
  git status --short | head -20
fi
exit $fail
