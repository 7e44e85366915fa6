/*
 * Both ends of a connection of librpma, which persistent memory is reached by. The target shows its
 * memory and waits; the initiator writes to it, has what it wrote flushed, writes eight bytes as
 * one, and reads all back.
 */
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LENGTH = 1 << 20, LAST = LENGTH - 8 };

static struct rpma_peer *peer;
static char *memory;

/* Prints and ends where librpma did not do what it was asked for. */
static void must(int answer, const char *what)
{
	if (!answer)
		return;
	fprintf(stderr, "%s: %s\n", what, rpma_err_2str(answer));
	exit(1);
}

static void begin(const char *address, enum rpma_util_ibv_context_type whose)
{
	struct ibv_context *context = NULL;
	must(rpma_utils_get_ibv_context(address, whose, &context), "device");
	must(rpma_peer_new(context, &peer), "peer");
	memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(1);
}

static void event_is(struct rpma_conn *connection, enum rpma_conn_event wanted)
{
	enum rpma_conn_event event;
	must(rpma_conn_next_event(connection, &event), "event");
	if (event == wanted)
		return;
	fprintf(stderr, "%s\n", rpma_utils_conn_event_2str(event));
	exit(1);
}

static void completes(struct rpma_conn *connection, enum ibv_wc_opcode opcode)
{
	struct rpma_cq *queue;
	struct ibv_wc done;
	must(rpma_conn_get_cq(connection, &queue), "queue");
	must(rpma_cq_wait(queue), "completion");
	must(rpma_cq_get_wc(queue, 1, &done, NULL), "completion");
	if (done.status == IBV_WC_SUCCESS && done.opcode == opcode)
		return;
	fprintf(stderr, "%s, opcode %d\n", ibv_wc_status_str(done.status), done.opcode);
	exit(1);
}

static int target(const char *address, const char *port)
{
	int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST |
		    RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;
	struct rpma_mr_local *region;
	struct rpma_ep *endpoint;
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	unsigned char descriptor[64];
	struct rpma_conn_private_data shown = { .ptr = descriptor };
	size_t length;
	begin(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	must(rpma_mr_reg(peer, memory, LENGTH, usage, &region), "region");
	must(rpma_mr_get_descriptor_size(region, &length), "descriptor");
	if (length > sizeof(descriptor))
		return 1;
	shown.len = (uint8_t)length;
	must(rpma_mr_get_descriptor(region, descriptor), "descriptor");
	must(rpma_ep_listen(peer, address, port, &endpoint), "listen");
	puts("listens");
	fflush(stdout);
	must(rpma_ep_next_conn_req(endpoint, NULL, &request), "request");
	must(rpma_conn_req_connect(&request, &shown, &connection), "accept");
	event_is(connection, RPMA_CONN_ESTABLISHED);
	event_is(connection, RPMA_CONN_CLOSED);
	int right = !memcmp(memory + LAST, "as one!", 8);
	for (int i = 0; i < LAST; i++)
		right &= memory[i] == (char)(i * 7);
	must(rpma_conn_disconnect(connection), "disconnect");
	must(rpma_conn_delete(&connection), "end of the connection");
	must(rpma_ep_shutdown(&endpoint), "end of listening");
	must(rpma_mr_dereg(&region), "end of the region");
	must(rpma_peer_delete(&peer), "end of the peer");
	puts(right ? "written: right" : "written: wrong");
	return 0;
}

static int initiator(const char *address, const char *port)
{
	struct rpma_conn_req *request;
	struct rpma_conn *connection;
	struct rpma_conn_private_data shown;
	struct rpma_mr_remote *there;
	struct rpma_mr_local *from, *into;
	begin(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	char *back = calloc(1, LENGTH);
	for (int i = 0; back && i < LENGTH; i++)
		memory[i] = (char)(i * 7);
	must(!back || rpma_mr_reg(peer, memory, LENGTH, RPMA_MR_USAGE_WRITE_SRC, &from), "region");
	must(rpma_mr_reg(peer, back, LENGTH, RPMA_MR_USAGE_READ_DST, &into), "region");
	must(rpma_conn_req_new(peer, address, port, NULL, &request), "request");
	must(rpma_conn_req_connect(&request, NULL, &connection), "connect");
	event_is(connection, RPMA_CONN_ESTABLISHED);
	must(rpma_conn_get_private_data(connection, &shown), "private data");
	must(rpma_mr_remote_from_descriptor(shown.ptr, shown.len, &there), "descriptor");

	must(rpma_write(connection, there, 0, from, 0, LAST, RPMA_F_COMPLETION_ON_ERROR, NULL),
	     "write");
	must(rpma_flush(connection, there, 0, LAST, RPMA_FLUSH_TYPE_VISIBILITY,
			RPMA_F_COMPLETION_ALWAYS, NULL),
	     "flush");
	completes(connection, IBV_WC_RDMA_READ);
	must(rpma_atomic_write(connection, there, LAST, "as one!", RPMA_F_COMPLETION_ALWAYS, NULL),
	     "atomic write");
	completes(connection, IBV_WC_RDMA_WRITE);
	must(rpma_read(connection, into, 0, there, 0, LENGTH, RPMA_F_COMPLETION_ALWAYS, NULL),
	     "read");
	completes(connection, IBV_WC_RDMA_READ);
	memcpy(memory + LAST, "as one!", 8);
	puts(memcmp(memory, back, LENGTH) ? "read: wrong" : "read: right");
	must(rpma_conn_disconnect(connection), "disconnect");
	event_is(connection, RPMA_CONN_CLOSED);
	must(rpma_conn_delete(&connection), "end of the connection");
	must(rpma_mr_remote_delete(&there) || rpma_mr_dereg(&from) || rpma_mr_dereg(&into),
	     "end of the regions");
	must(rpma_peer_delete(&peer), "end of the peer");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	return argv[1][0] == 't' ? target(argv[2], argv[3]) : initiator(argv[2], argv[3]);
}
