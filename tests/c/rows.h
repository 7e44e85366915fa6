/*
 * What the bad-input programs share: rows with a wanted and a found result, and queue pairs of one
 * process that are connected to each other. Every row prints `ok …` or `NOT …: got … want …
 * [source]`; finish() prints the totals and gives the exit status, 1 when any row was NOT.
 */
#ifndef ROWS_H
#define ROWS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int rows, wrong;

/* Ends the program for something that is no row: the ground the rows stand on is missing. */
static inline void fail(const char *what)
{
	printf("NOT %s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void verdict(int right, const char *what, const char *found, const char *wanted,
			   const char *source)
{
	rows++;
	if (right) {
		printf("ok %s\n", what);
	} else {
		wrong++;
		printf("NOT %s: got %s want %s [%s]\n", what, found, wanted, source);
	}
}

static inline const char *errno_name(int number)
{
	const char *name = number ? strerrorname_np(number) : "success";
	static char buffers[4][24];
	static unsigned next;
	if (name)
		return name;
	snprintf(buffers[next % 4], sizeof(buffers[0]), "%d", number);
	return buffers[next++ % 4];
}

/* A row about an errno; 0 is success. */
static inline void row(const char *source, int want, int got, const char *format, ...)
{
	char what[200];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	verdict(got == want, what, errno_name(got), errno_name(want), source);
}

/* A row about a number. */
static inline void equal(const char *source, unsigned long want, unsigned long got,
			 const char *format, ...)
{
	char what[200], found[24], wanted[24];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	snprintf(found, sizeof(found), "%lu", got);
	snprintf(wanted, sizeof(wanted), "%lu", want);
	verdict(got == want, what, found, wanted, source);
}

/* A row about a plain condition. */
static inline void holds(const char *source, int condition, const char *what)
{
	verdict(condition, what, "no", "yes", source);
}

static inline int finish(void)
{
	printf("%d rows, %d wrong\n", rows, wrong);
	return wrong || !rows;
}

/* The errno of a call that gives a pointer: 0 when it gave one, which is then released. */
#define POINTER(release, call) \
	({ \
		errno = 0; \
		__auto_type made_ = (call); \
		int errno_ = errno; \
		if (made_) \
			release(made_); \
		made_ ? 0 : errno_; \
	})

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static struct ibv_device_attr limits;

/* Local ACK timeout code and retries of connections; short, so that what must fail fails soon. */
static int ack_timeout = 12, retries = 3, rnr_retries = 1;

static int gid_index;
/* On an InfiniBand port; 0 on others. */
static uint16_t lid;

enum { QKEY = 0x11223344, BUFFER = 1 << 20 };
enum {
	LOCAL = IBV_ACCESS_LOCAL_WRITE,
	REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	EVERYTHING = LOCAL | REMOTE,
};

static inline void open_first_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!list || !list[0])
		fail("there is a device");
	context = ibv_open_device(list[0]);
	if (!context)
		fail("the device opens");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	struct ibv_port_attr port = { 0 };
	if (ibv_query_port(context, 1, &port))
		fail("port");
	lid = port.lid;
	if (!pd || ibv_query_device(context, &limits) || ibv_query_gid(context, 1, gid_index, &gid))
		fail("protection domain, limits and GID");
}

/* A counter of the device, by its file of sysfs. */
static inline unsigned long device_counter(const char *name)
{
	char path[400];
	unsigned long value;
	snprintf(path, sizeof(path), "%s/ports/1/hw_counters/%s", context->device->ibdev_path,
		 name);
	FILE *file = fopen(path, "r");
	if (!file || fscanf(file, "%lu", &value) != 1)
		fail(path);
	fclose(file);
	return value;
}

static inline struct ibv_cq *new_cq(int entries)
{
	struct ibv_cq *cq = ibv_create_cq(context, entries, NULL, NULL, 0);
	if (!cq)
		fail("completion queue");
	return cq;
}

static inline struct ibv_qp *new_qp(struct ibv_pd *domain, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .qp_type = type,
					 .sq_sig_all = 1,
					 .cap = { 8, 8, 2, 2, 64 } };
	struct ibv_qp *qp = ibv_create_qp(domain, &init);
	if (!qp)
		fail("queue pair");
	return qp;
}

static inline enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init))
		return IBV_QPS_UNKNOWN;
	return attr.qp_state;
}

/*
 * Ordinary attributes for a change to `next`, and the mask that this change requires
 * (ibv_modify_qp(3)).
 */
static inline int attributes(enum ibv_qp_type type, enum ibv_qp_state next, uint32_t peer,
			     struct ibv_qp_attr *attr)
{
	int rc = type == IBV_QPT_RC, ud = type == IBV_QPT_UD;
	*attr = (struct ibv_qp_attr){
		.qp_state = next,
		.port_num = 1,
		.qkey = QKEY,
		.qp_access_flags = EVERYTHING,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.rq_psn = 77,
		.sq_psn = 77,
		.max_rd_atomic = 4,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.timeout = ack_timeout,
		.retry_cnt = retries,
		.rnr_retry = rnr_retries,
		.ah_attr = { .is_global = 1,
			     .dlid = lid,
			     .port_num = 1,
			     .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	switch (next) {
	case IBV_QPS_INIT:
		return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		       (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	case IBV_QPS_RTR:
		if (ud)
			return IBV_QP_STATE;
		return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		       IBV_QP_RQ_PSN | (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
	case IBV_QPS_RTS:
		return IBV_QP_STATE | IBV_QP_SQ_PSN |
		       (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_MAX_QP_RD_ATOMIC
			   : 0);
	default:
		return IBV_QP_STATE;
	}
}

static inline int change(struct ibv_qp *qp, enum ibv_qp_state next, uint32_t peer)
{
	struct ibv_qp_attr attr;
	int mask = attributes(qp->qp_type, next, peer, &attr);
	return ibv_modify_qp(qp, &attr, mask);
}

static inline void must_change(struct ibv_qp *qp, enum ibv_qp_state next, uint32_t peer)
{
	errno = change(qp, next, peer);
	if (errno)
		fail("an ordinary change of state");
}

static inline void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	must_change(qp, IBV_QPS_INIT, peer);
	must_change(qp, IBV_QPS_RTR, peer);
	must_change(qp, IBV_QPS_RTS, peer);
}

/* Two queue pairs of this process, connected to each other, each with its own completion queue. */
struct pair {
	struct ibv_cq *a_cq, *b_cq;
	struct ibv_qp *a, *b;
};

static inline struct pair new_pair(enum ibv_qp_type type)
{
	struct pair pair = { .a_cq = new_cq(64), .b_cq = new_cq(64) };
	pair.a = new_qp(pd, pair.a_cq, type);
	pair.b = new_qp(pd, pair.b_cq, type);
	connect_to(pair.a, pair.b->qp_num);
	connect_to(pair.b, pair.a->qp_num);
	return pair;
}

static inline void end_pair(struct pair pair)
{
	ibv_destroy_qp(pair.a);
	if (pair.b)
		ibv_destroy_qp(pair.b);
	ibv_destroy_cq(pair.a_cq);
	ibv_destroy_cq(pair.b_cq);
}

static inline void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	errno = ibv_post_send(qp, wr, &bad);
	if (errno)
		fail("post a request");
}

static inline void receive(struct ibv_qp *qp, uint64_t wr_id, void *at, uint32_t length,
			   uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)at, length, lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	errno = ibv_post_recv(qp, &wr, &bad);
	if (errno)
		fail("post a receive");
}

static inline struct ibv_ah *own_ah(void)
{
	struct ibv_qp_attr attr;
	attributes(IBV_QPT_RC, IBV_QPS_RTR, 0, &attr);
	return ibv_create_ah(pd, &attr.ah_attr);
}

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* A number of a sequence that the seed gives. */
static inline uint64_t next_random(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* How many microseconds a fork(2) takes, and ends its child. */
static inline unsigned long fork_us(void)
{
	double begun = seconds();
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	double took = seconds() - begun;
	int status;
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		fail("a child that ends");
	return (unsigned long)(took * 1e6);
}

/* Waits for one completion, for at most `limit` seconds. Gives 0 when none came. */
static inline int wait_for(struct ibv_cq *cq, struct ibv_wc *wc, double limit)
{
	double end = seconds() + limit;
	int n;
	while ((n = ibv_poll_cq(cq, 1, wc)) == 0 && seconds() < end)
		;
	return n == 1;
}

/* How long a completion may take, seconds: less only where it is known that none comes. */
static double patience = 10;

/* A row about the status of the next completion, which must be that of request `wr_id`. */
static inline void completes(const char *source, struct ibv_cq *cq, uint64_t wr_id,
			     enum ibv_wc_status want, const char *format, ...)
{
	struct ibv_wc wc = { 0 };
	char what[200], found[80];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	if (!wait_for(cq, &wc, patience))
		snprintf(found, sizeof(found), "no completion in %g s", patience);
	else
		snprintf(found, sizeof(found), "%s of request %lu", ibv_wc_status_str(wc.status),
			 (long)wc.wr_id);
	char wanted[80];
	snprintf(wanted, sizeof(wanted), "%s of request %lu", ibv_wc_status_str(want), (long)wr_id);
	verdict(!strcmp(found, wanted), what, found, wanted, source);
}

#endif
