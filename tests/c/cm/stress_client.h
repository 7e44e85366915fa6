/*
 * A client of cm_stress: threads that connect, send and part, each again and again for a while.
 */
#ifndef STRESS_CLIENT_H
#define STRESS_CLIENT_H

#include "stress.h"

struct client {
	uint64_t random, until;
	int port;
	unsigned long connected;
};

/* Waits for an event; -1 when none comes in time. An event of the first server must come. */
static int await(struct rdma_event_channel *channel, const char *what, int patient)
{
	struct pollfd poll_fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;
	int type, ready;
	do
		ready = poll(&poll_fd, 1, patient ? PATIENCE_MS : IMPATIENCE_MS);
	while (ready < 0 && errno == EINTR);
	if (!ready && patient) {
		fprintf(stderr, "client %d: hung: %s\n", getpid(), what);
		exit(3);
	}
	if (ready <= 0 || rdma_get_cm_event(channel, &event))
		return -1;
	type = event->event;
	rdma_ack_cm_event(event);
	return type;
}

static void send_some(struct rdma_cm_id *id, uint64_t *random)
{
	char bytes[32] = "stress";
	for (unsigned n = draw(random) % RECEIVES; n > 0; n--) {
		struct ibv_sge sge = { (uintptr_t)bytes, sizeof bytes, 0 };
		struct ibv_send_wr wr = { .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE },
				   *bad;
		struct ibv_wc wc;
		uint64_t end = now_ms() + 300;
		if (ibv_post_send(id->qp, &wr, &bad))
			return;
		while (!ibv_poll_cq(id->send_cq, 1, &wc))
			if (now_ms() > end)
				return;
		if (wc.status != IBV_WC_SUCCESS)
			return;
	}
}

static void part(struct rdma_event_channel *channel, struct rdma_cm_id *id, uint64_t *random,
		 int patient)
{
	switch (draw(random) % 4) {
	case 0:
		break_qp(id);
		break;
	case 1:
		break;
	default:
		if (!rdma_disconnect(id))
			await(channel, "disconnect", patient);
	}
}

static void converse(struct client *client)
{
	int patient = one_in(&client->random, 2), type;
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(client->port + !patient),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_conn_param param = { .responder_resources = 1,
					 .initiator_depth = 1,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = qp_attr();
	struct rdma_cm_id *id;
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000))
		fail("rdma_resolve_addr");
	if (await(channel, "address", 1) != RDMA_CM_EVENT_ADDR_RESOLVED ||
	    rdma_resolve_route(id, 2000) ||
	    await(channel, "route", 1) != RDMA_CM_EVENT_ROUTE_RESOLVED ||
	    rdma_create_qp(id, NULL, &attr))
		fail("no way to the server");
	/* Some lose interest. */
	if (!rdma_connect(id, &param) && !one_in(&client->random, 12)) {
		type = await(channel, "connect", patient);
		if (type == RDMA_CM_EVENT_ESTABLISHED) {
			client->connected++;
			send_some(id, &client->random);
			part(channel, id, &client->random, patient);
		}
	}
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
	rdma_destroy_event_channel(channel);
}

static void *client_thread(void *argument)
{
	struct client *client = argument;
	while (now_ms() < client->until && !ending)
		converse(client);
	return NULL;
}

static int run_client(uint64_t seed, int port)
{
	struct client clients[THREADS];
	pthread_t threads[THREADS];
	unsigned long connected = 0;
	uint64_t life = 200 + draw(&seed) % 3000;
	for (int i = 0; i < THREADS; i++) {
		clients[i] = (struct client){ .random = draw(&seed),
					      .until = now_ms() + life,
					      .port = port };
		if (pthread_create(&threads[i], NULL, client_thread, &clients[i]))
			fail("pthread_create");
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		connected += clients[i].connected;
	}
	printf("client: %lu\n", connected);
	return 0;
}

#endif
