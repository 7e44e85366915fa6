/*
 * Two processes with a device each: the one that the test started, which judges, and a copy of the
 * program that it starts anew, its other end. They talk over a socket and each connects a queue
 * pair to one of the other's. In some programs the other end is a thread of the same process, on
 * the same device, where ONE_PROCESS is in the environment.
 */
#ifndef NEIGHBOURS_H
#define NEIGHBOURS_H

#include "rows.h"

#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* The other end's descriptor in a process that was started as one. */
enum { AT_OTHER = 3, SGES = 4, DEPTH = 16, INLINE = 64, PATIENCE = 60 };

extern char **environ;

/* What one end has to know of the other. */
struct end {
	uint32_t qpn, rkey;
	uint64_t address;
};

/* Each end has its own, as processes have. */
static _Thread_local int other = AT_OTHER;
static _Thread_local struct ibv_cq *cq;
static _Thread_local struct ibv_qp *qp;

/* Plays a role as the other end in a thread of this process, where that is wanted. */
static void (*plays_here)(const char *role);

static inline void tell(const void *what, size_t length)
{
	if (send(other, what, length, MSG_NOSIGNAL) != (ssize_t)length)
		fail("tell the other end");
}

static inline void hear(void *what, size_t length)
{
	if (recv(other, what, length, MSG_WAITALL) != (ssize_t)length)
		fail("hear the other end");
}

static inline unsigned hear_number(void)
{
	unsigned number;
	hear(&number, sizeof(number));
	return number;
}

static inline void tell_number(unsigned number) { tell(&number, sizeof(number)); }

/* Both ends have come so far. */
static inline void both_are_here(void)
{
	tell_number(0);
	hear_number();
}

/* An other end that is a thread. */
static struct {
	const char *role;
	int end;
	pthread_t thread;
} actor;

static inline void *act(void *unused)
{
	other = actor.end;
	cq = new_cq(256);
	plays_here(actor.role);
	close(other);
	return unused;
}

/* Starts the other end, which plays a role, and gives its process; this one's if it is a thread. */
static inline pid_t start(const char *role)
{
	posix_spawn_file_actions_t files;
	int ends[2];
	pid_t child;
	char program[] = "/proc/self/exe", *arguments[] = { program, "as", (char *)role, NULL };
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		fail("sockets");
	if (plays_here) {
		actor.role = role;
		actor.end = ends[1];
		if (pthread_create(&actor.thread, NULL, act, NULL))
			fail("start the other end");
		other = ends[0];
		return getpid();
	}
	if (posix_spawn_file_actions_init(&files) ||
	    posix_spawn_file_actions_adddup2(&files, ends[1], AT_OTHER) ||
	    posix_spawn(&child, program, &files, NULL, arguments, environ))
		fail("start the other end");
	posix_spawn_file_actions_destroy(&files);
	close(ends[1]);
	other = ends[0];
	return child;
}

/* Waits for the other end and gives how it ended. */
static inline int end_of(pid_t child)
{
	int status = 0;
	if (child == getpid() ? pthread_join(actor.thread, NULL)
			      : waitpid(child, &status, 0) != child)
		fail("the end of the other end");
	close(other);
	return status;
}

static inline void ended_well(pid_t child)
{
	int status = end_of(child);
	equal("man exit", 0, status, "the other end ends with 0");
}

/* Starts `peerdma gpu` with two arguments. */
static inline pid_t start_on_gpu(const char *what, const char *where)
{
	pid_t child;
	char *arguments[] = { getenv("PEERDMA"), "gpu", (char *)what, "all", (char *)where, NULL };
	if (posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ))
		fail("start peerdma gpu");
	return child;
}

static inline void new_end(struct ibv_pd *domain, unsigned access)
{
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .qp_type = IBV_QPT_RC,
					 .sq_sig_all = 1,
					 .cap = { DEPTH, DEPTH, SGES, SGES, INLINE } };
	struct ibv_qp_attr attr;
	qp = ibv_create_qp(domain, &init);
	int mask = attributes(IBV_QPT_RC, IBV_QPS_INIT, 0, &attr);
	attr.qp_access_flags = access;
	if (!qp || ibv_modify_qp(qp, &attr, mask))
		fail("queue pair");
}

/* Connects a new queue pair to the other end's and tells that end of some memory. */
static inline struct end meet(struct ibv_pd *domain, unsigned access, struct ibv_mr *mr)
{
	new_end(domain, access);
	struct end own = { .qpn = qp->qp_num }, peer;
	if (mr) {
		own.rkey = mr->rkey;
		own.address = (uintptr_t)mr->addr;
	}
	tell(&own, sizeof(own));
	hear(&peer, sizeof(peer));
	must_change(qp, IBV_QPS_RTR, peer.qpn);
	must_change(qp, IBV_QPS_RTS, peer.qpn);
	both_are_here();
	return peer;
}

static inline void part(void)
{
	if (ibv_destroy_qp(qp))
		fail("destroy a queue pair");
}

static inline char *memory_of(size_t length)
{
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("memory");
	return at;
}

static inline struct ibv_mr *registered(void *at, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, EVERYTHING);
	if (!mr)
		fail("registration");
	return mr;
}

/* Mappings of files or buffers here whose names begin so. */
static inline unsigned views_of(const char *name)
{
	char line[512];
	unsigned found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps))
		found += !!strstr(line, name);
	if (maps)
		fclose(maps);
	return found;
}

/* A READ or WRITE of memory here and there, and how it ends. */
static inline enum ibv_wc_status one_sided(int read, struct ibv_sge here, uint64_t there,
					   uint32_t rkey)
{
	struct ibv_send_wr wr = { .sg_list = &here,
				  .num_sge = 1,
				  .opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
				  .wr.rdma = { there, rkey } };
	struct ibv_wc wc;
	post(qp, &wr);
	if (!wait_for(cq, &wc, PATIENCE))
		fail("a completion");
	return wc.status;
}

/* Opens the device. Only what must fail runs out of retries before half a second has gone. */
static inline void open_device(void)
{
	ack_timeout = 14;
	retries = 7;
	rnr_retries = 7;
	open_first_device();
	cq = new_cq(256);
}

#endif
