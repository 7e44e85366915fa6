/*
 * A server of cm_stress: it accepts, refuses, breaks and ends connections at random until it is
 * asked to end, and then has nothing more than it began with.
 */
#ifndef STRESS_SERVER_H
#define STRESS_SERVER_H

#include "stress.h"

struct connection {
	struct rdma_cm_id *id;
	uint64_t since;
	enum rdma_cm_event_type last;
};

static struct connection connections[CONNECTIONS];
static struct ibv_mr *mr;
static char buffer[BUFFER];
static unsigned long accepted, finished;

static struct connection *slot_of(struct rdma_cm_id *id)
{
	for (int i = 0; i < CONNECTIONS; i++)
		if (connections[i].id == id)
			return &connections[i];
	return NULL;
}

static void drop(struct connection *connection)
{
	struct rdma_cm_id *id = connection->id;
	connection->id = NULL;
	if (id->qp)
		rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
	finished++;
}

static void requested(struct rdma_cm_id *id, uint64_t *random)
{
	struct connection *connection = slot_of(NULL);
	struct rdma_conn_param param = { .responder_resources = 1,
					 .initiator_depth = 1,
					 .rnr_retry_count = 7 };
	struct ibv_qp_init_attr attr = qp_attr();
	if (!connection || one_in(random, 10)) {
		rdma_reject(id, "no", 2);
		rdma_destroy_id(id);
		return;
	}
	*connection = (struct connection){ .id = id, .since = now_ms() };
	if (one_in(random, 15)) {
		drop(connection);
		return;
	}
	if (rdma_create_qp(id, NULL, &attr))
		fail("rdma_create_qp");
	if (!mr && !(mr = ibv_reg_mr(id->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE)))
		fail("ibv_reg_mr");
	for (int i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge = { (uintptr_t)buffer, 64, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(id->qp, &wr, &bad))
			fail("ibv_post_recv");
	}
	/* The peer may have given up meanwhile. */
	if (rdma_accept(id, &param))
		drop(connection);
	else
		accepted++;
}

/* What follows from an event that was acknowledged. */
static void happened(enum rdma_cm_event_type event, struct rdma_cm_id *id, uint64_t *random)
{
	struct connection *connection = slot_of(id);
	if (event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		requested(id, random);
		return;
	}
	if (!connection)
		return;
	connection->last = event;
	switch (event) {
	case RDMA_CM_EVENT_ESTABLISHED:
		if (one_in(random, 6))
			break_qp(id);
		else if (one_in(random, 6))
			rdma_disconnect(id);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		if (one_in(random, 2))
			rdma_disconnect(id);
		drop(connection);
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		drop(connection);
	}
}

/* Connections that live too long are ended, in the end all; how many are left? */
static int look_after(uint64_t life_ms)
{
	int left = 0;
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *connection = &connections[i];
		if (!connection->id)
			continue;
		left++;
		/* Time and again: one that was not complete yet may be by now. */
		if (now_ms() - connection->since >= life_ms && rdma_disconnect(connection->id))
			drop(connection);
	}
	return left;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	/* The port of one that was killed is free as soon as its death is noticed. */
	for (uint64_t begin = now_ms(); rdma_bind_addr(id, (struct sockaddr *)&at); usleep(10000))
		if (now_ms() - begin > 5000)
			fail("rdma_bind_addr");
	if (rdma_listen(id, 8))
		fail("rdma_listen");
	return id;
}

static void pump(struct rdma_event_channel *channel, int wait_ms, uint64_t *random)
{
	struct pollfd poll_fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;
	if (poll(&poll_fd, 1, wait_ms) <= 0)
		return;
	while (!rdma_get_cm_event(channel, &event)) {
		enum rdma_cm_event_type type = event->event;
		struct rdma_cm_id *id = event->id;
		rdma_ack_cm_event(event);
		happened(type, id, random);
	}
	if (errno != EAGAIN)
		fail("rdma_get_cm_event");
}

static struct rdma_event_channel *channel_without_waiting(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	if (!channel || fcntl(channel->fd, F_SETFL, O_NONBLOCK))
		fail("rdma_create_event_channel");
	return channel;
}

static int serve(uint64_t seed, int seconds, int port)
{
	uint64_t random = seed, begin = now_ms(), end;
	struct rdma_event_channel *channel = channel_without_waiting();
	struct descriptors before, after;
	int identifier;
	long memory = 0, grown;
	struct rdma_cm_id *id = listener(channel, port);
	warm_up(channel, port);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
	identifier = next_identifier();
	before = descriptors();
	id = listener(channel, port);
	while (!ending) {
		pump(channel, 50, &random);
		look_after(LIFE_MS);
		if (!memory && now_ms() - begin > seconds * 1000ull / 3)
			memory = resident_kb();
	}
	rdma_destroy_id(id);
	for (end = now_ms() + PATIENCE_MS; look_after(0); pump(channel, 50, &random))
		if (now_ms() > end) {
			fprintf(stderr, "server: %d connections never end\n", look_after(0));
			for (int i = 0; i < CONNECTIONS; i++)
				if (connections[i].id)
					fprintf(stderr, "  after %s, since %llu ms\n",
						rdma_event_str(connections[i].last),
						(unsigned long long)(now_ms() -
								     connections[i].since));
			return 3;
		}
	if (mr)
		ibv_dereg_mr(mr);
	after = descriptors();
	grown = memory ? resident_kb() - memory : 0;
	printf("server: accepted %lu, finished %lu, descriptors %d and the library's %d, then %d "
	       "and %d, identifier %d then %d, "
	       "memory grew %ld KB\n",
	       accepted, finished, before.program, before.library, after.program, after.library,
	       identifier, next_identifier(), grown);
	fflush(stdout);
	if (are_more(after, before) || next_identifier() != identifier || grown > SLACK_KB ||
	    !accepted) {
		fprintf(stderr, "server: leaked\n");
		show_descriptors();
		return 4;
	}
	return 0;
}

#endif
