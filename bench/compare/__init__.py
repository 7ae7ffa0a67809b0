"""The parts of the comparison with the peers. Only the standard library, but for `peer_process`, `gpu_torch` and `references`."""
