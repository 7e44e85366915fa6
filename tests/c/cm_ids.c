/*
 * What librdmacm's identifiers can do besides connecting. Each subcommand ends with 0 when all was as Linux has it, and
 * says where it was not.
 *
 *   cm_ids migrate|options|ece|fork ADDRESS PORT     both ends at ADDRESS of this host
 *   cm_ids unreachable ADDRESS NOBODY BEYOND PORT    a neighbour, nobody on its network, a place without a route
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

enum { WAIT_MS = 10000, SETTLED_MS = 100 };

static struct sockaddr_storage address;
static int port;

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));                   \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* A call that must fail so. */
#define REFUSED(call, error)                                                                                           \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK((call) == -1 && errno == (error));                                                               \
	} while (0)

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

static struct sockaddr *parsed(const char *text, int at)
{
	static struct sockaddr_storage all[4];
	static int next;
	struct sockaddr_storage *storage = &all[next++ % 4];
	struct sockaddr_in *v4 = (struct sockaddr_in *)storage;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)storage;
	memset(storage, 0, sizeof *storage);
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(at);
	} else {
		CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(at);
	}
	return (struct sockaddr *)storage;
}

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();
	CHECK(made);
	return made;
}

static int is_readable(struct rdma_event_channel *of, int wait_ms)
{
	struct pollfd fd = { of->fd, POLLIN, 0 };
	return poll(&fd, 1, wait_ms) == 1;
}

/* The next event, which must be this one. */
static struct rdma_cm_event *event_at(int line, struct rdma_event_channel *of, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	if (!is_readable(of, WAIT_MS)) {
		fprintf(stderr, "line %d: no %s comes\n", line, rdma_event_str(type));
		exit(1);
	}
	CHECK(!rdma_get_cm_event(of, &event));
	if (event->event != type) {
		fprintf(stderr, "line %d: %s, status %d, instead of %s\n", line, rdma_event_str(event->event),
			event->status, rdma_event_str(type));
		exit(1);
	}
	return event;
}
#define event(of, type) event_at(__LINE__, of, type)

/* The same, acknowledged; its identifier, which of a request is the new one. */
static struct rdma_cm_id *told_at(int line, struct rdma_event_channel *of, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *found = event_at(line, of, type);
	struct rdma_cm_id *id = found->id;
	rdma_ack_cm_event(found);
	return id;
}
#define told(of, type) told_at(__LINE__, of, type)

static struct rdma_cm_id *identifier(struct rdma_event_channel *of)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(of, &id, NULL, RDMA_PS_TCP));
	return id;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *of)
{
	struct rdma_cm_id *id = identifier(of);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address));
	CHECK(!rdma_listen(id, 4));
	return id;
}

static struct rdma_conn_param param(void)
{
	return (struct rdma_conn_param){ .retry_count = 7, .rnr_retry_count = 7 };
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
						  .max_recv_sge = 1, .max_inline_data = 16 } };
	CHECK(!rdma_create_qp(id, NULL, &attr));
}

static void resolve_addr(struct rdma_cm_id *id, struct rdma_event_channel *of)
{
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	CHECK(told(of, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
}

static void resolve(struct rdma_cm_id *id, struct rdma_event_channel *of)
{
	resolve_addr(id, of);
	CHECK(!rdma_resolve_route(id, 2000));
	CHECK(told(of, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
}

static void ask(struct rdma_cm_id *id)
{
	struct rdma_conn_param wanted = param();
	make_qp(id);
	CHECK(!rdma_connect(id, &wanted));
}

static void accept_with_qp(struct rdma_cm_id *id)
{
	struct rdma_conn_param wanted = param();
	make_qp(id);
	CHECK(!rdma_accept(id, &wanted));
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

/* One message from one end of a connection to the other. */
static void send_one(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static char buffer[64];
	struct ibv_mr *mr = ibv_reg_mr(to->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge in = { (uintptr_t)buffer, sizeof buffer, mr ? mr->lkey : 0 }, out = { (uintptr_t) "hello", 6, 0 };
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad_send;
	struct ibv_wc wc;
	uint64_t end = now_ms() + WAIT_MS;
	CHECK(mr);
	memset(buffer, 0, sizeof buffer);
	CHECK(!ibv_post_recv(to->qp, &recv, &bad_recv));
	CHECK(!ibv_post_send(from->qp, &send, &bad_send));
	while (!ibv_poll_cq(to->recv_cq, 1, &wc))
		CHECK(now_ms() < end);
	CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(buffer, "hello"));
	while (!ibv_poll_cq(from->send_cq, 1, &wc))
		CHECK(now_ms() < end);
	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr));
}

/* --- rdma_migrate_id: what has not been told is told at the new channel, and all that comes. --- */

static int migrate(void)
{
	struct rdma_event_channel *first = channel(), *second = channel(), *clients = channel();
	struct rdma_cm_id *server = listener(first), *client = identifier(clients), *accepted, *early;

	/* An event that waits moves along, and leaves nothing behind. */
	early = identifier(first);
	CHECK(!rdma_resolve_addr(early, NULL, (struct sockaddr *)&address, 2000));
	CHECK(is_readable(first, WAIT_MS));
	CHECK(!rdma_migrate_id(early, second));
	CHECK(early->channel == second && !is_readable(first, SETTLED_MS));
	CHECK(told(second, RDMA_CM_EVENT_ADDR_RESOLVED) == early);
	destroy(early);

	/* So does a request that waits at a listener. */
	resolve(client, clients);
	ask(client);
	CHECK(is_readable(first, WAIT_MS));
	CHECK(!rdma_migrate_id(server, second));
	CHECK(!is_readable(first, SETTLED_MS));
	accepted = told(second, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(accepted->channel == second);
	accept_with_qp(accepted);
	CHECK(told(clients, RDMA_CM_EVENT_ESTABLISHED) == client);
	CHECK(told(second, RDMA_CM_EVENT_ESTABLISHED) == accepted);

	/* A connection moves while it is used, and back. */
	CHECK(!rdma_migrate_id(accepted, first));
	send_one(client, accepted);
	send_one(accepted, client);
	CHECK(!rdma_migrate_id(accepted, second));
	CHECK(!rdma_migrate_id(accepted, first));
	CHECK(!rdma_disconnect(client));
	CHECK(told(first, RDMA_CM_EVENT_DISCONNECTED) == accepted);
	CHECK(!rdma_disconnect(accepted));
	CHECK(told(clients, RDMA_CM_EVENT_DISCONNECTED) == client);
	CHECK(!is_readable(second, SETTLED_MS));
	destroy(accepted);
	destroy(client);

	/* The channel that it left may go, the one it is at serves it. */
	rdma_destroy_event_channel(first);
	client = identifier(clients);
	resolve(client, clients);
	ask(client);
	destroy(told(second, RDMA_CM_EVENT_CONNECT_REQUEST));
	told(clients, RDMA_CM_EVENT_REJECTED);
	destroy(client);
	destroy(server);
	rdma_destroy_event_channel(second);
	rdma_destroy_event_channel(clients);
	return 0;
}

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
	struct ibv_path_data path = { .flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct rdma_conn_param wanted = param();
	uint8_t byte = 0;
	int word = 0;

	options_of_ports(of);

	/* Sizes, names and levels are checked. */
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &word, sizeof word), EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, sizeof byte), EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &byte, sizeof byte), EINVAL);
	REFUSED(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &word, sizeof word), EINVAL);
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
	REFUSED(rdma_set_option(client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path), EINVAL);
	resolve_addr(client, of);
	REFUSED(rdma_set_option(client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path - 1), EINVAL);
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
	CHECK(!ibv_query_qp(client->qp, &attr, IBV_QP_PATH_MTU, &init) && attr.path_mtu == IBV_MTU_512);
	CHECK(!ibv_query_qp(accepted->qp, &attr, IBV_QP_PATH_MTU, &init) && attr.path_mtu == IBV_MTU_512);
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
			CHECK(found->status == 35 && !memcmp(found->param.conn.private_data, "no", 2));
			rdma_ack_cm_event(found);
			destroy(client);
		}
		destroy(accepted);
	}
	destroy(server);
	rdma_destroy_event_channel(of);
	return 0;
}

/* --- A child's copies of identifiers neither use nor end what is the parent's; those that it makes are as good as any. --- */

/* Asks for a connection once the parent says so, and waits until it ends. */
static int child(int go)
{
	struct rdma_event_channel *own;
	struct rdma_cm_id *client;
	char byte;
	if (read(go, &byte, 1) != 1)
		return 1;
	own = channel();
	client = identifier(own);
	resolve(client, own);
	ask(client);
	CHECK(told(own, RDMA_CM_EVENT_ESTABLISHED) == client);
	CHECK(told(own, RDMA_CM_EVENT_DISCONNECTED) == client);
	destroy(client);
	rdma_destroy_event_channel(own);
	return 0;
}

static int late_child(int go, struct rdma_event_channel *parents, struct rdma_cm_id *theirs)
{
	struct rdma_cm_event *event;
	fcntl(parents->fd, F_SETFL, O_NONBLOCK);
	REFUSED(rdma_get_cm_event(parents, &event), EIO);
	CHECK(rdma_disconnect(theirs) == -1);
	close(parents->fd);
	return child(go);
}

static pid_t forked(void)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	return pid;
}

static void ends_well(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
}

static int forks(void)
{
	struct rdma_event_channel *of;
	struct rdma_cm_id *server, *client, *accepted, *childs;
	pid_t early, late;
	int go[2];
	CHECK(!pipe(go));
	if (!(early = forked()))
		exit(child(go[0]));
	of = channel();
	server = listener(of);
	client = identifier(of);
	resolve(client, of);
	ask(client);
	accepted = told(of, RDMA_CM_EVENT_CONNECT_REQUEST);
	accept_with_qp(accepted);
	told(of, RDMA_CM_EVENT_ESTABLISHED);
	told(of, RDMA_CM_EVENT_ESTABLISHED);
	if (!(late = forked()))
		exit(late_child(go[0], of, client));
	for (int i = 0; i < 2; i++) {
		CHECK(write(go[1], "", 1) == 1);
		childs = told(of, RDMA_CM_EVENT_CONNECT_REQUEST);
		accept_with_qp(childs);
		CHECK(told(of, RDMA_CM_EVENT_ESTABLISHED) == childs);
		send_one(client, accepted);
		CHECK(!rdma_disconnect(childs));
		CHECK(told(of, RDMA_CM_EVENT_DISCONNECTED) == childs);
		destroy(childs);
	}
	ends_well(early);
	ends_well(late);
	/* Their ends ended nothing here. */
	CHECK(!is_readable(of, SETTLED_MS));
	send_one(client, accepted);
	send_one(accepted, client);
	destroy(client);
	CHECK(told(of, RDMA_CM_EVENT_DISCONNECTED) == accepted);
	destroy(accepted);
	destroy(server);
	rdma_destroy_event_channel(of);
	return 0;
}

/* --- Neighbours that answer, and that do not. --- */

static int unreachable(char **words)
{
	struct rdma_event_channel *of = channel();
	struct rdma_cm_id *id = identifier(of);
	struct rdma_cm_event *found;
	uint64_t begin = now_ms();
	CHECK(!rdma_resolve_addr(id, NULL, parsed(words[1], port), 400));
	CHECK(!is_readable(of, 300));
	found = event(of, RDMA_CM_EVENT_ADDR_ERROR);
	CHECK(found->id == id && found->status == -ETIMEDOUT);
	rdma_ack_cm_event(found);
	CHECK(now_ms() - begin >= 400 && now_ms() - begin < 4000);
	REFUSED(rdma_resolve_addr(id, NULL, parsed(words[2], port), 400), ENETUNREACH);
	/* The same identifier, another destination. */
	resolve_addr(id, of);
	destroy(id);
	/* While the first is waited for, the second is found; the first goes meanwhile. */
	id = identifier(of);
	CHECK(!rdma_resolve_addr(id, NULL, parsed(words[1], port), 60000));
	resolve_addr(identifier(of), of);
	destroy(id);
	CHECK(!is_readable(of, SETTLED_MS));
	rdma_destroy_event_channel(of);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 64;
	alarm(50);
	port = atoi(argv[argc - 1]);
	memcpy(&address, parsed(argv[2], port), sizeof(struct sockaddr_in6));
	if (!strcmp(argv[1], "migrate"))
		return migrate();
	if (!strcmp(argv[1], "options"))
		return options();
	if (!strcmp(argv[1], "ece"))
		return ece();
	if (!strcmp(argv[1], "fork"))
		return forks();
	return argc == 6 ? unreachable(argv + 2) : 64;
}
