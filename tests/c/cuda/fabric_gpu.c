/*
 * GPU memory over libfabric's verbs provider: connected endpoints of two processes write, read and
 * send from the memory of one's GPU to that of the other's, and every byte is compared.
 *
 *     fabric_gpu server|client WAY ADDRESS PORT
 *
 * WAY is how the memory is registered: `dmabuf`, by fi_mr_attr's descriptor; `hmem`, the same in a
 * domain with FI_HMEM, where libfabric looks at the kind of memory too; `address`, by the GPU's
 * address (Peer-Direct). ADDRESS and PORT are the server's; over TCP at the same port the two tell
 * each other where their memory is.
 */
#include "driver.h"

#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define MANUAL "fi_mr(3)"

enum { AREA = 1 << 18, SECONDS = 30 };
/* Areas of each process's memory: the peer writes to one, reads another, and sends to the third. */
enum area { WRITTEN, READ, RECEIVED, OWN, AREAS };
enum role { SERVER, CLIENT };

struct place {
	uint64_t address, key, part_key;
};

static enum role role;
static const char *way;
static gpu_address memory;
static int descriptor = -1, channel = -1;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *events;
static struct fid_cq *completions;
static struct fid_ep *endpoint;
static struct fid_mr *whole, *part;

static void expect(long got, const char *what)
{
	if (got < 0) {
		printf("NOT %s: %s\n", what, fi_strerror((int)-got));
		exit(1);
	}
}

static unsigned char *pattern(enum role whose, enum area area)
{
	static unsigned char bytes[AREA];
	for (size_t i = 0; i < AREA; i++)
		bytes[i] = (unsigned char)(i * 7 + (i >> 8) + whose * 16 + area + 1);
	return bytes;
}

static void has(enum area area, enum role whose, enum area from, const char *what)
{
	static unsigned char found[AREA];
	must(cuMemcpyDtoH_v2(found, memory + area * AREA, AREA), "copy");
	holds("libfabric", !memcmp(found, pattern(whose, from), AREA), what);
}

static void gpu_memory(void)
{
	begin();
	must(cuMemAlloc_v2(&memory, AREAS * AREA), "memory");
	for (enum area area = 0; area < AREAS; area++)
		must(cuMemcpyHtoD_v2(memory + area * AREA, pattern(role, area), AREA), "fill");
	must(cuMemGetHandleForAddressRange(&descriptor, memory, AREAS * AREA, 1, 0), "a dma-buf");
}

static int hmem(void)
{
	return !strcmp(way, "hmem");
}

static struct fi_info *found(const char *address, const char *port)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->ep_attr->type = FI_EP_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->caps = FI_MSG | FI_RMA | (hmem() ? FI_HMEM : 0);
	hints->mode = FI_CONTEXT;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
				      FI_MR_VIRT_ADDR | (hmem() ? FI_MR_HMEM : 0);
	hints->fabric_attr->prov_name = strdup("verbs");
	expect(fi_getinfo(FI_VERSION(1, 20), address, port, role == SERVER ? FI_SOURCE : 0, hints,
			  &info),
	       "fi_getinfo");
	printf("device %s, %s FI_HMEM\n", info->domain_attr->name,
	       info->caps & FI_HMEM ? "with" : "without");
	fi_freeinfo(hints);
	return info;
}

/* Waits for this event. */
static struct fi_info *event(uint32_t wanted, const char *what)
{
	struct fi_eq_cm_entry entry = { 0 };
	uint32_t kind = 0;
	expect(fi_eq_sread(events, &kind, &entry, sizeof(entry), SECONDS * 1000, 0), what);
	if (kind != wanted)
		fail(what);
	return entry.info;
}

static int registered(struct fid_mr **region, size_t offset, size_t length, int fd,
		      enum fi_hmem_iface iface)
{
	uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	struct fi_mr_dmabuf dmabuf = { fd, offset, length, (void *)(uintptr_t)memory };
	struct fi_mr_attr attr = { .dmabuf = &dmabuf,
				   .iov_count = 1,
				   .access = access,
				   .iface = iface,
				   .device.cuda = 0 };
	if (strcmp(way, "address"))
		return -fi_mr_regattr(domain, &attr, FI_MR_DMABUF, region);
	return -fi_mr_reg(domain, (char *)(uintptr_t)memory + offset, length, access, 0, 0, 0,
			  region, NULL);
}

static void regions(void)
{
	enum fi_hmem_iface iface = FI_HMEM_CUDA;
	struct fid_mr *none;
	if (hmem()) {
		row(MANUAL, FI_ENOSYS, registered(&none, 0, AREA, descriptor, FI_HMEM_CUDA),
		    "a libfabric without CUDA has no FI_HMEM_CUDA");
		iface = FI_HMEM_SYSTEM;
	}
	if (strcmp(way, "address")) {
		row("dma_buf_get", EBADF, registered(&none, 0, AREA, -1, iface), "no descriptor");
		row("ib_umem_dmabuf_get", EINVAL,
		    registered(&none, AREA, AREAS * AREA, descriptor, iface), "beyond the end");
	}
	row(MANUAL, 0, registered(&whole, 0, AREAS * AREA, descriptor, iface), "all of it");
	row(MANUAL, 0, registered(&part, READ * AREA, AREA, descriptor, iface), "a part");
	if (wrong)
		exit(finish());
	/* The regions keep the buffer. */
	close(descriptor);
}

static void open_endpoint(struct fi_info *info)
{
	struct fi_cq_attr attr = { .size = 16, .format = FI_CQ_FORMAT_CONTEXT };
	expect(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	expect(fi_cq_open(domain, &attr, &completions, NULL), "fi_cq_open");
	expect(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
	expect(fi_ep_bind(endpoint, &events->fid, 0), "bind events");
	expect(fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV), "bind completions");
	expect(fi_enable(endpoint), "fi_enable");
	regions();
}

/* The next completion is this one. */
static void done(struct fi_context *which, const char *what)
{
	struct fi_cq_entry entry;
	struct fi_cq_err_entry error = { 0 };
	time_t end = time(NULL) + SECONDS;
	ssize_t got;
	while ((got = fi_cq_read(completions, &entry, 1)) == -FI_EAGAIN && time(NULL) < end)
		;
	if (got == -FI_EAVAIL && fi_cq_readerr(completions, &error, 0) == 1)
		got = -error.err;
	row("fi_cq(3)", 0, got < 0 ? (int)-got : 0, "%s", what);
	if (got != 1 || entry.op_context != which)
		exit(finish() | 1);
}

static void *at(enum area area)
{
	return (char *)(uintptr_t)memory + area * AREA;
}

static void tell(const void *bytes, size_t length)
{
	if (write(channel, bytes, length) != (ssize_t)length)
		fail("tell the other");
}

static void hear(void *bytes, size_t length)
{
	if (recv(channel, bytes, length, MSG_WAITALL) != (ssize_t)length)
		fail("hear from the other");
}

static struct place exchanged(void)
{
	struct place own = { memory, fi_mr_key(whole), fi_mr_key(part) }, other;
	tell(&own, sizeof(own));
	hear(&other, sizeof(other));
	return other;
}

static void meet(const char *address, const char *port)
{
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	inet_pton(AF_INET, address, &place.sin_addr);
	if (role == CLIENT) {
		channel = listener;
		if (connect(channel, (void *)&place, sizeof(place)))
			fail("reach the server");
		return;
	}
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (void *)&place, sizeof(place)) || listen(listener, 1) ||
	    (channel = accept(listener, NULL, NULL)) < 0)
		fail("meet the client");
}

static void serve(struct fi_info *info, const char *address, const char *port)
{
	struct fid_pep *listener;
	struct fi_context receive, answer;
	expect(fi_passive_ep(fabric, info, &listener, NULL), "fi_passive_ep");
	expect(fi_pep_bind(listener, &events->fid, 0), "fi_pep_bind");
	expect(fi_listen(listener), "fi_listen");
	meet(address, port);
	open_endpoint(event(FI_CONNREQ, "a request"));
	expect(fi_recv(endpoint, at(RECEIVED), AREA, fi_mr_desc(whole), 0, &receive), "fi_recv");
	expect(fi_accept(endpoint, NULL, 0), "fi_accept");
	event(FI_CONNECTED, "a connection");
	exchanged();
	done(&receive, "a message comes");
	has(RECEIVED, CLIENT, OWN, "the message is the client's memory");
	has(WRITTEN, CLIENT, OWN, "what was written before it is there");
	has(READ, SERVER, READ, "what was read is as it was");
	expect(fi_send(endpoint, at(OWN), AREA, fi_mr_desc(whole), 0, &answer), "fi_send");
	done(&answer, "an answer goes");
}

static void ask(struct fi_info *info, const char *address, const char *port)
{
	struct fi_context receive, write, read, send;
	meet(address, port);
	open_endpoint(info);
	expect(fi_recv(endpoint, at(RECEIVED), AREA, fi_mr_desc(whole), 0, &receive), "fi_recv");
	expect(fi_connect(endpoint, info->dest_addr, NULL, 0), "fi_connect");
	event(FI_CONNECTED, "a connection");
	struct place server = exchanged();
	expect(fi_write(endpoint, at(OWN), AREA, fi_mr_desc(whole), 0,
			server.address + WRITTEN * AREA, server.key, &write), "fi_write");
	done(&write, "write");
	expect(fi_read(endpoint, at(READ), AREA, fi_mr_desc(part), 0,
		       server.address + READ * AREA, server.part_key, &read), "fi_read");
	done(&read, "read");
	has(READ, SERVER, READ, "what was read is the server's memory");
	expect(fi_send(endpoint, at(OWN), AREA, fi_mr_desc(whole), 0, &send), "fi_send");
	done(&send, "send");
	done(&receive, "the answer comes");
	has(RECEIVED, SERVER, OWN, "the answer is the server's memory");
}

int main(int argc, char **argv)
{
	char last = 'x';
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	if (argc != 5)
		return 2;
	role = strcmp(argv[1], "server") ? CLIENT : SERVER;
	way = argv[2];
	gpu_memory();
	struct fi_info *info = found(argv[3], argv[4]);
	expect(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	expect(fi_eq_open(fabric, &attr, &events, NULL), "fi_eq_open");
	(role == SERVER ? serve : ask)(info, argv[3], argv[4]);
	/* Neither goes while the other's requests are on their way. */
	tell(&last, 1);
	hear(&last, 1);
	row(MANUAL, 0, -fi_close(&part->fid), "the part goes");
	row(MANUAL, 0, -fi_close(&endpoint->fid), "the endpoint goes");
	row(MANUAL, 0, -fi_close(&whole->fid), "all of it goes");
	return finish();
}
