# Every recipe calls the script or command that does the work; nothing lives only here.

default:
    @just --list

# install, speak to out/demo.wav
demo:
    scripts/demo

# install, lint, types, tests
test *args:
    scripts/test {{args}}

# the server with the CPU voice on http://127.0.0.1:8080
serve *args:
    scripts/setup base
    .venv/bin/tts-worker serve --config configs/worker.yaml {{args}}

# STOP, PAUSE and RESUME under load; first audio; sessions without a hole
bench:
    scripts/setup base
    .venv/bin/tts-worker bench control
    .venv/bin/tts-worker bench control --transport ws
    .venv/bin/tts-worker bench latency --engine cpu
    .venv/bin/tts-worker bench load --engine cpu

# format and mend what can be mended
fix:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .
