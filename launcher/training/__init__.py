"""Inside a worker: process group, loop, data order, checkpoints. The only floor that imports torch."""
