// Puts load on an HTTP server of this machine and prints what came of it as JSON. A thread waits for many connections,
// so that it takes as little as possible of the cores that the server computes on; it stands for clients on other
// machines, so that it does not wait for those cores either where the system lets it (Linux from 6.12 on). THREADS share
// the connections and the rate (1 unless told): `busiest_thread` says which share of the time the busiest of them had work,
// near 1 the figures are those of this program rather than of the server.
// Understands only answers with a content-length, and looks at nothing in them but the status and Server-Timing.
//
//   http_load PORT PATH BODIES CONNECTIONS SECONDS WARMUP RATE SEED [THREADS]
//
// BODIES is a file with a body a line; they are sent in turn. RATE 0: a closed loop, in which each connection sends again
// as soon as it is answered, also where it was refused. Otherwise so many requests a second by a schedule (Poisson),
// whatever the answers do; their latency counts from the moment of the schedule, also while no connection is free. How
// long an answer took since its request was sent, and how late requests were sent, is told beside.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 64, CONNECTIONS_MAX = 4096, BODIES_MAX = 4096, HEAD_MAX = 16384, STATUSES = 600, SAMPLES_MAX = 1 << 22 };

typedef struct {
    char *bytes;
    size_t length;
} Text;

typedef struct {
    int fd, is_busy;
    Text sending;
    size_t sent;
    char head[HEAD_MAX];
    size_t head_length, body_left;
    int status, in_body;
    double due, sent_at, in_engine_ms;
} Connection;

typedef struct {
    float *ms;
    size_t count;
    uint64_t total;
} Samples;

// What all threads read.
static Text requests[BODIES_MAX];
static size_t request_count;
static double began, ends;
static int port, is_open;

// What came of it: `since_sent` counts from the sending rather than from the moment of the schedule; `engine_share` is,
// of each answer whose head tells (Server-Timing), the time within the server's engine as a share of the whole.
typedef struct {
    Samples by_status[STATUSES], since_sent[STATUSES], lateness, engine_share;
    uint64_t broken, in_time, unsent;
    double busiest;
} Outcome;

static Outcome whole;
static pthread_mutex_t whole_lock = PTHREAD_MUTEX_INITIALIZER;

// What each thread has for itself.
static _Thread_local Connection *connections;
static _Thread_local int connection_count, *idle, idle_count, poll_fd;
static _Thread_local size_t next_request;
static _Thread_local Outcome *mine;
static _Thread_local uint64_t seed;

static void fail(const char *what) {
    fprintf(stderr, "http_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// SplitMix64, above 0 and up to 1.
static double chance(void) {
    uint64_t z = (seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)(((z ^ (z >> 31)) >> 11) + 1) / 9007199254740992.0;
}

static void record(Samples *samples, double seconds) {
    samples->total++;
    if (!samples->ms && !(samples->ms = malloc(sizeof(float) * SAMPLES_MAX))) fail("memory");
    if (samples->count < SAMPLES_MAX) samples->ms[samples->count++] = (float)(seconds * 1e3);
}

static void read_bodies(const char *path, const char *route) {
    FILE *file = fopen(path, "r");
    if (!file) fail(path);
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, file)) > 0 && request_count < BODIES_MAX) {
        if (line[length - 1] == '\n') length--;
        Text *request = &requests[request_count++];
        int head = asprintf(&request->bytes,
                            "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                            "accept: application/json\r\ncontent-length: %zd\r\n\r\n%.*s",
                            route, port, length, (int)length, line);
        if (head < 0) fail("memory");
        request->length = (size_t)head;
    }
    free(line);
    fclose(file);
    if (!request_count) {
        fprintf(stderr, "http_load: %s holds no bodies\n", path);
        exit(1);
    }
}

static void watch(int at, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.u32 = (uint32_t)at};
    if (epoll_ctl(poll_fd, operation, connections[at].fd, &event)) fail("epoll_ctl");
}

static void open_connection(int at) {
    Connection *connection = &connections[at];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connection->fd < 0) fail("socket");
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    watch(at, EPOLL_CTL_ADD, EPOLLIN);
}

// Ends a connection and opens it anew; its request is lost.
static void reopen(int at) {
    if (connections[at].is_busy) mine->broken++;
    close(connections[at].fd);
    connections[at].is_busy = 0;
    open_connection(at);
}

static int send_more(int at) {
    Connection *connection = &connections[at];
    while (connection->sent < connection->sending.length) {
        ssize_t count = send(connection->fd, connection->sending.bytes + connection->sent,
                             connection->sending.length - connection->sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EAGAIN) {
            watch(at, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return 1;
        }
        if (count < 0) return 0;
        connection->sent += (size_t)count;
    }
    return 1;
}

static void send_request(int at, double due) {
    Connection *connection = &connections[at];
    connection->sending = requests[next_request++ % request_count];
    connection->sent = connection->head_length = connection->body_left = 0;
    connection->in_body = 0;
    connection->is_busy = 1;
    connection->due = due;
    connection->sent_at = now();
    if (connection->sent_at >= began) record(&mine->lateness, connection->sent_at - due);
    if (!send_more(at)) reopen(at);
}

static void answered(int at) {
    Connection *connection = &connections[at];
    double moment = now();
    connection->is_busy = 0;
    if (connection->due >= began && connection->due < ends) {
        record(&mine->by_status[connection->status], moment - connection->due);
        record(&mine->since_sent[connection->status], moment - connection->sent_at);
        if (connection->in_engine_ms > 0) record(&mine->engine_share, connection->in_engine_ms * 1e-6 / (moment - connection->sent_at));
    }
    if (moment >= began && moment < ends && connection->status == 200) mine->in_time++;
}

// Reads the head that has come; 0 where it is none that is understood.
static int read_head(Connection *connection, char *end) {
    *end = 0;
    char *length = strcasestr(connection->head, "\r\ncontent-length:");
    if (sscanf(connection->head, "HTTP/1.%*d %d", &connection->status) != 1 || !length) return 0;
    if (connection->status < 100 || connection->status >= STATUSES) return 0;
    connection->body_left = strtoull(length + 17, NULL, 10);
    char *timing = strcasestr(connection->head, "\r\nserver-timing:");
    char *queue = timing ? strstr(timing, "queue;dur=") : NULL, *compute = timing ? strstr(timing, "compute;dur=") : NULL;
    connection->in_engine_ms = queue && compute ? atof(queue + 10) + atof(compute + 12) : 0;
    connection->in_body = 1;
    return 1;
}

// Takes what has come. 1: the answer is whole, 0: not yet, -1: the connection is of no use any more.
static int receive(Connection *connection) {
    for (;;) {
        if (!connection->in_body) {
            ssize_t count = recv(connection->fd, connection->head + connection->head_length,
                                 HEAD_MAX - 1 - connection->head_length, 0);
            if (count < 0 && errno == EAGAIN) return 0;
            if (count <= 0) return -1;
            connection->head_length += (size_t)count;
            char *end = memmem(connection->head, connection->head_length, "\r\n\r\n", 4);
            if (!end && connection->head_length == HEAD_MAX - 1) return -1;
            if (!end) continue;
            size_t beyond = connection->head_length - (size_t)(end + 4 - connection->head);
            if (!read_head(connection, end) || beyond > connection->body_left) return -1;
            connection->body_left -= beyond;
        } else {
            // Thrown away where it is: nobody looks at it.
            ssize_t count = recv(connection->fd, NULL, connection->body_left, MSG_TRUNC);
            if (count < 0 && errno == EAGAIN) return 0;
            if (count <= 0) return -1;
            connection->body_left -= (size_t)count;
        }
        if (connection->in_body && !connection->body_left) return 1;
    }
}

static int by_size(const void *one, const void *other) {
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static void print_samples(Samples *samples) {
    qsort(samples->ms, samples->count, sizeof(float), by_size);
    const double shares[] = {0.5, 0.9, 0.99, 0.999, 1.0};
    const char *names[] = {"p50", "p90", "p99", "p999", "max"};
    double sum = 0;
    for (size_t n = 0; n < samples->count; n++) sum += (double)samples->ms[n];
    printf("{\"count\": %lu, \"mean_ms\": %.4f", samples->total, samples->count ? sum / (double)samples->count : 0.0);
    for (int n = 0; n < 5; n++) {
        size_t place = (size_t)ceil(shares[n] * (double)samples->count);
        printf(", \"%s_ms\": %.4f", names[n], samples->count ? (double)samples->ms[place ? place - 1 : 0] : 0.0);
    }
    printf("}");
}

static void print_statuses(Samples *all) {
    const char *comma = "";
    for (int status = 0; status < STATUSES; status++) {
        if (!all[status].total) continue;
        printf("%s\"%d\": ", comma, status);
        print_samples(&all[status]);
        comma = ", ";
    }
}

static void print_all(double seconds) {
    printf("{\"seconds\": %g, \"answered_in_time\": %lu, \"broken\": %lu, \"unsent\": %lu, \"busiest_thread\": %.3f, \"statuses\": {",
           seconds, whole.in_time, whole.broken, whole.unsent, whole.busiest);
    print_statuses(whole.by_status);
    printf("}, \"since_sent\": {");
    print_statuses(whole.since_sent);
    printf("}, \"lateness\": ");
    print_samples(&whole.lateness);
    if (whole.engine_share.count) {
        // Recorded in thousandths, as all samples are.
        printf(", \"engine_share\": ");
        print_samples(&whole.engine_share);
    }
    printf("}\n");
}

static void add_samples(Samples *to, Samples *from) {
    if (!from->total) return;
    if (!to->ms) {
        *to = *from;
        return;
    }
    size_t room = SAMPLES_MAX - to->count, taken = from->count < room ? from->count : room;
    memcpy(to->ms + to->count, from->ms, taken * sizeof(float));
    to->count += taken;
    to->total += from->total;
    free(from->ms);
}

static void add_mine(void) {
    pthread_mutex_lock(&whole_lock);
    for (int status = 0; status < STATUSES; status++) {
        add_samples(&whole.by_status[status], &mine->by_status[status]);
        add_samples(&whole.since_sent[status], &mine->since_sent[status]);
    }
    add_samples(&whole.lateness, &mine->lateness);
    add_samples(&whole.engine_share, &mine->engine_share);
    whole.broken += mine->broken;
    whole.in_time += mine->in_time;
    whole.unsent += mine->unsent;
    if (mine->busiest > whole.busiest) whole.busiest = mine->busiest;
    pthread_mutex_unlock(&whole_lock);
}

static double processor_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

// Asks for turns as short as they may be: then it has a core as soon as it has something to do.
static void take_short_turns(void) {
    // The kernel's `struct sched_attr`; its header and pthread.h define the same names.
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; } how = {0};
    how.size = sizeof how;
    how.runtime = 100000;
    syscall(SYS_sched_setattr, 0, &how, 0);
}

typedef struct {
    pthread_t thread;
    int connections, number;
    uint64_t seed;
    double rate;
} Part;

static void *put_load(void *argument) {
    Part *part = argument;
    connection_count = part->connections;
    seed = part->seed;
    next_request = (size_t)part->number * request_count / THREADS_MAX;
    connections = calloc((size_t)connection_count, sizeof *connections);
    idle = calloc((size_t)connection_count, sizeof *idle);
    mine = calloc(1, sizeof *mine);
    if (!connections || !idle || !mine) fail("memory");
    take_short_turns();
    poll_fd = epoll_create1(0);
    if (poll_fd < 0) fail("epoll_create1");
    for (int at = 0; at < connection_count; at++) open_connection(at);

    double start = now(), next = start;
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event tick = {.events = EPOLLIN, .data.u32 = CONNECTIONS_MAX};
    if (timer < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer, &tick)) fail("timerfd");
    for (int at = connection_count - 1; at >= 0; at--) idle[idle_count++] = at;

    struct epoll_event events[256];
    // Answers that come more than ten seconds after the end are not waited for.
    while (now() < ends + 10) {
        double moment = now();
        while (idle_count && moment < ends && (!is_open || next <= moment)) {
            send_request(idle[--idle_count], is_open ? next : moment);
            if (!connections[idle[idle_count]].is_busy) {
                // The server hung up: look at the time before trying again.
                idle_count++;
                break;
            }
            if (is_open) next += -log(chance()) / part->rate;
        }
        if (moment >= ends && idle_count == connection_count) break;
        if (is_open && idle_count && next < ends) {
            double due = next > moment ? next : moment + 1e-6;
            struct itimerspec at = {.it_value = {(time_t)due, (long)((due - floor(due)) * 1e9) + 1}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
        }
        int count = epoll_wait(poll_fd, events, 256, 100);
        for (int n = 0; n < count; n++) {
            int at = (int)events[n].data.u32;
            if (at == CONNECTIONS_MAX) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) fail("timer");
                continue;
            }
            Connection *connection = &connections[at];
            int was_busy = connection->is_busy, came = receive(connection);
            if (came > 0 && was_busy) {
                answered(at);
            } else if (came < 0 || (came > 0 && !was_busy)) {
                reopen(at);
            } else if (events[n].events & EPOLLOUT) {
                if (!send_more(at)) reopen(at);
                else if (connection->sent == connection->sending.length) watch(at, EPOLL_CTL_MOD, EPOLLIN);
            }
            if (was_busy && !connection->is_busy) idle[idle_count++] = at;
        }
    }
    while (is_open && next < ends) {
        mine->unsent++;
        next += -log(chance()) / part->rate;
    }
    for (int at = 0; at < connection_count; at++) mine->broken += (uint64_t)connections[at].is_busy;
    mine->busiest = processor_seconds() / (now() - start);
    add_mine();
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 9 && argc != 10) {
        fprintf(stderr, "usage: http_load PORT PATH BODIES CONNECTIONS SECONDS WARMUP RATE SEED [THREADS]\n");
        return 2;
    }
    port = atoi(argv[1]);
    read_bodies(argv[3], argv[2]);
    int all = atoi(argv[4]), threads = argc == 10 ? atoi(argv[9]) : 1;
    double seconds = atof(argv[5]), warmup = atof(argv[6]), rate = atof(argv[7]);
    is_open = rate > 0;
    if (all < 1 || all > CONNECTIONS_MAX || seconds <= 0 || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "http_load: 1 to %d connections, 1 to %d threads, and more than 0 seconds\n", CONNECTIONS_MAX, THREADS_MAX);
        return 2;
    }
    if (threads > all) threads = all;
    began = now() + warmup;
    ends = began + seconds;
    static Part parts[THREADS_MAX];
    for (int n = 0; n < threads; n++) {
        int share = all / threads + (n < all % threads);
        parts[n] = (Part){.connections = share, .number = n, .seed = strtoull(argv[8], NULL, 10) + (uint64_t)n, .rate = rate * share / all};
        if ((errno = pthread_create(&parts[n].thread, NULL, put_load, &parts[n]))) fail("pthread_create");
    }
    for (int n = 0; n < threads; n++) pthread_join(parts[n].thread, NULL);
    print_all(seconds);
    return 0;
}
