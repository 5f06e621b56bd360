"""Where the runs of a comparison are carried out: on this machine, on a Ray cluster, as Slurm jobs."""
