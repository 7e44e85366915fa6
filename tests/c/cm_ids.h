/*
 * Identifiers of librdmacm, step by step: each step says the line where it did not go as on Linux,
 * and ends the program.
 */
#ifndef CM_IDS_H
#define CM_IDS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

enum { WAIT_MS = 10000, SETTLED_MS = 100 };

static struct sockaddr_storage address;
static int port;

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
				strerror(errno)); \
			exit(1); \
		} \
	} while (0)

/* A call that must fail so. */
#define REFUSED(call, error) \
	do { \
		errno = 0; \
		CHECK((call) == -1 && errno == (error)); \
	} while (0)

static inline uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

static inline struct sockaddr *parsed(const char *text, int at)
{
	static struct sockaddr_storage all[4];
	static int next;
	struct sockaddr_storage *storage = &all[next++ % 4];
	struct sockaddr_in *v4 = (struct sockaddr_in *)storage;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)storage;
	memset(storage, 0, sizeof *storage);
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(at);
	} else {
		CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(at);
	}
	return (struct sockaddr *)storage;
}

static inline struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();
	CHECK(made);
	return made;
}

static inline int is_readable(struct rdma_event_channel *of, int wait_ms)
{
	struct pollfd fd = { of->fd, POLLIN, 0 };
	return poll(&fd, 1, wait_ms) == 1;
}

/* The next event, which must be this one. */
static inline struct rdma_cm_event *event_at(int line, struct rdma_event_channel *of,
					     enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	if (!is_readable(of, WAIT_MS)) {
		fprintf(stderr, "line %d: no %s comes\n", line, rdma_event_str(type));
		exit(1);
	}
	CHECK(!rdma_get_cm_event(of, &event));
	if (event->event != type) {
		fprintf(stderr, "line %d: %s, status %d, instead of %s\n", line,
			rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(1);
	}
	return event;
}
#define event(of, type) event_at(__LINE__, of, type)

/* The same, acknowledged; its identifier, which of a request is the new one. */
static inline struct rdma_cm_id *told_at(int line, struct rdma_event_channel *of,
					 enum rdma_cm_event_type type)
{
	struct rdma_cm_event *found = event_at(line, of, type);
	struct rdma_cm_id *id = found->id;
	rdma_ack_cm_event(found);
	return id;
}
#define told(of, type) told_at(__LINE__, of, type)

static inline struct rdma_cm_id *identifier(struct rdma_event_channel *of)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(of, &id, NULL, RDMA_PS_TCP));
	return id;
}

static inline struct rdma_cm_id *listener(struct rdma_event_channel *of)
{
	struct rdma_cm_id *id = identifier(of);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address));
	CHECK(!rdma_listen(id, 4));
	return id;
}

static inline struct rdma_conn_param param(void)
{
	return (struct rdma_conn_param){ .retry_count = 7, .rnr_retry_count = 7 };
}

static inline void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4,
						  .max_recv_wr = 4,
						  .max_send_sge = 1,
						  .max_recv_sge = 1,
						  .max_inline_data = 16 } };
	CHECK(!rdma_create_qp(id, NULL, &attr));
}

static inline void resolve_addr(struct rdma_cm_id *id, struct rdma_event_channel *of)
{
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	CHECK(told(of, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
}

static inline void resolve(struct rdma_cm_id *id, struct rdma_event_channel *of)
{
	resolve_addr(id, of);
	CHECK(!rdma_resolve_route(id, 2000));
	CHECK(told(of, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
}

static inline void ask(struct rdma_cm_id *id)
{
	struct rdma_conn_param wanted = param();
	make_qp(id);
	CHECK(!rdma_connect(id, &wanted));
}

static inline void accept_with_qp(struct rdma_cm_id *id)
{
	struct rdma_conn_param wanted = param();
	make_qp(id);
	CHECK(!rdma_accept(id, &wanted));
}

static inline void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

/* One message from one end of a connection to the other. */
static inline void send_one(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static char buffer[64];
	struct ibv_mr *mr = ibv_reg_mr(to->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge in = { (uintptr_t)buffer, sizeof buffer, mr ? mr->lkey : 0 },
		       out = { (uintptr_t)"hello", 6, 0 };
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &out,
				    .num_sge = 1,
				    .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE },
			   *bad_send;
	struct ibv_wc wc;
	uint64_t end = now_ms() + WAIT_MS;
	CHECK(mr);
	memset(buffer, 0, sizeof buffer);
	CHECK(!ibv_post_recv(to->qp, &recv, &bad_recv));
	CHECK(!ibv_post_send(from->qp, &send, &bad_send));
	while (!ibv_poll_cq(to->recv_cq, 1, &wc))
		CHECK(now_ms() < end);
	CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(buffer, "hello"));
	while (!ibv_poll_cq(from->send_cq, 1, &wc))
		CHECK(now_ms() < end);
	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr));
}

/* The address that a command line names, and the port, which is its last word. */
static inline void take_place(const char *text, const char *last)
{
	alarm(50);
	port = atoi(last);
	memcpy(&address, parsed(text, port), sizeof(struct sockaddr_in6));
}

#endif
