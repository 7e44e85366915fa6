/*
 * Forks: the parent's device goes on, the child's contexts are dead, a device opened by the child
 * is its own, and a process that daemon(3) made carries on.
 */
#include "common.h"
#include <time.h>
#include <sched.h>
#include <sys/resource.h>

static char memory[64];

static enum ibv_wc_status write_to_itself(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr)
{
	STATUS(post(qp, IBV_WR_RDMA_WRITE, memory, 8, mr, memory + 32, mr->rkey), 0);
	return next_completion(cq).status;
}

/* Opens everything anew and writes once. */
static int whole_life(void)
{
	struct ibv_context *context = open_context();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = basic_qp(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory),
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

	STATUS(connect_qp(qp, qp), 0);
	strcpy(memory, "once");
	STATUS(write_to_itself(qp, cq, mr), IBV_WC_SUCCESS);
	CHECK(!strcmp(memory + 32, "once"));
	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_dereg_mr(mr), 0);
	STATUS(ibv_destroy_cq(cq), 0);
	STATUS(ibv_dealloc_pd(pd), 0);
	STATUS(ibv_close_device(context), 0);
	return failures;
}

/* Descriptors of this process for a socket in a line of `table` that contains `text`. */
static int sockets(const char *table, const char *text)
{
	char path[64], link[64], inode[64], line[512];
	int count = 0;

	for (int fd = 0; fd < 4096; fd++) {
		FILE *lines = NULL;
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		len = readlink(path, link, sizeof(link) - 1);
		if (len < 9 || strncmp(link, "socket:[", 8))
			continue;
		link[len - 1] = 0;
		snprintf(inode, sizeof(inode), " %s ", link + 8);
		lines = fopen(table, "r");
		CHECK(lines);
		while (lines && fgets(line, sizeof(line), lines)) {
			line[strcspn(line, "\n")] = ' ';
			count += strstr(line, text) && strstr(line, inode);
		}
		if (lines)
			fclose(lines);
	}
	return count;
}

static int finished(pid_t child)
{
	int status = -1;

	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

/* A device of its own. */
struct life {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
};

static struct life open_life(void)
{
	struct life life = { .context = open_context() };
	struct ibv_qp_init_attr init;

	life.pd = ibv_alloc_pd(life.context);
	life.channel = ibv_create_comp_channel(life.context);
	life.cq = ibv_create_cq(life.context, 4, NULL, life.channel, 0);
	init = basic_qp(life.cq);
	life.qp = ibv_create_qp(life.pd, &init);
	life.mr = ibv_reg_mr(life.pd, memory, sizeof(memory),
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	STATUS(connect_qp(life.qp, life.qp), 0);
	return life;
}

/* One write that only the engine's own thread completes. */
static void write_without_polling(struct life *life)
{
	struct pollfd wait = { .fd = life->channel->fd, .events = POLLIN };
	struct ibv_cq *told;
	void *cookie;

	STATUS(ibv_req_notify_cq(life->cq, 0), 0);
	STATUS(post(life->qp, IBV_WR_RDMA_WRITE, memory, 8, life->mr, memory + 32, life->mr->rkey),
	       0);
	CHECK(poll(&wait, 1, 10000) == 1);
	STATUS(ibv_get_cq_event(life->channel, &told, &cookie), 0);
	ibv_ack_cq_events(life->cq, 1);
	STATUS(next_completion(life->cq).status, IBV_WC_SUCCESS);
}

/*
 * A device goes over to the daemon that its process becomes: its thread, its place in the registry,
 * and its watch over registered memory.
 */
static void become_daemon(int told)
{
	struct life life = open_life();
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(life.pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);
	char verdict;

	CHECK(!daemon(1, 1));
	STATUS(write_to_itself(life.qp, life.cq, life.mr), IBV_WC_SUCCESS);
	write_without_polling(&life);
	/* Joins through the registry that the daemon hosts, or is a member of. */
	pid_t other = fork();
	if (!other)
		_exit(whole_life());
	STATUS(finished(other), 0);
	/* A page that is gone and replaced is not the registered one. */
	CHECK(mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		   0) == page);
	STATUS(post(life.qp, IBV_WR_RDMA_WRITE, page, 8, mr, memory + 32, life.mr->rkey), 0);
	STATUS(next_completion(life.cq).status, IBV_WC_LOC_PROT_ERR);
	verdict = failures;
	CHECK(write(told, &verdict, 1) == 1);
	_exit(0);
}

/* Where no process can be made, daemon() fails and all is as before. */
static void fail_to_become_daemon(void)
{
	struct rlimit none = { 0, 0 };
	struct life life;

	if (!geteuid())
		CHECK(!setuid(65534));
	life = open_life();
	write_without_polling(&life);
	CHECK(!setrlimit(RLIMIT_NPROC, &none));
	CHECK(daemon(1, 1) == -1 && errno == EAGAIN);
	write_without_polling(&life);
	STATUS(write_to_itself(life.qp, life.cq, life.mr), IBV_WC_SUCCESS);
	_exit(failures);
}

/* In a child, with its parent's context, domain and channel: new objects of all kinds work, and
 * device memory is one for both processes. The context's descriptor leads to the child's objects.
 */
static void use_inherited(struct ibv_context *context, struct ibv_pd *pd,
			  struct ibv_comp_channel *channel, struct ibv_cq *parents,
			  struct ibv_dm *parents_dm)
{
	struct ibv_alloc_dm_attr dm_init = { .length = 64 };
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	struct ibv_qp_init_attr init = basic_qp(parents);
	struct ibv_context *imported;
	struct life life = { .context = context, .pd = pd, .channel = channel };
	struct pollfd wait = { .fd = context->async_fd, .events = POLLIN };
	uint64_t word = 0, good = 0x600d;
	struct ibv_dm *dm;
	struct ibv_pd *twin;
	struct ibv_mr *dm_mr;
	struct ibv_ah_attr to_itself = { .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah;

	STATUS(ibv_query_port(context, 1, &port), 0);
	STATUS(ibv_query_device(context, &device), 0);
	CHECK(poll(&wait, 1, 0) == 0);
	REFUSED(ibv_create_qp(pd, &init), EIO);
	life.cq = ibv_create_cq(context, 4, NULL, channel, 0);
	CHECK(life.cq);
	init = basic_qp(life.cq);
	life.qp = ibv_create_qp(pd, &init);
	life.mr = ibv_reg_mr(pd, memory, sizeof(memory),
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(life.qp && life.mr);
	STATUS(connect_qp(life.qp, life.qp), 0);
	STATUS(write_to_itself(life.qp, life.cq, life.mr), IBV_WC_SUCCESS);
	write_without_polling(&life);
	STATUS(ibv_query_gid(context, 1, 0, &to_itself.grh.dgid), 0);
	ah = ibv_create_ah(pd, &to_itself);
	CHECK(ah);
	STATUS(ibv_destroy_ah(ah), 0);

	imported = ibv_import_device(context->cmd_fd);
	CHECK(imported);
	twin = ibv_import_pd(imported, pd->handle);
	CHECK(twin);
	ibv_unimport_pd(twin);
	STATUS(ibv_close_device(imported), 0);

	STATUS(ibv_memcpy_from_dm(&word, parents_dm, 0, sizeof(word)), 0);
	CHECK(word == 0xf00d);
	STATUS(ibv_memcpy_to_dm(parents_dm, 8, &good, sizeof(good)), 0);
	dm = ibv_alloc_dm(context, &dm_init);
	CHECK(dm);
	STATUS(ibv_memcpy_to_dm(dm, 0, &good, sizeof(good)), 0);
	dm_mr = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	CHECK(dm_mr);
	STATUS(ibv_dereg_mr(dm_mr), 0);
	STATUS(ibv_free_dm(dm), 0);

	STATUS(ibv_destroy_qp(life.qp), 0);
	STATUS(ibv_dereg_mr(life.mr), 0);
	STATUS(ibv_destroy_cq(life.cq), 0);
}

int main(void)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	int pipe_fds[2];
	char verdict = 1;
	pid_t child;

	struct ibv_comp_channel *channel;
	struct ibv_srq *srq;
	struct ibv_recv_wr receive = { 0 }, *bad;
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_attr attr;
	struct ibv_alloc_dm_attr dm_init = { .length = 64 };
	struct ibv_dm *dm;
	uint64_t word = 0xf00d;
	struct ibv_cq *told;
	struct ibv_wc wc;
	void *cookie;

	/* First: the device of a process is one user's. */
	child = fork();
	if (!child)
		fail_to_become_daemon();
	STATUS(finished(child), 0);

	CHECK(!ibv_fork_init());
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	context = open_context();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 4, NULL, channel, 0);
	init = basic_qp(cq);
	qp = ibv_create_qp(pd, &init);
	srq = ibv_create_srq(pd, &srq_init);
	mr = ibv_reg_mr(pd, memory, sizeof(memory),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	STATUS(connect_qp(qp, qp), 0);
	dm = ibv_alloc_dm(context, &dm_init);
	CHECK(dm);
	STATUS(ibv_memcpy_to_dm(dm, 0, &word, sizeof(word)), 0);

	/*
	 * What belongs to the parent neither works in the child nor is lost there, an event that
	 * waits included.
	 */
	STATUS(ibv_req_notify_cq(cq, 0), 0);
	STATUS(write_to_itself(qp, cq, mr), IBV_WC_SUCCESS);
	child = fork();
	if (!child) {
		STATUS(post(qp, IBV_WR_RDMA_WRITE, memory, 8, mr, memory, mr->rkey), EIO);
		STATUS(post_receive(qp, memory, 8, mr), EIO);
		STATUS(ibv_post_srq_recv(srq, &receive, &bad), EIO);
		CHECK(bad == &receive);
		CHECK(ibv_poll_cq(cq, 1, &wc) < 0 && errno == EIO);
		STATUS(ibv_req_notify_cq(cq, 0), EIO);
		MINUS_ONE(ibv_get_cq_event(channel, &told, &cookie), EIO);
		STATUS(ibv_query_qp(qp, &attr, 0, &init), EIO);
		STATUS(ibv_destroy_qp(qp), EIO);
		STATUS(ibv_dereg_mr(mr), EIO);
		STATUS(ibv_destroy_srq(srq), EIO);
		STATUS(ibv_destroy_cq(cq), EIO);
		/*
		 * No connection and no name; one that the engine's thread had just made says
		 * nothing to anybody.
		 */
		CHECK(sockets("/proc/net/unix", " 03 ") == 0);
		CHECK(sockets("/proc/net/unix", "@") == 0);
		CHECK(sockets("/proc/net/udp", ":12B7 ") == 0);
		CHECK(sockets("/proc/net/udp6", ":12B7 ") == 0);
		use_inherited(context, pd, channel, cq, dm);
		STATUS(ibv_destroy_comp_channel(channel), EBUSY);
		STATUS(ibv_dealloc_pd(pd), 0);
		STATUS(ibv_close_device(context), 0);
		/* The engine's thread may be the last that lets go of them. */
		for (time_t until = time(NULL) + 10; time(NULL) < until; sched_yield())
			if (!sockets("/proc/net/udp", ":12B7 "))
				break;
		CHECK(sockets("/proc/net/udp", ":12B7 ") == 0);
		_exit(failures ? failures : whole_life());
	}
	CHECK(sockets("/proc/net/unix", " ") > 0);
	CHECK(sockets("/proc/net/udp", ":12B7 ") > 0);
	STATUS(ibv_get_cq_event(channel, &told, &cookie), 0);
	ibv_ack_cq_events(cq, 1);
	strcpy(memory, "parent");
	STATUS(write_to_itself(qp, cq, mr), IBV_WC_SUCCESS);
	CHECK(!strcmp(memory + 32, "parent"));
	STATUS(finished(child), 0);
	STATUS(write_to_itself(qp, cq, mr), IBV_WC_SUCCESS);
	STATUS(ibv_memcpy_from_dm(&word, dm, 8, sizeof(word)), 0);
	CHECK(word == 0x600d);

	/* A child of which nothing is used ends nothing. */
	child = fork();
	if (!child) {
		STATUS(ibv_close_device(context), 0);
		_exit(failures);
	}
	STATUS(finished(child), 0);
	STATUS(write_to_itself(qp, cq, mr), IBV_WC_SUCCESS);

	/* The registered page stays the registered one when parent and child both write it. */
	child = fork();
	if (!child) {
		memory[0] = 'C';
		pause();
	}
	strcpy(memory, "second");
	STATUS(write_to_itself(qp, cq, mr), IBV_WC_SUCCESS);
	CHECK(!strcmp(memory + 32, "second"));
	kill(child, SIGKILL);
	finished(child);

	CHECK(!pipe(pipe_fds));
	child = fork();
	if (!child)
		become_daemon(pipe_fds[1]);
	STATUS(finished(child), 0);
	close(pipe_fds[1]);
	CHECK(read(pipe_fds[0], &verdict, 1) == 1 && verdict == 0);

	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_dereg_mr(mr), 0);
	STATUS(ibv_destroy_srq(srq), 0);
	STATUS(ibv_destroy_cq(cq), 0);
	STATUS(ibv_destroy_comp_channel(channel), 0);
	STATUS(ibv_free_dm(dm), 0);
	STATUS(ibv_dealloc_pd(pd), 0);
	STATUS(ibv_close_device(context), 0);
	return failures != 0;
}
