"""Moves a PyTorch module of a given size between host and GPU, and prints the times as one JSON object. Compares nothing.

Use: python -m compare.residency_torch DEVICE BYTES ROUNDS. The module has linear layers of bf16, as a large encoder has.
Times are milliseconds to the end of the move. DEVICE `cpu` is for rehearsals.
"""

import gc
import json
import sys
import time

import torch

HIDDEN, WIDE = 4096, 16384


def main():
    device, total, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found = {"bytes": 0, "torch": torch.__version__, "ms": {}}
    if device != "cpu":
        # The context is not part of any move.
        torch.zeros(1, device=device)
    for kind in ("pageable", "pinned"):
        module = make(total, kind == "pinned" and device != "cpu")
        found["bytes"] = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
        for _ in range(rounds):
            there, back = move(module, device, kind == "pinned")
            found["ms"].setdefault(f"to GPU from {kind} memory", []).append(there)
            if kind == "pageable":
                found["ms"].setdefault("back to the host", []).append(back)
        del module
        gc.collect()
    print(json.dumps(found))


def make(total, pinned):
    """Linear layers of this many bytes, in pageable or in pinned memory."""
    each = HIDDEN * WIDE * 2
    # Random starting values would take minutes and change nothing; the memory must have been touched, though.
    layers = [
        torch.nn.utils.skip_init(torch.nn.Linear, HIDDEN, WIDE, bias=False, dtype=torch.bfloat16)
        for _ in range(max(1, total // each))
    ]
    module = torch.nn.ModuleList(layers).requires_grad_(False)
    for layer in module:
        layer.weight.data.fill_(0.01)
    if pinned:
        for layer in module:
            layer.weight.data = layer.weight.data.pin_memory()
    return module


def move(module, device, pinned):
    """Milliseconds there and back."""
    host = [layer.weight.data for layer in module]
    there = timed(lambda: module.to(device, non_blocking=pinned), device)
    back = timed(lambda: module.to("cpu"), device)
    # The next round begins from the same memory, whatever kind it is.
    for layer, weight in zip(module, host):
        layer.weight.data = weight
    if device != "cpu":
        torch.cuda.empty_cache()
    return there, back


def timed(action, device):
    wait(device)
    start = time.perf_counter()
    action()
    wait(device)
    return (time.perf_counter() - start) * 1e3


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
