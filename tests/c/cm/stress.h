/*
 * What the processes of cm_stress share: how long they wait, what is random, what they have, and
 * their first steps.
 */
#ifndef STRESS_H
#define STRESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

enum { CLIENTS = 5, THREADS = 3, CONNECTIONS = 256, BUFFER = 4096, RECEIVES = 4 };
/* Longest wait for an answer, milliseconds: a lost message is repeated after about six seconds. */
enum { PATIENCE_MS = 30000, IMPATIENCE_MS = 1500, LIFE_MS = 3000 };
/* Growth of the resident memory that is no leak, kilobytes. */
enum { SLACK_KB = 8192 };
/*
 * Descriptors of the library's that may be more than before: the host of the registry, which any
 * process may become when another stands still for a while, keeps two for each of 33 seats of those
 * that died, and one for each connection.
 */
enum { SEATS = 66 + 20, FIRST_OF_LIBRARY = 512 };

static volatile sig_atomic_t ending;

static inline void end_soon(int signal)
{
	(void)signal;
	ending = 1;
}

static inline uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

/* SplitMix64. */
static inline uint64_t draw(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static inline int one_in(uint64_t *state, unsigned n) { return draw(state) % n == 0; }

static inline void fail(const char *what)
{
	fprintf(stderr, "%d: %s: %s\n", getpid(), what, strerror(errno));
	exit(2);
}

struct descriptors {
	int program, library;
};

static inline struct descriptors descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct descriptors count = { 0, 0 };
	struct dirent *entry;
	if (!folder)
		fail("/proc/self/fd");
	while ((entry = readdir(folder)))
		if (atoi(entry->d_name) >= FIRST_OF_LIBRARY)
			count.library++;
		else
			count.program++;
	closedir(folder);
	return count;
}

static inline int are_more(struct descriptors after, struct descriptors before)
{
	return after.program != before.program || after.library > before.library + SEATS;
}

static inline void show_descriptors(void)
{
	for (int fd = 0; fd < 1 << 20; fd++) {
		char path[64], to[256];
		ssize_t len;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		len = readlink(path, to, sizeof to);
		if (len > 0)
			fprintf(stderr, "  %d -> %.*s\n", fd, (int)len, to);
	}
}

static inline long resident_kb(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long size = 0, resident = 0;
	if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2)
		fail("/proc/self/statm");
	fclose(file);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/*
 * The number that the device gives the next identifier: the lowest that is free. As
 * <rdma/rdma_user_cm.h>, which cannot be included beside librdmacm's header, lays the command out.
 */
static inline int next_identifier(void)
{
	uint32_t answer = 0;
	struct {
		uint32_t command;
		uint16_t in, out;
		uint64_t uid, answer;
		uint16_t port_space;
		uint8_t qp_type, reserved[5];
	} create = { 0, 24, sizeof answer, 0, (uintptr_t)&answer, RDMA_PS_TCP, 0, { 0 } };
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	if (fd < 0 || write(fd, &create, sizeof create) != sizeof create)
		fail("/dev/infiniband/rdma_cm");
	close(fd);
	return answer;
}

static inline struct ibv_qp_init_attr qp_attr(void)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = RECEIVES,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = 64 },
	};
}

/* The next event must be this one, but for requests, which are refused. */
static inline void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	enum rdma_cm_event_type found;
	do {
		while (rdma_get_cm_event(channel, &event))
			if (errno != EAGAIN)
				fail("rdma_get_cm_event");
		found = event->event;
		id = event->id;
		rdma_ack_cm_event(event);
		if (found == RDMA_CM_EVENT_CONNECT_REQUEST &&
		    (rdma_reject(id, NULL, 0) || rdma_destroy_id(id)))
			fail("rdma_reject");
	} while (found == RDMA_CM_EVENT_CONNECT_REQUEST);
	if (found != type)
		fail(rdma_event_str(found));
}

/*
 * Makes everything that a process has once: librdmacm's context, the engine and its ways to this
 * host. Nobody else is at PORT.
 */
static inline void warm_up(struct rdma_event_channel *channel, int port)
{
	struct sockaddr_in self = { .sin_family = AF_INET,
				    .sin_port = htons(port),
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_qp_init_attr attr = qp_attr();
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&self, 2000))
		fail("rdma_resolve_addr");
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000))
		fail("rdma_resolve_route");
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (rdma_create_qp(id, NULL, &attr) || rdma_connect(id, &param))
		fail("rdma_connect");
	expect(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
}

static inline void break_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	ibv_modify_qp(id->qp, &attr, IBV_QP_STATE);
}

#endif
