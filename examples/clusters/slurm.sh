#!/bin/bash
# sbatch slurm.sh trains K=2 stages on two hosts. From the documentation of SLURM and JAX; not tried on a cluster.
#
# srun no longer takes --cpus-per-task from sbatch (since SLURM 22.05). --kill-on-bad-exit=0: the processes notice each
# other's end themselves, and one that has stopped (exit code 143) must not take another with it that still writes. With
# --gpus-per-task=1 a task may see its own GPU only, while JAX asks for the one with the task's number (JAX issues 23452,
# 28194): then add export JAX_LOCAL_DEVICE_IDS=0.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1     # K=2 stages, a task for each
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1       # as many as tasks per node; leave it out for CPUs
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300       # a checkpoint before the time is over
#SBATCH --requeue               # after a node has failed, or another job took its place
#SBATCH --open-mode=append

cd /shared/fdg_jax
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 \
    .venv/bin/python -m fdg_jax.experiments.cifar --K 2 --beta 0.5 \
    --run-dir /shared/runs/two --resume auto --coordinator auto
if [ $? -eq 143 ]; then         # stopped by SIGTERM, with a checkpoint
    scontrol requeue "$SLURM_JOB_ID"
fi
