/*
 * Prints each asynchronous event of the device's ports as it comes, and the port as it is then:
 *
 *   EVENT-NUMBER port PORT state STATE gids COUNT
 *
 * and the end of that, from "state" on, before the first event. Asks for nothing else, so that
 * events come by themselves.
 */
#include <infiniband/verbs.h>

#include <stdio.h>
#include <stdlib.h>

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void print_port(struct ibv_context *context)
{
	struct ibv_port_attr port;
	if (ibv_query_port(context, 1, &port))
		fail("ibv_query_port");
	struct ibv_gid_entry gids[256];
	ssize_t count = ibv_query_gid_table(context, gids, 256, 0);
	if (count < 0)
		fail("ibv_query_gid_table");
	printf("state %d gids %zd\n", port.state, count);
	fflush(stdout);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	if (!context)
		fail("ibv_open_device");
	print_port(context);
	for (;;) {
		struct ibv_async_event event;
		if (ibv_get_async_event(context, &event))
			fail("ibv_get_async_event");
		printf("%d port %d ", event.event_type, event.element.port_num);
		print_port(context);
		ibv_ack_async_event(&event);
	}
}
