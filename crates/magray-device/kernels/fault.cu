// A kernel that fails on purpose: writes to the address that it is given, or waits for ever for a word there.
// Only launched where a fault was planned.
extern "C" __global__ void fault(volatile int* address, int waits) {
    if (waits == 0) {
        *address = 1;
        return;
    }
    while (*address == 0) {
    }
}
