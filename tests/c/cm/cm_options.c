/*
 * Options of librdmacm's identifiers, and those of a vendor that cross with a connection. Each
 * subcommand ends with 0 when all was as Linux has it, and says where it was not.
 *
 *   cm_options options|ece ADDRESS PORT    both ends at ADDRESS of this host
 */
#include "cm_ids.h"

/* --- rdma_set_option --- */

static int set_byte(struct rdma_cm_id *id, int option, uint8_t value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value);
}

static int set_flag(struct rdma_cm_id *id, int option, int value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value);
}

static void options_of_ports(struct rdma_event_channel *of)
{
	struct rdma_cm_id *first = identifier(of), *second = identifier(of);
	struct sockaddr *at = parsed("127.0.0.1", port + 1), *any6 = parsed("::", port + 2),
			*any4 = parsed("0.0.0.0", port + 2);

	CHECK(!rdma_bind_addr(first, at));
	REFUSED(rdma_bind_addr(second, at), EADDRINUSE);
	/* To share a port may still be allowed, but not be forbidden any more. */
	REFUSED(set_flag(first, RDMA_OPTION_ID_REUSEADDR, 0), EINVAL);
	CHECK(!set_flag(first, RDMA_OPTION_ID_REUSEADDR, 1));
	REFUSED(rdma_bind_addr(second, at), EADDRINUSE);
	CHECK(!set_flag(second, RDMA_OPTION_ID_REUSEADDR, 1));
	CHECK(!rdma_bind_addr(second, at));
	REFUSED(rdma_listen(first, 1), EADDRINUSE);
	destroy(second);
	CHECK(!rdma_listen(first, 1));
	REFUSED(set_flag(first, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
	REFUSED(set_flag(first, RDMA_OPTION_ID_AFONLY, 1), EINVAL);
	destroy(first);

	first = identifier(of);
	second = identifier(of);
	CHECK(!rdma_bind_addr(first, any6));
	REFUSED(rdma_bind_addr(second, any4), EADDRNOTAVAIL);
	destroy(first);
	first = identifier(of);
	CHECK(!set_flag(first, RDMA_OPTION_ID_AFONLY, 1));
	CHECK(!rdma_bind_addr(first, any6));
	CHECK(!rdma_bind_addr(second, any4));
	CHECK(!rdma_listen(first, 1) && !rdma_listen(second, 1));
	destroy(first);
	destroy(second);
}

static int options(void)
{
	struct rdma_event_channel *of = channel();
	struct rdma_cm_id *server = listener(of), *client = identifier(of), *accepted, *datagrams;
	struct ibv_path_data path = { .flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY |
					       IBV_PATH_FLAG_BIDIRECTIONAL };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct rdma_conn_param wanted = param();
	uint8_t byte = 0;
	int word = 0;

	options_of_ports(of);

	/* Sizes, names and levels are checked. */
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &word, sizeof word),
		EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte,
				sizeof byte),
		EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &byte, sizeof byte),
		EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &word,
				sizeof word),
		EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, 9, &byte, sizeof byte), ENOSYS);
	REFUSED(rdma_set_option(client, RDMA_OPTION_IB, 9, &path, sizeof path), ENOSYS);
	REFUSED(rdma_set_option(client, 9, 0, &byte, sizeof byte), ENOSYS);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, (void *)8, 1), EFAULT);
	CHECK(!rdma_create_id(of, &datagrams, NULL, RDMA_PS_UDP));
	REFUSED(set_byte(datagrams, RDMA_OPTION_ID_ACK_TIMEOUT, 14), EINVAL);
	destroy(datagrams);

	/* TOS and ACK timeout reach the queue pair, the TOS that of the peer too. */
	CHECK(!set_byte(client, RDMA_OPTION_ID_TOS, 0x48));
	CHECK(!set_byte(client, RDMA_OPTION_ID_ACK_TIMEOUT, 17));
	resolve(client, of);
	ask(client);
	accepted = told(of, RDMA_CM_EVENT_CONNECT_REQUEST);
	accept_with_qp(accepted);
	told(of, RDMA_CM_EVENT_ESTABLISHED);
	told(of, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!ibv_query_qp(client->qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT, &init));
	CHECK(attr.timeout == 17 && attr.ah_attr.grh.traffic_class == 0x48);
	CHECK(!ibv_query_qp(accepted->qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT, &init));
	CHECK(attr.ah_attr.grh.traffic_class == 0x48);
	send_one(client, accepted);
	destroy(client);
	told(of, RDMA_CM_EVENT_DISCONNECTED);
	destroy(accepted);

	/* A path instead of the route that would have been resolved. */
	client = identifier(of);
	REFUSED(rdma_set_option(client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path),
		EINVAL);
	resolve_addr(client, of);
	REFUSED(rdma_set_option(client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path,
				sizeof path - 1),
		EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, 0), EINVAL);
	path.path.reversible_numpath = 1 << 7;
	path.path.mtu = 2 << 6 | IBV_MTU_512;
	path.path.packetlifetime = 2 << 6 | 15;
	path.path.rate = 2 << 6 | IBV_RATE_25_GBPS;
	path.path.pkey = htons(0xffff);
	CHECK(!rdma_set_option(client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path));
	CHECK(told(of, RDMA_CM_EVENT_ROUTE_RESOLVED) == client);
	CHECK(client->route.num_paths == 1 && client->route.path_rec[0].mtu == IBV_MTU_512);
	make_qp(client);
	CHECK(!rdma_connect(client, &wanted));
	accepted = told(of, RDMA_CM_EVENT_CONNECT_REQUEST);
	accept_with_qp(accepted);
	told(of, RDMA_CM_EVENT_ESTABLISHED);
	told(of, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!ibv_query_qp(client->qp, &attr, IBV_QP_PATH_MTU, &init) &&
	      attr.path_mtu == IBV_MTU_512);
	CHECK(!ibv_query_qp(accepted->qp, &attr, IBV_QP_PATH_MTU, &init) &&
	      attr.path_mtu == IBV_MTU_512);
	send_one(client, accepted);
	destroy(client);
	told(of, RDMA_CM_EVENT_DISCONNECTED);
	destroy(accepted);
	destroy(server);
	rdma_destroy_event_channel(of);
	return 0;
}

/* --- Enhanced connection establishment, between queue pairs that librdmacm does not know. --- */

static int ece(void)
{
	struct rdma_event_channel *of = channel();
	struct rdma_cm_id *server = listener(of), *client, *accepted;
	struct ibv_ece mine = { .vendor_id = 0x15b3, .options = 0x1234 }, theirs;
	struct rdma_conn_param wanted = param();
	struct rdma_cm_event *found;
	wanted.qp_num = 0x1001;
	for (int round = 0; round < 2; round++) {
		client = identifier(of);
		resolve(client, of);
		CHECK(!rdma_set_local_ece(client, &mine));
		CHECK(!rdma_connect(client, &wanted));
		accepted = told(of, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(!rdma_get_remote_ece(accepted, &theirs));
		CHECK(theirs.vendor_id == 0x15b3 && theirs.options == 0x1234);
		if (round == 0) {
			struct ibv_ece less = { .vendor_id = 0x15b3, .options = 0x34 };
			CHECK(!rdma_set_local_ece(accepted, &less));
			wanted.qp_num = 0x1002;
			CHECK(!rdma_accept(accepted, &wanted));
			CHECK(told(of, RDMA_CM_EVENT_CONNECT_RESPONSE) == client);
			CHECK(!rdma_get_remote_ece(client, &theirs));
			CHECK(theirs.vendor_id == 0x15b3 && theirs.options == 0x34);
			CHECK(!rdma_establish(client));
			CHECK(told(of, RDMA_CM_EVENT_ESTABLISHED) == accepted);
			destroy(client);
			told(of, RDMA_CM_EVENT_DISCONNECTED);
		} else {
			/* IBA 1.4, A19: the reason is its own. */
			CHECK(!rdma_reject_ece(accepted, "no", 2));
			found = event(of, RDMA_CM_EVENT_REJECTED);
			CHECK(found->status == 35 &&
			      !memcmp(found->param.conn.private_data, "no", 2));
			rdma_ack_cm_event(found);
			destroy(client);
		}
		destroy(accepted);
	}
	destroy(server);
	rdma_destroy_event_channel(of);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 64;
	take_place(argv[2], argv[3]);
	return strcmp(argv[1], "ece") ? options() : ece();
}
