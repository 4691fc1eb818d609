# The programs in a container. What is installed and built is said in tools/install_deps.sh and Makefile, and nowhere else.
#   docker build -t train_gpt2_fp8 .                                       --build-arg BASE=debian:12: the CPU engine alone
#   docker run --rm --gpus all --ipc=host -v "$PWD/data:/engine/data" -v "$PWD/runs:/engine/runs" \
#     -v "$PWD/checkpoints_fp8:/engine/checkpoints_fp8" train_gpt2_fp8 --use_fp8 --dataset fineweb-edu
ARG BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${BASE}
WORKDIR /engine

# On their own, so that packages are fetched again only when their list changes.
COPY tools/install_deps.sh tools/
RUN tools/install_deps.sh build

# NATIVE=OFF ARCHS=all: the image may run on another machine than the one that built it.
COPY . .
RUN make NATIVE=OFF ARCHS=all

ENTRYPOINT ["./train_gpt2_fp8"]
