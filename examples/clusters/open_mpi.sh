#!/bin/bash
# Two hosts by Open MPI 5, without detection and without mpi4py. Tried with 5.0.11 on one machine.
#
# JAX_LOCAL_DEVICE_IDS is the GPU of each process; it also keeps JAX 0.12 from asking for mpi4py. Stop the run by SIGUSR1
# to mpirun, which hands it to all processes; after SIGTERM or Ctrl-C mpirun kills them within seconds. Without --prtemca
# (Open MPI 4: --mca orte_abort_on_non_zero_status 0) the first process that has stopped would take along others that
# still write. --bind-to none: two processes would otherwise get one core each.
mpirun --host 10.0.0.1,10.0.0.2 --map-by ppr:1:node --bind-to none --prtemca state_base_error_non_zero_exit 0 bash -c '
    cd /shared/fdg_jax
    export JAX_LOCAL_DEVICE_IDS=$OMPI_COMM_WORLD_LOCAL_RANK
    exec .venv/bin/python -m fdg_jax.experiments.cifar --K 2 --beta 0.5 --run-dir /shared/runs/two --resume auto \
        --coordinator 10.0.0.1:1234 --processes $OMPI_COMM_WORLD_SIZE --process-id $OMPI_COMM_WORLD_RANK'
