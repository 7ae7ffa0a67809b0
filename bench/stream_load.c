// Reads streams of an HTTP server of this machine (server-sent events) and prints what came of them as JSON. A thread waits
// for all connections, so that it takes little of the cores that the server computes on.
// Understands only answers in chunks, and looks at nothing in them but the status, where events begin and the usage at the end.
//
//   stream_load PORT PATH BODIES STREAMS ROUNDS [SLOW SLOW_BODIES SETTLE_SECONDS]
//
// BODIES is a file with a body a line. In each round STREAMS requests are sent at once, each on a connection that is open already;
// a round ends with its last stream. Rates are those of `magray bench generate`: of each stream the events from the moment when all
// have begun to its own last one, scaled to the tokens that the usage tells. SLOW connections more are opened before, send the bodies of SLOW_BODIES,
// and read 16 bytes each half second, into a buffer as small as the system lets it be.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS_MAX = 4096, BODIES_MAX = 65536, READ_BYTES = 1 << 16, TAIL = 64 };

typedef struct {
    char *bytes;
    size_t length;
} Text;

typedef struct {
    int fd, is_done, status, has_body;
    long events, tokens;
    // Its events when all streams had begun.
    long early;
    double sent_at, first_at, last_at, ended_at;
    // The end of what came before, in which an event may have begun.
    char tail[TAIL];
    size_t tail_length;
} Stream;

typedef struct {
    double *values;
    size_t count, room;
} Samples;

static Text bodies[BODIES_MAX], slow_bodies[BODIES_MAX];
static size_t body_count, slow_count;
static Stream streams[STREAMS_MAX];
static int port, slow_fds[STREAMS_MAX];
static Samples first_ms, gap_ms, rates;

static void fail(const char *what) {
    fprintf(stderr, "stream_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void record(Samples *samples, double value) {
    if (samples->count == samples->room) {
        samples->room = samples->room ? 2 * samples->room : 1024;
        samples->values = realloc(samples->values, samples->room * sizeof(double));
        if (!samples->values) fail("memory");
    }
    samples->values[samples->count++] = value;
}

static size_t read_bodies(const char *path, const char *route, Text *into) {
    FILE *file = fopen(path, "r");
    if (!file) fail(path);
    char *line = NULL;
    size_t room = 0, count = 0;
    ssize_t length;
    while ((length = getline(&line, &room, file)) > 0 && count < BODIES_MAX) {
        if (line[length - 1] == '\n') length--;
        Text *request = &into[count++];
        int all = asprintf(&request->bytes,
                           "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                           "content-length: %zd\r\n\r\n%.*s",
                           route, port, length, (int)length, line);
        if (all < 0) fail("memory");
        request->length = (size_t)all;
    }
    free(line);
    fclose(file);
    if (!count) {
        fprintf(stderr, "stream_load: %s holds no bodies\n", path);
        exit(1);
    }
    return count;
}

static int opened(int receive_bytes) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    if (receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_all(int fd, Text text) {
    for (size_t sent = 0; sent < text.length;) {
        ssize_t count = send(fd, text.bytes + sent, text.length - sent, MSG_NOSIGNAL);
        if (count < 0) fail("send");
        sent += (size_t)count;
    }
}

// Looks through what came, behind the end of what came before.
static void look(Stream *stream, const char *bytes, size_t length, double moment) {
    static char text[READ_BYTES + TAIL + 1];
    memcpy(text, stream->tail, stream->tail_length);
    memcpy(text + stream->tail_length, bytes, length);
    size_t all = stream->tail_length + length, seen = 0;
    text[all] = 0;
    if (!stream->status && sscanf(text, "HTTP/1.%*d %d", &stream->status) == 1 && stream->status != 200) stream->is_done = 1;
    for (char *at = text; (at = memmem(at, (size_t)(text + all - at), "data: {", 7)); at += 7) {
        seen = (size_t)(at + 7 - text);
        if (stream->events++) record(&gap_ms, (moment - stream->last_at) * 1e3);
        else stream->first_at = moment;
        stream->last_at = moment;
    }
    char *usage = strstr(text, "\"completion_tokens\":");
    if (usage) stream->tokens = atol(usage + 20);
    if (memmem(text, all, "data: [DONE]", 12)) {
        stream->is_done = 1;
        stream->ended_at = moment;
    }
    // What was counted is not looked at again.
    size_t kept = all - seen < TAIL ? all - seen : TAIL;
    memmove(stream->tail, text + all - kept, kept);
    stream->tail_length = kept;
}

// Reads a little of each slow stream.
static void read_slowly(int slow) {
    static double next;
    char bytes[16];
    if (now() < next) return;
    next = now() + 0.5;
    for (int n = 0; n < slow; n++) (void)!recv(slow_fds[n], bytes, sizeof bytes, MSG_DONTWAIT);
}

static void run_round(int count, int slow, size_t *next_body, long *tokens, int *failed) {
    static char bytes[READ_BYTES];
    int poll_fd = epoll_create1(0), left = count;
    if (poll_fd < 0) fail("epoll_create1");
    for (int n = 0; n < count; n++) {
        streams[n] = (Stream){.fd = opened(0)};
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (unsigned)n};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, streams[n].fd, &event)) fail("epoll_ctl");
    }
    for (int n = 0; n < count; n++) {
        streams[n].sent_at = now();
        send_all(streams[n].fd, bodies[(*next_body)++ % body_count]);
    }
    int begun = 0;
    double window_from = 0;
    struct epoll_event events[256];
    while (left) {
        int ready = epoll_wait(poll_fd, events, 256, 100);
        read_slowly(slow);
        for (int n = 0; n < ready; n++) {
            Stream *stream = &streams[events[n].data.u32];
            ssize_t length = recv(stream->fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (length < 0 && errno == EAGAIN) continue;
            double moment = now();
            long before = stream->events;
            if (length > 0) look(stream, bytes, (size_t)length, moment);
            if (!before && stream->events && ++begun == count) {
                window_from = moment;
                for (int other = 0; other < count; other++) streams[other].early = streams[other].events;
            }
            if (length > 0 && !stream->is_done) continue;
            *failed += stream->status != 200 || !stream->ended_at;
            epoll_ctl(poll_fd, EPOLL_CTL_DEL, stream->fd, NULL);
            close(stream->fd);
            left--;
        }
    }
    close(poll_fd);
    long all_events = 0, all_tokens = 0;
    for (int n = 0; n < count; n++) {
        if (streams[n].first_at) record(&first_ms, (streams[n].first_at - streams[n].sent_at) * 1e3);
        all_events += streams[n].events;
        all_tokens += streams[n].tokens;
    }
    *tokens += all_tokens;
    double rate = 0;
    int were_beside = window_from > 0 && all_events;
    for (int n = 0; n < count && were_beside; n++) {
        were_beside = streams[n].last_at > window_from;
        rate += (double)(streams[n].events - streams[n].early) / (streams[n].last_at - window_from);
    }
    if (were_beside) record(&rates, rate * (double)all_tokens / (double)all_events);
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double part(Samples *samples, double share) {
    if (!samples->count) return 0;
    qsort(samples->values, samples->count, sizeof(double), by_size);
    size_t at = (size_t)(share * (double)samples->count);
    return samples->values[at < samples->count ? at : samples->count - 1];
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 9) {
        fprintf(stderr, "usage: stream_load PORT PATH BODIES STREAMS ROUNDS [SLOW SLOW_BODIES SETTLE_SECONDS]\n");
        return 2;
    }
    port = atoi(argv[1]);
    body_count = read_bodies(argv[3], argv[2], bodies);
    int count = atoi(argv[4]), rounds = atoi(argv[5]), slow = argc == 9 ? atoi(argv[6]) : 0;
    if (count < 1 || count > STREAMS_MAX || rounds < 1 || slow < 0 || slow > STREAMS_MAX) {
        fprintf(stderr, "stream_load: 1 to %d streams, at least a round, up to %d slow ones\n", STREAMS_MAX, STREAMS_MAX);
        return 2;
    }
    if (slow) slow_count = read_bodies(argv[7], argv[2], slow_bodies);
    for (int n = 0; n < slow; n++) {
        slow_fds[n] = opened(2048);
        send_all(slow_fds[n], slow_bodies[(size_t)n % slow_count]);
    }
    for (double until = now() + (slow ? atof(argv[8]) : 0); now() < until; poll(NULL, 0, 50)) read_slowly(slow);
    long tokens = 0;
    int failed = 0;
    size_t next_body = 0;
    double began = now();
    for (int round = 0; round < rounds; round++) run_round(count, slow, &next_body, &tokens, &failed);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double busy = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("{\"tokens\": %ld, \"failed\": %d, \"tokens_per_s\": %.2f, \"first_token_ms\": %.4f, \"first_token_p99_ms\": %.4f, ",
           tokens, failed, part(&rates, 0.5), part(&first_ms, 0.5), part(&first_ms, 0.99));
    printf("\"gap_p50_ms\": %.4f, \"gap_p99_ms\": %.4f, \"gap_max_ms\": %.4f, \"busy\": %.3f}\n", part(&gap_ms, 0.5),
           part(&gap_ms, 0.99), part(&gap_ms, 1.0), busy / (now() - began));
    return 0;
}
