/* Puts, reserves and deletes jobs over many connections, as fast as a server on this machine answers.
 *
 *     load PORT CONNECTIONS DEPTH
 *
 * A cycle is DEPTH puts sent at once, then as many reserves, then deletes of the jobs that came. For each number of
 * cycles on stdin it carries out that many, in all connections together, and prints how many commands that were, the
 * seconds, and the p99 in microseconds: the time from the first byte of DEPTH commands to the last one of their
 * replies. It is in C so that the server is never the one that waits.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BODY = 100, MOST_REPLY = 160, EVENTS = 256 };
enum step { PUT, RESERVE, DELETE };
static const char *const REPLIES[] = {"INSERTED ", "RESERVED ", "DELETED\r\n"};

struct connection {
    int fd;
    enum step step;
    int replies; /* so far, to the batch under way */
    unsigned long long *ids;
    size_t filled;
    char *in, *out;
    double sent_s;
};

static int depth, polled;
static long left, batches, most_batches;
static double *latencies_s;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void say(int fd, const char *data, size_t size)
{
    for (ssize_t sent; size; data += sent, size -= sent)
        if ((sent = send(fd, data, size, MSG_NOSIGNAL)) < 0)
            fail("send");
}

static void begin(struct connection *its, enum step step)
{
    static char body[BODY + 1];
    char *end = its->out;
    memset(body, 'x', BODY);
    for (int number = 0; number < depth; number++)
        if (step == PUT)
            end += sprintf(end, "put 1024 0 3600 %d\r\n%s\r\n", BODY, body);
        else if (step == RESERVE)
            end += sprintf(end, "reserve\r\n");
        else
            end += sprintf(end, "delete %llu\r\n", its->ids[number]);
    its->step = step;
    its->replies = 0;
    its->sent_s = now_s();
    say(its->fd, its->out, end - its->out);
}

/* Begin what follows a batch that is complete; return whether that is anything. */
static int go_on(struct connection *its)
{
    if (batches == most_batches) {
        most_batches = 2 * most_batches + 1024;
        if (!(latencies_s = realloc(latencies_s, most_batches * sizeof *latencies_s)))
            fail("realloc");
    }
    latencies_s[batches++] = now_s() - its->sent_s;
    if (its->step == DELETE && left-- <= 0)
        return 0;
    begin(its, its->step == DELETE ? PUT : its->step + 1);
    return 1;
}

/* Take in a reply; return its size, or 0 if some of it is missing. */
static size_t reply(struct connection *its, const char *from, size_t size)
{
    const char *end = memchr(from, '\n', size), *word = REPLIES[its->step];
    if (!end)
        return 0;
    size_t all = end + 1 - from + (its->step == RESERVE ? BODY + 2 : 0);
    if (strncmp(from, word, strlen(word))) {
        fprintf(stderr, "%.*s came where %s was due\n", (int)(end - from), from, word);
        exit(1);
    }
    if (all > size)
        return 0;
    if (its->step == RESERVE)
        its->ids[its->replies] = strtoull(from + strlen(word), NULL, 10);
    its->replies++;
    return all;
}

/* Return whether the connection has something left to do. */
static int receive(struct connection *its)
{
    ssize_t got = recv(its->fd, its->in + its->filled, (size_t)depth * MOST_REPLY - its->filled, 0);
    if (got <= 0)
        fail("recv");
    its->filled += got;
    size_t at = 0, size;
    while (its->replies < depth && (size = reply(its, its->in + at, its->filled - at)))
        at += size;
    memmove(its->in, its->in + at, its->filled -= at);
    return its->replies < depth || go_on(its);
}

static void dial(struct connection *its, int port)
{
    static const char hello[] = "use load\r\nwatch load\r\nignore default\r\n", want[] = "USING load\r\nWATCHING 2\r\nWATCHING 1\r\n";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char said[sizeof want] = "";
    int one = 1;
    its->ids = malloc(depth * sizeof *its->ids);
    its->in = malloc((size_t)depth * MOST_REPLY);
    its->out = malloc((size_t)depth * (BODY + 60) + 1);
    its->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!its->ids || !its->in || !its->out || its->fd < 0)
        fail("connection");
    if (connect(its->fd, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    setsockopt(its->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    say(its->fd, hello, strlen(hello));
    if (recv(its->fd, said, strlen(want), MSG_WAITALL) < 0 || strcmp(said, want))
        fail("the tube");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = its};
    if (epoll_ctl(polled, EPOLL_CTL_ADD, its->fd, &event))
        fail("epoll_ctl");
}

static int by_value(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    int connections = atoi(words[2]);
    depth = atoi(words[3]);
    polled = epoll_create1(0);
    struct connection *all = calloc(connections, sizeof *all);
    for (int number = 0; number < connections; number++)
        dial(all + number, atoi(words[1]));
    for (long cycles; scanf("%ld", &cycles) == 1;) {
        struct epoll_event events[EVENTS];
        double began_s = now_s();
        int busy = connections;
        left = cycles - connections;
        batches = 0;
        for (int number = 0; number < connections; number++)
            begin(all + number, PUT);
        while (busy) {
            int ready = epoll_wait(polled, events, EVENTS, -1);
            for (int number = 0; number < ready; number++)
                busy -= !receive(events[number].data.ptr);
        }
        double took_s = now_s() - began_s;
        qsort(latencies_s, batches, sizeof *latencies_s, by_value);
        printf("%ld %.6f %.1f\n", batches * depth, took_s, 1e6 * latencies_s[batches * 99 / 100]);
        fflush(stdout);
    }
    return 0;
}
