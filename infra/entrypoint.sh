#!/bin/sh
# Entry of every image: run what is asked for; with nothing asked for, say what the image is and check it.
set -eu

if [ "$#" -eq 0 ]; then
    exec coevo doctor --display plain
fi
exec "$@"
