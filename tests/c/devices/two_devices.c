/*
 * Two devices of one host in one process: who they are, traffic between them, what one refuses of
 * the other's, and that each lives without the other, also after a fork.
 */
#include "rows.h"
#include <sys/wait.h>

static struct ibv_context *second;
static struct ibv_pd *second_pd;
static struct ibv_device *devices[2];

static void open_both(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	equal("ibv_get_device_list(3)", 2, count, "devices in the list");
	if (count != 2)
		exit(finish());
	for (int i = 0; i < 2; i++) {
		char name[16];
		snprintf(name, sizeof(name), "peerdma%d", i);
		devices[i] = list[i];
		holds("ibv_get_device_name(3)", !strcmp(ibv_get_device_name(list[i]), name), name);
		equal("ibv_get_device_index(3)", i, ibv_get_device_index(list[i]), "index of %s",
		      name);
	}
	uint64_t first_guid = ibv_get_device_guid(list[0]), guid = ibv_get_device_guid(list[1]);
	holds("IBA 14.2.5.3", first_guid && guid && first_guid != guid,
	      "devices have GUIDs of their own");
	open_first_device();
	second = ibv_open_device(list[1]);
	holds("ibv_open_device(3)", second && second->device == list[1], "the second device opens");
	ibv_free_device_list(list);
	struct ibv_device_attr attr;
	if (!second || ibv_query_device(second, &attr))
		fail("the second device");
	holds("ibv_query_device(3)", attr.node_guid == guid && limits.node_guid == first_guid,
	      "GUIDs are the list's");
	second_pd = ibv_alloc_pd(second);
}

/* Writes, reads and sends between a queue pair of each device. */
static void traffic(const char *where)
{
	static char source[BUFFER], target[BUFFER];
	struct ibv_cq *cq = new_cq(16), *far_cq = ibv_create_cq(second, 16, NULL, NULL, 0);
	struct ibv_qp *near = new_qp(pd, cq, IBV_QPT_RC),
		      *far = new_qp(second_pd, far_cq, IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr(pd, source, BUFFER, EVERYTHING);
	struct ibv_mr *far_mr = ibv_reg_mr(second_pd, target, BUFFER, EVERYTHING);
	if (!mr || !far_mr)
		fail("regions of both devices");
	connect_to(near, far->qp_num);
	connect_to(far, near->qp_num);
	memset(source, 0x5a, BUFFER);
	memset(target, 0, BUFFER);
	struct ibv_sge sge = { (uintptr_t)source, BUFFER, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .wr.rdma = { (uintptr_t)target, far_mr->rkey } };
	post(near, &wr);
	completes("IBA 9.4.3", cq, 1, IBV_WC_SUCCESS, "a write to the other device %s", where);
	holds("IBA 9.4.3", !memcmp(source, target, BUFFER), "it arrived");
	target[17] = 1;
	wr.opcode = IBV_WR_RDMA_READ;
	post(near, &wr);
	completes("IBA 9.4.4", cq, 1, IBV_WC_SUCCESS, "a read from it %s", where);
	holds("IBA 9.4.4", source[17] == 1, "it brought what is there");
	receive(near, 2, source, 64, mr->lkey);
	sge = (struct ibv_sge){ (uintptr_t)target, 64, far_mr->lkey };
	wr.opcode = IBV_WR_SEND;
	post(far, &wr);
	completes("IBA 9.4.1", cq, 2, IBV_WC_SUCCESS, "a message from it %s", where);
	ibv_destroy_qp(near);
	ibv_destroy_qp(far);
	ibv_dereg_mr(mr);
	ibv_dereg_mr(far_mr);
	ibv_destroy_cq(cq);
	ibv_destroy_cq(far_cq);
}

static void strangers(void)
{
	const char *page = "ibv_create_qp(3)";
	struct ibv_cq *cq = new_cq(16), *far_cq = ibv_create_cq(second, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = far_cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 }
	};
	row(page, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &init)),
	    "a completion queue of the other device");
	init.recv_cq = cq;
	row(page, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(second_pd, &init)),
	    "a domain of the other device");
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	init.srq = ibv_create_srq(second_pd, &srq_init);
	if (!init.srq)
		fail("a shared receive queue");
	row(page, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &init)),
	    "a shared queue of the other device");
	ibv_destroy_srq(init.srq);
	struct ibv_parent_domain_init_attr parent = { .pd = second_pd };
	row("ibv_alloc_parent_domain(3)", EINVAL,
	    POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &parent)),
	    "a parent domain around the other device's");
	static char memory[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), EVERYTHING);
	if (!mr)
		fail("a region");
	row("ibv_rereg_mr(3)", EINVAL,
	    (errno = 0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second_pd, NULL, 0, 0)) ? errno
											 : 0,
	    "a region moved to the other device's domain");
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_destroy_cq(far_cq);
}

/* Each device has a memory of its own: what one gives is not taken from the other's. */
static void device_memory(void)
{
	enum { ALL = 256 << 10 };
	struct ibv_context *both[] = { context, second };
	struct ibv_alloc_dm_attr all = { .length = ALL }, more = { .length = 4 };
	struct ibv_dm *taken[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_device_attr_ex attr = { 0 };
		if (ibv_query_device_ex(both[i], NULL, &attr))
			fail("extended attributes");
		equal("ibv_query_device_ex(3)", ALL, attr.max_dm_size, "memory of device %d", i);
		taken[i] = ibv_alloc_dm(both[i], &all);
		row("ibv_alloc_dm(3)", 0, taken[i] ? 0 : errno, "all memory of device %d", i);
	}
	for (int i = 0; i < 2; i++)
		row("ibv_alloc_dm(3)", ENOMEM, POINTER(ibv_free_dm, ibv_alloc_dm(both[i], &more)),
		    "four bytes more of device %d", i);
	for (int i = 0; i < 2; i++) {
		if (taken[i])
			ibv_free_dm(taken[i]);
		row("ibv_free_dm(3)", 0, POINTER(ibv_free_dm, ibv_alloc_dm(both[i], &more)),
		    "four bytes of device %d when all has come back", i);
	}
}

/* A child uses both devices and ends; its parent's go on. */
static void forked(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		rows = wrong = 0;
		traffic("in a forked child");
		exit(wrong);
	}
	int status = -1;
	waitpid(child, &status, 0);
	equal("fork(2)", 0, status, "end of the child");
	traffic("after the child's end");
}

/* The second device goes on without the first. */
static void without_the_first(void)
{
	ibv_dealloc_pd(pd);
	equal("ibv_close_device(3)", 0, ibv_close_device(context), "the first device closes");
	context = second;
	pd = second_pd;
	traffic("without the first device");
}

int main(void)
{
	open_both();
	traffic("in one process");
	strangers();
	device_memory();
	forked();
	without_the_first();
	return finish();
}
