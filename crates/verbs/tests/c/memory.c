/* Keys and memory that are wrong or vanish: the completion says so, the program lives. */
#include "common.h"

static struct ibv_context *context;
static struct ibv_pd *pd, *foreign_pd;
static struct ibv_cq *cq;
static const int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		       IBV_ACCESS_REMOTE_ATOMIC;

/* The status of one request on a fresh pair of QPs. */
static enum ibv_wc_status outcome(enum ibv_wr_opcode opcode, void *addr, uint32_t length,
				  struct ibv_mr *mr, void *remote, uint32_t rkey)
{
	struct ibv_qp_init_attr init = basic_qp(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &init), *peer = ibv_create_qp(pd, &init);
	struct ibv_wc wc;

	STATUS(connect_qp(qp, peer), 0);
	STATUS(connect_qp(peer, qp), 0);
	STATUS(post(qp, opcode, addr, length, mr, remote, rkey), 0);
	wc = next_completion(cq);
	CHECK(wc.qp_num == qp->qp_num);
	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_destroy_qp(peer), 0);
	return wc.status;
}

static void keys(char *a, char *b)
{
	struct ibv_mr *local = ibv_reg_mr(pd, a, 4096, ALL);
	struct ibv_mr *remote = ibv_reg_mr(pd, b, 4096, ALL);
	struct ibv_mr *foreign = ibv_reg_mr(foreign_pd, b, 4096, ALL);
	struct ibv_mr *closed = ibv_reg_mr(pd, b, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *readonly = ibv_reg_mr(pd, a, 4096, 0);
	uint32_t stale = closed->rkey;

	strcpy(a, "from here");
	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, local, b, remote->rkey), IBV_WC_SUCCESS);
	CHECK(!strcmp(b, "from here"));
	STATUS(outcome(IBV_WR_RDMA_READ, a + 64, 16, local, b, remote->rkey), IBV_WC_SUCCESS);
	CHECK(!strcmp(a + 64, "from here"));

	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, local, b, remote->rkey ^ 0x10000),
	       IBV_WC_REM_ACCESS_ERR);
	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, local, b, foreign->rkey), IBV_WC_REM_ACCESS_ERR);
	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, local, b, closed->rkey), IBV_WC_REM_ACCESS_ERR);
	STATUS(outcome(IBV_WR_RDMA_READ, a, 16, local, b, closed->rkey), IBV_WC_REM_ACCESS_ERR);
	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, local, b + 4090, remote->rkey),
	       IBV_WC_REM_ACCESS_ERR);
	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, foreign, b, remote->rkey), IBV_WC_LOC_PROT_ERR);
	STATUS(outcome(IBV_WR_RDMA_WRITE, a + 4090, 16, local, b, remote->rkey),
	       IBV_WC_LOC_PROT_ERR);
	STATUS(outcome(IBV_WR_RDMA_READ, a, 16, readonly, b, remote->rkey), IBV_WC_LOC_PROT_ERR);
	ibv_dereg_mr(closed);
	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, local, b, stale), IBV_WC_REM_ACCESS_ERR);
	ibv_dereg_mr(local);
	ibv_dereg_mr(remote);
	ibv_dereg_mr(foreign);
	ibv_dereg_mr(readonly);
}

/* An address handle serves the QPs of its own PD only. */
static void handles(char *a)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } };
	struct ibv_mr *local = ibv_reg_mr(pd, a, 4096, ALL);
	struct ibv_qp_init_attr init = basic_qp(cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5 };
	struct ibv_sge sge = { (uintptr_t)a, 16, local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_ah *ah, *foreign;
	struct ibv_qp *qp;

	CHECK(!ibv_query_gid(context, 1, 0, &to.grh.dgid));
	ah = ibv_create_ah(pd, &to);
	foreign = ibv_create_ah(foreign_pd, &to);
	init.qp_type = IBV_QPT_UD;
	qp = ibv_create_qp(pd, &init);
	STATUS(ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
	       0);
	attr.qp_state = IBV_QPS_RTR;
	STATUS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	STATUS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 5;
	wr.wr.ud.ah = ah;
	STATUS(ibv_post_send(qp, &wr, &bad), 0);
	STATUS(next_completion(cq).status, IBV_WC_SUCCESS);
	wr.wr.ud.ah = foreign;
	STATUS(ibv_post_send(qp, &wr, &bad), 0);
	STATUS(next_completion(cq).status, IBV_WC_LOC_QP_OP_ERR);
	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_destroy_ah(foreign), 0);
	STATUS(ibv_destroy_ah(ah), 0);
	STATUS(ibv_dereg_mr(local), 0);
}

static char *fresh(size_t bytes)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void vanishing(char *a)
{
	struct ibv_mr *local = ibv_reg_mr(pd, a, 4096, ALL);
	char *gone = fresh(8192), *again;
	struct ibv_mr *remote = ibv_reg_mr(pd, gone, 8192, ALL);
	int fd = memfd_create("truncated", 0);
	char *file;

	/* Unmapped, and mapped anew at the same place: the key is dead, the new memory untouched.
	 */
	STATUS(outcome(IBV_WR_RDMA_WRITE, a, 16, local, gone, remote->rkey), IBV_WC_SUCCESS);
	munmap(gone, 8192);
	again = mmap(gone, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		     -1, 0);
	CHECK(again == gone);
	CHECK(outcome(IBV_WR_RDMA_WRITE, a, 16, local, gone, remote->rkey) != IBV_WC_SUCCESS);
	CHECK(again[0] == 0);
	STATUS(ibv_dereg_mr(remote), 0);
	munmap(again, 8192);

	/* Truncated under the registration: SIGBUS for a careless engine. */
	CHECK(!ftruncate(fd, 8192));
	file = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	remote = ibv_reg_mr(pd, file, 8192, ALL);
	CHECK(remote);
	CHECK(!ftruncate(fd, 0));
	CHECK(outcome(IBV_WR_RDMA_WRITE, a, 16, local, file, remote->rkey) != IBV_WC_SUCCESS);
	CHECK(outcome(IBV_WR_RDMA_WRITE, file, 16, remote, a, local->rkey) != IBV_WC_SUCCESS);
	STATUS(ibv_dereg_mr(remote), 0);
	munmap(file, 8192);
	close(fd);
	STATUS(ibv_dereg_mr(local), 0);
}

int main(void)
{
	char *a = fresh(4096), *b = fresh(4096);

	context = open_context();
	pd = ibv_alloc_pd(context);
	foreign_pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	keys(a, b);
	handles(a);
	vanishing(a);
	STATUS(ibv_destroy_cq(cq), 0);
	STATUS(ibv_dealloc_pd(foreign_pd), 0);
	STATUS(ibv_dealloc_pd(pd), 0);
	STATUS(ibv_close_device(context), 0);
	return failures != 0;
}
