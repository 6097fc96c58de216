#!/bin/sh
find . -name '*.orig' -delete
rm -f notes.txt core
