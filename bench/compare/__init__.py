"""The parts of the comparison with the peers. Only the standard library, but for `peer_process` and `references`."""
