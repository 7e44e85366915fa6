/*
 * Wrong requests of the unreliable services (IBA 9.8.2.2, 9.6.1): the target ignores what is wrong,
 * the sender sees success, and both go on.
 */
#include "requests.h"

static void connections(void)
{
	struct pair pair = pair_of(IBV_QPT_UC);
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	wr.wr.rdma.rkey = 0x4242;
	post(pair.a, &wr);
	completes("IBA 9.8.2.2", pair.a_cq, 100, IBV_WC_SUCCESS, "UC: WRITE under a wrong key");
	wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, &sge);
	wr.wr_id = 101;
	receive(pair.b, 200, remote_memory, 64, remote->lkey);
	untouched("UC");
	post(pair.a, &wr);
	completes("IBA 9.8.2.2", pair.a_cq, 101, IBV_WC_SUCCESS, "UC: the next WRITE");
	completes("IBA 9.8.2.2", pair.b_cq, 200, IBV_WC_SUCCESS, "UC: the next WRITE arrives");
	sge.lkey = 0x99;
	wr.wr_id = 102;
	post(pair.a, &wr);
	completes("IBA 10.3.1.6", pair.a_cq, 102, IBV_WC_LOC_PROT_ERR, "UC: a wrong local key");
	equal("IBA 10.3.1.6", IBV_QPS_SQE, state_of(pair.a), "UC: then the QP is in SQE");
	wr.wr_id = 103;
	post(pair.a, &wr);
	completes("IBA 10.3.1.6", pair.a_cq, 103, IBV_WC_WR_FLUSH_ERR,
		  "UC: a request posted in SQE");
	end(pair);
}

static void datagrams(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct pair pair = pair_of(IBV_QPT_UD);
	struct ibv_ah *ah = own_ah();
	static const struct {
		uint32_t length, qkey, room;
		const char *what;
	} lost[] = { { 64, QKEY + 1, 104, "UD: a wrong Q_Key" }, { 64, 0, 104, "UD: Q_Key 0" } };
	for (unsigned i = 0; i < sizeof(lost) / sizeof(*lost); i++) {
		wr = request(IBV_WR_SEND, &sge);
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = pair.b->qp_num;
		wr.wr.ud.remote_qkey = lost[i].qkey;
		sge.length = lost[i].length;
		receive(pair.b, 210 + i, remote_memory, lost[i].room, remote->lkey);
		post(pair.a, &wr);
		completes("IBA 9.6.1.4.1", pair.a_cq, 100, IBV_WC_SUCCESS, "%s", lost[i].what);
	}
	wr.wr.ud.remote_qkey = QKEY;
	wr.wr.ud.remote_qpn = pair.b->qp_num ^ 0x2000;
	post(pair.a, &wr);
	completes("IBA 9.6.1", pair.a_cq, 100, IBV_WC_SUCCESS, "UD: a QP that does not exist");
	wr.wr.ud.remote_qpn = pair.b->qp_num;
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = { 0 };
		wr.imm_data = 0x5500 + i;
		post(pair.a, &wr);
		completes("IBA 9.6.1", pair.a_cq, 100, IBV_WC_SUCCESS, "UD: a right datagram");
		int came = wait_for(pair.b_cq, &wc, 10) && wc.status == IBV_WC_SUCCESS &&
			   wc.wr_id == 210 + i;
		equal("IBA 9.6.1", 1, came && wc.imm_data == wr.imm_data,
		      "UD: the wrong ones took no receive, %d", i);
	}
	sge.lkey = 0x99;
	post(pair.a, &wr);
	completes("IBA 10.3.1.6", pair.a_cq, 100, IBV_WC_LOC_PROT_ERR, "UD: a wrong local key");
	equal("IBA 10.3.1.6", IBV_QPS_SQE, state_of(pair.a), "UD: then the QP is in SQE");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	row("man ibv_modify_qp", 0, ibv_modify_qp(pair.a, &attr, IBV_QP_STATE), "UD: SQE to RTS");
	sge.lkey = local->lkey;
	receive(pair.b, 220, remote_memory, 104, remote->lkey);
	post(pair.a, &wr);
	completes("IBA 10.3.1.6", pair.a_cq, 100, IBV_WC_SUCCESS, "UD: after SQE");
	completes("IBA 10.3.1.6", pair.b_cq, 220, IBV_WC_SUCCESS, "UD: after SQE, at the receiver");
	end(pair);
	ibv_destroy_ah(ah);
}

int main(void)
{
	open_with_memories();
	connections();
	datagrams();
	ibv_dereg_mr(local);
	ibv_dereg_mr(remote);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
