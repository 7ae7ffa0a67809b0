/* The program `magray` of a wheel: runs what the library beside it has, so that a wheel has one engine for the program and for Python.
   Does what the runtime of Rust does before `main`, and nothing else. */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the folder of this file. */
static const char LIBRARY[] = "../_magray.abi3.so";
/* The exit code of a fault of magray itself. */
enum { INTERNAL = 1 };

int main(void) {
    char path[4096];
    /* Room for the name of the library after the folder. */
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof LIBRARY);
    char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    if (slash == NULL || (size_t)length == sizeof path - sizeof LIBRARY) {
        fputs("magray: the folder of this program cannot be found\n", stderr);
        return INTERNAL;
    }
    memcpy(slash + 1, LIBRARY, sizeof LIBRARY);
    /* A file that is opened later must not become a stream that was closed. */
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++) {
        if (fcntl(stream, F_GETFD) == -1 && errno == EBADF && open("/dev/null", O_RDWR) == -1) {
            return INTERNAL;
        }
    }
    /* Who writes into a closed pipe gets an error. */
    signal(SIGPIPE, SIG_IGN);
    void *library = dlopen(path, RTLD_NOW);
    int (*run)(void) = library == NULL ? NULL : (int (*)(void))dlsym(library, "magray_main");
    if (run == NULL) {
        fprintf(stderr, "magray: %s\n", dlerror());
        return INTERNAL;
    }
    exit(run());
}
