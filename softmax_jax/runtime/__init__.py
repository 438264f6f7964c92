"""The machine: devices, processes, files, checkpoints, command lines."""
