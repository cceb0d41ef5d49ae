# The worker with CosyVoice on an NVIDIA GPU. PyTorch includes the CUDA libraries; the host needs a matching driver and
# the NVIDIA Container Toolkit. The image contains no weights: mount them at /app/models.
#   docker build -f docker/cuda.Dockerfile -t tts-worker:cuda .
#   docker run --gpus all -v ./models:/app/models:ro tts-worker:cuda
# Tags change. For a reproducible build, pin a digest: --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG EXTRAS=gpu,grpc,redis,ray,normalize,webrtc
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# What the container toolkit provides: the devices and the compute libraries.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Where compiled kernels are kept; mount a volume to keep them beyond the container. Triton builds its launchers with gcc.
ENV XDG_CACHE_HOME=/cache TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton
ENV CUDA_CACHE_PATH=/cache/cuda PYTORCH_KERNEL_CACHE_PATH=/cache/kernels
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /app

COPY scripts/voice.txt scripts/voice.txt
RUN pip install --no-deps --require-hashes -r scripts/voice.txt

COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY configs configs
COPY voicepacks voicepacks
COPY packages packages
COPY src src
RUN pip install -c constraints.txt ./packages/tts-worker-client ".[${EXTRAS}]"

RUN useradd --create-home --uid 10001 worker && install --directory --owner=worker /cache
USER 10001
EXPOSE 8080 7002
STOPSIGNAL SIGTERM
ENTRYPOINT ["tts-worker"]
CMD ["serve", "--config", "configs/cosyvoice3.yaml"]
