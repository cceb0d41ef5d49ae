# Every recipe only calls a script or a command.

default:
    @just --list

# install, speak to out/demo.wav
demo:
    scripts/demo

# install, lint, types, tests
test *args:
    scripts/test {{args}}

# some tests of every area, in less than 90 s on two idle cores; no lint, no types
test-fast *args:
    scripts/test fast {{args}}

# the properties with new random examples, 1,000 where a test names no number; other runs try the same ones every time
test-properties *args:
    scripts/test -m hypothesis --hypothesis-profile thorough {{args}}

# all tests on every Python that is installed; WITHOUT_TORCH=1 skips the tests that need torch
test-matrix *args:
    scripts/test-matrix {{args}}

# all tests, with the lines and branches that none of them ran
coverage *args:
    scripts/test --cov --cov-report=term-missing {{args}}

# build the documentation site into out/site
docs:
    scripts/docs

# run the server with the CPU voice on http://127.0.0.1:8080
serve *args:
    scripts/setup base
    .venv/bin/tts-worker serve --config configs/worker.yaml {{args}}

# measure control latency under load, first audio, and underruns of many sessions
bench:
    scripts/setup base
    .venv/bin/python -m tools.bench control
    .venv/bin/python -m tools.bench control --transport ws
    .venv/bin/tts-worker bench latency --engine cpu
    .venv/bin/python -m tools.bench load --engine cpu

# format, and fix what ruff can fix
fix:
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .

# one worker per GPU or MIG slice, registered in Redis, behind one address; Ctrl-C drains all
gpu-workers config="configs/cosyvoice3.yaml" *args:
    .venv/bin/tts-worker up --gpus all --config {{config}} {{args}}

# run Ray Serve replicas behind http://127.0.0.1:8080
ray *args:
    .venv/bin/python -m pip install --quiet -c constraints.txt -e ./packages/tts-worker-client -e ".[ray]"
    .venv/bin/tts-worker serve --ray --config configs/ray.yaml {{args}}

# run Redis and a CPU worker in containers; `just compose --profile gpu` adds CosyVoice
compose *args:
    docker compose {{args}} up --build
