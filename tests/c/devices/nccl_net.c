/*
 * What NCCL's network plugin for InfiniBand does from its start to its end (src/transport/net_ib):
 * the probe for dma-bufs, two ends of a connection over one domain, a queue pair connected to
 * itself that flushes by READs, memory with relaxed ordering; then everything goes in NCCL's order,
 * while requests are outstanding, and nothing uses the domain any more.
 */
#include "rows.h"

enum { DATA = 1 << 20, SLOTS = 256, REMOTE_ALL = LOCAL | REMOTE };

static struct ibv_mr *reg(struct ibv_pd *domain, void *memory, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(domain, memory, length, access);
	if (!mr)
		fail("a region");
	return mr;
}

static struct ibv_qp *connected(struct ibv_pd *domain, struct ibv_cq *cq)
{
	struct ibv_qp *qp = new_qp(domain, cq, IBV_QPT_RC);
	if (!qp)
		fail("a queue pair");
	return qp;
}

static void probe(void)
{
	const char *source = "ncclIbDmaBufSupport";
	struct ibv_pd *domain = ibv_alloc_pd(context);
	row(source, EBADF, POINTER(ibv_dereg_mr, ibv_reg_dmabuf_mr(domain, 0, 0, 0, -1, 0)),
	    "the probe for dma-bufs");
	row(source, 0, ibv_dealloc_pd(domain), "its domain goes");
}

static void whole_life(int outstanding)
{
	const char *source = "ncclIbCloseSend, ncclIbCloseRecv";
	static char memory[DATA], fifo[4096], records[4096], *host;
	host = host ? host : aligned_alloc(4096, 4096);
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_cq *send_cq = new_cq(2 * SLOTS), *recv_cq = new_cq(2 * SLOTS);
	struct ibv_qp *sends = connected(domain, send_cq), *receives = connected(domain, recv_cq),
		      *flush = connected(domain, recv_cq);
	connect_to(sends, receives->qp_num);
	connect_to(receives, sends->qp_num);
	connect_to(flush, flush->qp_num);
	struct ibv_mr *fifo_mr = reg(domain, fifo, sizeof(fifo), REMOTE_ALL),
		      *records_mr = reg(domain, records, sizeof(records), REMOTE_ALL);
	struct ibv_mr *host_mr = reg(domain, host, 4, LOCAL);
	struct ibv_mr *data = ibv_reg_mr_iova2(domain, memory, DATA, (uintptr_t)memory,
					       REMOTE_ALL | IBV_ACCESS_RELAXED_ORDERING);
	if (!data)
		fail("memory with relaxed ordering");
	struct ibv_recv_wr receive = { .wr_id = 7 }, *bad_receive;
	for (int i = 0; i < 8; i++)
		ibv_post_recv(receives, &receive, &bad_receive);
	struct ibv_sge all = { (uintptr_t)memory, DATA / 2, data->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &all,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)memory + DATA / 2, data->rkey } },
			   *bad;
	row(source, 0, ibv_post_send(sends, &wr, &bad), "a WRITE with immediate");
	struct ibv_wc wc;
	holds(source, wait_for(recv_cq, &wc, 5) && wc.status == IBV_WC_SUCCESS && wc.wr_id == 7,
	      "it arrives");
	equal("ibv_poll_cq(3)", IBV_WC_WITH_IMM, wc.wc_flags,
	      "with the flag of immediate data and no other, as a ConnectX shows it");
	completes(source, send_cq, 1, IBV_WC_SUCCESS, "it completes");
	struct ibv_sge one = { (uintptr_t)host, 1, host_mr->lkey };
	struct ibv_send_wr read = { .wr_id = 2,
				    .sg_list = &one,
				    .num_sge = 1,
				    .opcode = IBV_WR_RDMA_READ,
				    .send_flags = IBV_SEND_SIGNALED,
				    .wr.rdma = { (uintptr_t)memory, data->rkey } };
	row(source, 0, ibv_post_send(flush, &read, &bad), "a READ that flushes");
	completes(source, recv_cq, 2, IBV_WC_SUCCESS, "it completes");
	for (int i = 0; i < outstanding; i++)
		ibv_post_send(sends, &wr, &bad), ibv_post_send(flush, &read, &bad);
	row(source, 0, ibv_dereg_mr(data), "the memory goes");
	row(source, 0, ibv_destroy_qp(sends), "the sender goes");
	row(source, 0, ibv_dereg_mr(fifo_mr), "its fifo goes");
	row(source, 0, ibv_destroy_cq(send_cq), "its completion queue goes");
	row(source, 0, ibv_destroy_qp(receives), "the receiver goes");
	row(source, 0, ibv_destroy_qp(flush), "the queue pair that flushes goes");
	row(source, 0, ibv_dereg_mr(host_mr), "what it reads into goes");
	row(source, 0, ibv_dereg_mr(records_mr), "the records go");
	row(source, 0, ibv_destroy_cq(recv_cq), "the completion queue goes");
	row(source, 0, ibv_dealloc_pd(domain), "nothing uses the domain any more");
}

int main(void)
{
	ack_timeout = 14, retries = 7, rnr_retries = 7;
	open_first_device();
	probe();
	for (int outstanding = 0; outstanding < 8; outstanding++)
		whole_life(outstanding);
	return finish();
}
