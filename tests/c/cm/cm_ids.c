/*
 * What librdmacm's identifiers can do besides connecting. Each subcommand ends with 0 when all was
 * as Linux has it, and says where it was not.
 *
 *   cm_ids migrate|fork ADDRESS PORT                 both ends at ADDRESS of this host
 *   cm_ids unreachable ADDRESS NOBODY BEYOND PORT    a neighbour, nobody on its network, a place
 *                                                    without a route
 */
#include "cm_ids.h"

/* --- rdma_migrate_id: what has not been told is told at the new channel, and all that comes. ---
 */

static int migrate(void)
{
	struct rdma_event_channel *first = channel(), *second = channel(), *clients = channel();
	struct rdma_cm_id *server = listener(first), *client = identifier(clients), *accepted,
			  *early;

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

/*
 * --- A child's copies of identifiers neither use nor end what is the parent's; those that it makes
 * are as good as any. ---
 */

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

static int not_reachable(char **words)
{
	struct rdma_event_channel *of = channel();
	struct rdma_cm_id *id = identifier(of);
	struct rdma_cm_event *found;
	uint64_t begin = now_ms();
	CHECK(!rdma_resolve_addr(id, NULL, parsed(words[1], port), 400));
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
	take_place(argv[2], argv[argc - 1]);
	if (!strcmp(argv[1], "migrate"))
		return migrate();
	if (!strcmp(argv[1], "fork"))
		return forks();
	return argc == 6 ? not_reachable(argv + 2) : 64;
}
