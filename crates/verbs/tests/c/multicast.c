/*
 * Datagrams to a multicast group reach every attached QP of every process, and nobody else: from
 * every GID there is, each in a process of its own that gets the GID's index and the group.
 */
#include "common.h"

#define QKEY 0x11111111
#define MULTICAST_QPN 0xffffff
#define GRH 40

struct member {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[GRH + 64];
};

static int gid_index;
static union ibv_gid group;

static struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = basic_qp(cq);

	init.qp_type = type;
	return ibv_create_qp(pd, &init);
}

static void join(struct ibv_pd *pd, struct member *member, int attached)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	member->cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	member->qp = new_qp(pd, member->cq, IBV_QPT_UD);
	member->mr = ibv_reg_mr(pd, member->memory, sizeof(member->memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(member->cq && member->qp && member->mr);
	STATUS(ibv_modify_qp(member->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
	       0);
	attr.qp_state = IBV_QPS_RTR;
	STATUS(ibv_modify_qp(member->qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	STATUS(ibv_modify_qp(member->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	STATUS(post_receive(member->qp, member->memory, sizeof(member->memory), member->mr), 0);
	if (attached)
		STATUS(ibv_attach_mcast(member->qp, &group, 0), 0);
}

static void leave(struct member *member)
{
	ibv_dereg_mr(member->mr);
	STATUS(ibv_destroy_qp(member->qp), 0);
	STATUS(ibv_destroy_cq(member->cq), 0);
}

static void send_to_group(struct member *from, struct ibv_ah *ah, const char *text)
{
	struct ibv_sge sge = { (uintptr_t)text, strlen(text) + 1, 0 };
	struct ibv_send_wr wr = { .wr_id = 7,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = MULTICAST_QPN;
	wr.wr.ud.remote_qkey = QKEY;
	STATUS(ibv_post_send(from->qp, &wr, &bad), 0);
	wc = next_completion(from->cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
}

static void took(struct member *member, const char *text)
{
	struct ibv_wc wc = next_completion(member->cq);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	CHECK(wc.byte_len == GRH + strlen(text) + 1 && wc.wc_flags & IBV_WC_GRH);
	CHECK(!strcmp(member->memory + GRH, text));
}

/* A process of its own: says when it is a member, and ends well once it took a message. */
static void other_process(int ready)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_context());
	static struct member member;

	join(pd, &member, 1);
	CHECK(write(ready, "r", 1) == 1);
	took(&member, "to all");
	STATUS(ibv_detach_mcast(member.qp, &group, 0), 0);
	leave(&member);
	exit(failures != 0);
}

static void refusals(struct ibv_pd *pd, struct member *member)
{
	union ibv_gid unicast = { .raw = { 0xfe, 0x80, [15] = 1 } };
	union ibv_gid foreign = group;
	struct ibv_qp *rc = new_qp(pd, member->cq, IBV_QPT_RC);

	STATUS(ibv_attach_mcast(rc, &group, 0), EINVAL);
	STATUS(ibv_attach_mcast(member->qp, &unicast, 0), EINVAL);
	STATUS(ibv_detach_mcast(rc, &group, 0), EINVAL);
	foreign.raw[15] ^= 1;
	STATUS(ibv_detach_mcast(member->qp, &foreign, 0), EINVAL);
	STATUS(ibv_attach_mcast(member->qp, &group, 0), 0);
	STATUS(ibv_destroy_qp(member->qp), EBUSY);
	STATUS(ibv_destroy_qp(rc), 0);
}

static int from_every_gid(void)
{
	struct ibv_context *context = open_context();
	union ibv_gid gid;
	int index, status, told = 0;
	char text[8];

	for (index = 0; index < 16; index++) {
		/* Linux routes no IPv6 multicast over the loopback interface. */
		if (ibv_query_gid(context, 1, index, &gid) ||
		    (!gid.global.subnet_prefix && !gid.raw[10]))
			continue;
		snprintf(text, sizeof(text), "%d", index);
		pid_t child = fork();
		if (!child) {
			execl("/proc/self/exe", "multicast", text,
			      gid.global.subnet_prefix ? "ff3e::1234" : "::ffff:239.1.2.3", NULL);
			_exit(3);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		told++;
	}
	CHECK(told > 0);
	ibv_close_device(context);
	return failures != 0;
}

int main(int argc, char **argv)
{
	static struct member sender, first, second, outsider;
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } };
	struct ibv_device_attr device;
	struct ibv_pd *pd;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	int ready[2], status;
	char byte;
	pid_t child;

	if (argc == 1)
		return from_every_gid();
	if (argc != 3 || inet_pton(AF_INET6, argv[2], &group) != 1)
		return 2;
	gid_index = atoi(argv[1]);
	CHECK(!pipe(ready));
	child = fork();
	if (!child)
		other_process(ready[1]);

	pd = ibv_alloc_pd(open_context());
	CHECK(!ibv_query_device(pd->context, &device));
	CHECK(device.max_mcast_grp > 0 && device.max_mcast_qp_attach > 0);
	to.grh.sgid_index = gid_index;
	to.grh.dgid = group;
	ah = ibv_create_ah(pd, &to);
	CHECK(ah);
	join(pd, &sender, 0);
	join(pd, &first, 1);
	join(pd, &second, 1);
	join(pd, &outsider, 0);
	refusals(pd, &first);

	CHECK(read(ready[0], &byte, 1) == 1);
	send_to_group(&sender, ah, "to all");
	took(&first, "to all");
	took(&second, "to all");
	CHECK(waitpid(child, &status, 0) == child && status == 0);

	STATUS(ibv_detach_mcast(first.qp, &group, 0), 0);
	STATUS(ibv_detach_mcast(first.qp, &group, 0), EINVAL);
	STATUS(post_receive(first.qp, first.memory, sizeof(first.memory), first.mr), 0);
	STATUS(post_receive(second.qp, second.memory, sizeof(second.memory), second.mr), 0);
	send_to_group(&sender, ah, "to one");
	took(&second, "to one");
	CHECK(ibv_poll_cq(first.cq, 1, &wc) == 0);
	CHECK(ibv_poll_cq(outsider.cq, 1, &wc) == 0);
	CHECK(ibv_poll_cq(sender.cq, 1, &wc) == 0);

	STATUS(ibv_detach_mcast(second.qp, &group, 0), 0);
	leave(&first);
	leave(&second);
	leave(&outsider);
	leave(&sender);
	return failures != 0;
}
