/*
 * A library whose constructor sends a message and sleeps until it has come, as plugins do that are
 * loaded while they connect: the dynamic loader's lock is held meanwhile, and nothing that serves
 * the device may want it.
 */
#include "rows.h"

static char memory[64];

__attribute__((constructor)) static void connect_and_wait(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_cq *sends, *receives, *told;
	struct ibv_qp *from, *to;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	void *cookie;

	open_first_device();
	channel = ibv_create_comp_channel(context);
	receives = channel ? ibv_create_cq(context, 4, NULL, channel, 0) : NULL;
	if (!receives)
		fail("a queue that tells");
	sends = new_cq(4);
	from = new_qp(pd, sends, IBV_QPT_RC);
	to = new_qp(pd, receives, IBV_QPT_RC);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	if (!mr || ibv_req_notify_cq(receives, 0))
		fail("memory, and to be told");
	receive(to, 1, memory, 8, mr->lkey);
	post(from, &(struct ibv_send_wr){
			   .wr_id = 2,
			   .sg_list = &(struct ibv_sge){ (uintptr_t)memory + 32, 8, mr->lkey },
			   .num_sge = 1,
			   .opcode = IBV_WR_SEND });
	if (ibv_get_cq_event(channel, &told, &cookie))
		fail("to be told");
	ibv_ack_cq_events(told, 1);
	holds("", ibv_poll_cq(receives, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS,
	      "a message comes while its program is in dlopen(3)");
	fflush(stdout);
}
