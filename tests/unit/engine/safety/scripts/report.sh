#!/bin/bash
# Counts lines, and says so.
total=0
while IFS= read -r -d '' file; do
  lines=$(wc -l < "$file")
  ((total += lines))
  [ "$lines" -gt 500 ] && echo "long: $file"
done < <(find . -name '*.py' -print0)
cat <<EOF
total: $total
mean: $((total / 10))
EOF
