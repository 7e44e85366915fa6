/*
 * Commands that no library would write to /dev/infiniband/rdma_cm: random ones, lengths that lie,
 * pointers to nowhere, identifiers of others. Each succeeds or gives an errno, writes no byte
 * beyond the room that was named for its answer, and afterwards an honest program goes on in the
 * same process. Arguments: commands and seed.
 */
#include "rows.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COMMANDS = 23, BODY = 512, ROOM = 1024, UNTOUCHED = 0xa5 };

static uint64_t state;
static uint8_t *answer, *closed, *gone;
static uint32_t ids[16];
static unsigned known;

/* splitmix64 */
static uint64_t next(void)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static uint64_t below(uint64_t limit) { return next() % limit; }

static void *page(int protection)
{
	void *at = mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("a page");
	return at;
}

static int open_channel(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		fail("open /dev/infiniband/rdma_cm");
	return fd;
}

/* What a word of a command may be. */
static uint32_t word(void)
{
	switch (below(6)) {
	case 0:
		return next();
	case 1:
		return 0;
	case 2:
		return below(300);
	case 3:
		return known ? ids[below(known)] : 0;
	case 4:
		return AF_INET | htons(below(100)) << 16;
	default:
		return htonl(INADDR_LOOPBACK);
	}
}

/* Where the answer should go. */
static uint8_t *somewhere(void)
{
	switch (below(12)) {
	case 0:
		return NULL;
	case 1:
		return closed;
	case 2:
		return gone;
	case 3:
		return (uint8_t *)(uintptr_t)next();
	default:
		return answer;
	}
}

#define ID(name) [RDMA_USER_CM_CMD_##name] = { 1,
#define AT(type, field) offsetof(struct rdma_ucm_##type, field)

/* Where identifiers and addresses are in a command: by chance alone hardly one would be found. */
static const struct place {
	int known;
	uint16_t id, address, len;
} places[COMMANDS] = { ID(DESTROY_ID) AT(destroy_id, id), 0, sizeof(struct rdma_ucm_destroy_id) },
  ID(BIND_IP) AT(bind_ip, id), AT(bind_ip, addr), sizeof(struct rdma_ucm_bind_ip)
}
, ID(RESOLVE_IP) AT(resolve_ip, id), AT(resolve_ip, dst_addr), sizeof(struct rdma_ucm_resolve_ip)
}
, ID(RESOLVE_ROUTE) AT(resolve_route, id), 0, sizeof(struct rdma_ucm_resolve_route)
}
, ID(QUERY_ROUTE) AT(query, id), 0, sizeof(struct rdma_ucm_query)
}
, ID(CONNECT) AT(connect, id), 0, sizeof(struct rdma_ucm_connect)
}
, ID(LISTEN) AT(listen, id), 0, sizeof(struct rdma_ucm_listen)
}
, ID(ACCEPT) AT(accept, id), 0, sizeof(struct rdma_ucm_accept)
}
, ID(REJECT) AT(reject, id), 0, sizeof(struct rdma_ucm_reject)
}
, ID(DISCONNECT) AT(disconnect, id), 0, sizeof(struct rdma_ucm_disconnect)
}
, ID(INIT_QP_ATTR) AT(init_qp_attr, id), 0, sizeof(struct rdma_ucm_init_qp_attr)
}
, ID(SET_OPTION) AT(set_option, id), 0, sizeof(struct rdma_ucm_set_option)
}
, ID(NOTIFY) AT(notify, id), 0, sizeof(struct rdma_ucm_notify)
}
, ID(JOIN_IP_MCAST) AT(join_ip_mcast, id), AT(join_ip_mcast, addr),
	sizeof(struct rdma_ucm_join_ip_mcast)
}
, ID(LEAVE_MCAST) AT(destroy_id, id), 0, sizeof(struct rdma_ucm_destroy_id)
}
, ID(MIGRATE_ID) AT(migrate_id, id), 0, sizeof(struct rdma_ucm_migrate_id)
}
, ID(QUERY) AT(query, id), 0, sizeof(struct rdma_ucm_query)
}
, ID(BIND) AT(bind, id), AT(bind, addr), sizeof(struct rdma_ucm_bind)
}
, ID(RESOLVE_ADDR) AT(resolve_addr, id), AT(resolve_addr, dst_addr),
	sizeof(struct rdma_ucm_resolve_addr)
}
, ID(JOIN_MCAST) AT(join_mcast, id), AT(join_mcast, addr), sizeof(struct rdma_ucm_join_mcast)
}
,
}
;

/* Makes a command more likely to be believed. */
static void lend_sense(struct rdma_ucm_cmd_hdr *header, uint8_t *body)
{
	const struct place *place = &places[header->cmd % COMMANDS];
	if (header->cmd >= COMMANDS || !place->known || !known || below(4) == 0)
		return;
	memcpy(body + place->id, &ids[below(known)], 4);
	header->in = place->len;
	if (place->address) {
		struct sockaddr_in to = { .sin_family = AF_INET,
					  .sin_addr = { htonl(INADDR_LOOPBACK) },
					  .sin_port = htons(below(8)) };
		memcpy(body + place->address, &to, sizeof(to));
	}
}

/* Gives its length. */
static size_t fill(uint8_t *bytes)
{
	struct rdma_ucm_cmd_hdr *header = (void *)bytes;
	uint32_t *words = (uint32_t *)(bytes + sizeof(*header));
	for (unsigned i = 0; i < BODY / 4; i++)
		words[i] = word();
	header->cmd = below(50) ? below(COMMANDS) : next();
	header->in = below(4) ? below(BODY) : next();
	header->out = below(4) ? below(ROOM) : next();
	if (below(8)) {
		uint8_t *at = somewhere();
		memcpy(words, &at, sizeof(at));
	}
	lend_sense(header, (uint8_t *)words);
	if (below(20))
		return header->in > BODY ? BODY : sizeof(*header) + header->in;
	return below(BODY);
}

/* A command as librdmacm would write it; 0 or its errno. */
static int command(int fd, uint32_t number, const void *body, uint16_t len, uint16_t room)
{
	_Alignas(8) uint8_t bytes[sizeof(struct rdma_ucm_cmd_hdr) + BODY];
	struct rdma_ucm_cmd_hdr header = { number, len, room };
	memcpy(bytes, &header, sizeof(header));
	memcpy(bytes + sizeof(header), body, len);
	return write(fd, bytes, sizeof(header) + len) < 0 ? errno : 0;
}

/* An identifier of a channel. */
static int make_id(int fd, uint32_t *id)
{
	struct rdma_ucm_create_id body = {
		.uid = 7, .response = (uintptr_t)answer, .ps = RDMA_PS_TCP, .qp_type = IBV_QPT_RC
	};
	struct rdma_ucm_create_id_resp made;
	int failed = command(fd, RDMA_USER_CM_CMD_CREATE_ID, &body, sizeof(body), sizeof(made));
	memcpy(&made, answer, sizeof(made));
	*id = made.id;
	return failed;
}

static int is_untouched(size_t from)
{
	for (size_t i = from; i < ROOM; i++)
		if (answer[i] != UNTOUCHED)
			return 0;
	return 1;
}

/* Gives the number of commands that were carried out. */
static unsigned storm(unsigned commands)
{
	unsigned done = 0, silent = 0, beyond = 0, odd = 0;
	int fd = open_channel();
	for (unsigned i = 0; i < commands; i++) {
		_Alignas(8) uint8_t bytes[sizeof(struct rdma_ucm_cmd_hdr) + BODY];
		struct rdma_ucm_cmd_hdr *header = (void *)bytes;
		if (below(1000) == 0) {
			close(fd);
			fd = open_channel();
			known = 0;
		}
		uint32_t id;
		if (below(40) == 0 && make_id(fd, &id) == 0)
			ids[known < 16 ? known++ : below(16)] = id;
		size_t len = fill(bytes);
		memset(answer, UNTOUCHED, ROOM);
		errno = 0;
		ssize_t wrote = write(fd, bytes, len);
		done += wrote >= 0;
		silent += wrote < 0 && errno == 0;
		odd += wrote >= 0 && (size_t)wrote != len;
		beyond +=
			len >= sizeof(*header) && header->out < ROOM && !is_untouched(header->out);
	}
	close(fd);
	equal("man 2 write", 0, silent, "failures without an errno");
	equal("ucma_write", 0, odd, "commands written in part");
	equal("ucma_write", 0, beyond, "answers longer than their room");
	return done;
}

/* An address is resolved, as ever. */
static void honest(void)
{
	int fd = open_channel();
	struct rdma_ucm_resolve_ip body = { .timeout_ms = 2000 };
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_addr = { htonl(INADDR_LOOPBACK) },
				  .sin_port = htons(9) };
	memcpy(&body.dst_addr, &to, sizeof(to));
	row("ucma_create_id", 0, make_id(fd, &body.id), "an identifier after the storm");
	row("ucma_resolve_ip", 0, command(fd, RDMA_USER_CM_CMD_RESOLVE_IP, &body, sizeof(body), 0),
	    "resolving an address after it");
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	equal("ucma_poll", 1, poll(&ready, 1, 10000), "its event");
	struct rdma_ucm_get_event get = { .response = (uintptr_t)answer };
	struct rdma_ucm_event_resp event;
	row("ucma_get_event", 0,
	    command(fd, RDMA_USER_CM_CMD_GET_EVENT, &get, sizeof(get), sizeof(event)), "taking it");
	memcpy(&event, answer, sizeof(event));
	equal("ucma_get_event", 0, event.event, "RDMA_CM_EVENT_ADDR_RESOLVED");
	close(fd);
}

int main(int argc, char **argv)
{
	unsigned commands = argc > 1 ? atoi(argv[1]) : 20000;
	state = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	printf("%u commands, seed %lu\n", commands, (unsigned long)state);
	open_first_device();
	answer = page(PROT_READ | PROT_WRITE);
	closed = page(PROT_READ);
	gone = page(PROT_READ);
	munmap(gone, 4096);
	unsigned done = storm(commands);
	/* A storm that is refused as a whole reaches nothing. */
	holds("ucma_write", done > commands / 100, "some commands were carried out");
	honest();
	return finish();
}
