/* Forks: the parent's device goes on, the child's contexts are dead, a device opened by the child is its own, and a
 * process that daemon(3) made carries on. */
#include "common.h"

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
	struct ibv_port_attr port;
	struct ibv_cq *told;
	struct ibv_wc wc;
	void *cookie;

	CHECK(!ibv_fork_init());
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	context = open_context();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 4, NULL, channel, 0);
	init = basic_qp(cq);
	qp = ibv_create_qp(pd, &init);
	srq = ibv_create_srq(pd, &srq_init);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	STATUS(connect_qp(qp, qp), 0);

	/* What belongs to the parent neither works in the child nor is lost there, an event that waits included. */
	STATUS(ibv_req_notify_cq(cq, 0), 0);
	STATUS(write_to_itself(qp, cq, mr), IBV_WC_SUCCESS);
	child = fork();
	if (!child) {
		REFUSED(ibv_alloc_pd(context), EIO);
		STATUS(post(qp, IBV_WR_RDMA_WRITE, memory, 8, mr, memory, mr->rkey), EIO);
		STATUS(post_receive(qp, memory, 8, mr), EIO);
		STATUS(ibv_post_srq_recv(srq, &receive, &bad), EIO);
		CHECK(bad == &receive);
		CHECK(ibv_poll_cq(cq, 1, &wc) < 0 && errno == EIO);
		STATUS(ibv_req_notify_cq(cq, 0), EIO);
		MINUS_ONE(ibv_get_cq_event(channel, &told, &cookie), EIO);
		STATUS(ibv_query_qp(qp, &attr, 0, &init), EIO);
		STATUS(ibv_query_port(context, 1, &port), EIO);
		STATUS(ibv_destroy_qp(qp), EIO);
		STATUS(ibv_dereg_mr(mr), EIO);
		STATUS(ibv_destroy_srq(srq), EIO);
		STATUS(ibv_destroy_cq(cq), EIO);
		STATUS(ibv_destroy_comp_channel(channel), EIO);
		STATUS(ibv_dealloc_pd(pd), EIO);
		STATUS(ibv_close_device(context), 0);
		CHECK(sockets("/proc/net/unix", " ") == 0);
		CHECK(sockets("/proc/net/udp", ":12B7 ") == 0);
		CHECK(sockets("/proc/net/udp6", ":12B7 ") == 0);
		_exit(whole_life());
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
	if (!child) {
		/* A device of this process goes over to the daemon it becomes. */
		struct ibv_context *mine = open_context();
		struct ibv_pd *my_pd = ibv_alloc_pd(mine);
		struct ibv_cq *my_cq = ibv_create_cq(mine, 4, NULL, NULL, 0);
		struct ibv_qp_init_attr my_init = basic_qp(my_cq);
		struct ibv_qp *my_qp = ibv_create_qp(my_pd, &my_init);
		struct ibv_mr *my_mr = ibv_reg_mr(my_pd, memory, sizeof(memory),
						  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

		STATUS(connect_qp(my_qp, my_qp), 0);
		CHECK(!daemon(1, 1));
		STATUS(write_to_itself(my_qp, my_cq, my_mr), IBV_WC_SUCCESS);
		verdict = failures;
		CHECK(write(pipe_fds[1], &verdict, 1) == 1);
		_exit(0);
	}
	STATUS(finished(child), 0);
	close(pipe_fds[1]);
	CHECK(read(pipe_fds[0], &verdict, 1) == 1 && verdict == 0);

	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_dereg_mr(mr), 0);
	STATUS(ibv_destroy_srq(srq), 0);
	STATUS(ibv_destroy_cq(cq), 0);
	STATUS(ibv_destroy_comp_channel(channel), 0);
	STATUS(ibv_dealloc_pd(pd), 0);
	STATUS(ibv_close_device(context), 0);
	return failures != 0;
}
