/*
 * RDMA WRITEs and READs between two processes of one host: the bytes, their order, and what is
 * refused. Whether they go from memory to memory or by packets must not show.
 *
 *   neighbours bytes|order|mixed|refusals direct|packets [SEED]
 */
#include "neighbours.h"

#include <poll.h>

/* Whether plain requests are to go directly here. */
static int directly;

enum {
	KIB = 1 << 10,
	MIB = 1 << 20,
	SPAN = 8 * MIB,
	ROUNDS = 200,
	/* Of a round of `mixed`. */
	MOST_REQUESTS = 12,
	FIELD = 512 * KIB,
	SLOT = 320 * KIB,
	MESSAGE = 8,
	RECEIVES = 4,
};

static _Thread_local char *memory, *shadow;
static _Thread_local struct ibv_mr *mr;

/* Bytes that tell their place and their seed. */
static void paint(char *at, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		at[i] = seed * 101 + i * 31 + (i >> 8) * 17 + (i >> 16) * 3;
}

/* Memory and what it has to hold. */
static void new_memory(unsigned seed)
{
	memory = memory_of(SPAN);
	shadow = memory_of(SPAN);
	paint(memory, SPAN, seed);
	memcpy(shadow, memory, SPAN);
	mr = registered(memory, SPAN);
}

static int as_it_should_be(void) { return !memcmp(memory, shadow, SPAN); }

/* What one end tells the other of a request: its bytes are those of the seed, or as they were. */
struct moved {
	unsigned seed;
	uint32_t offset, length;
	/* There are others of the same moment. */
	int more;
};

enum { HERE = 1, THERE = 1000 };

/* The target of `bytes`: looks at all its memory after each request. */
static void bytes_target(void)
{
	struct moved moved;
	new_memory(THERE);
	meet(pd, EVERYTHING, mr);
	for (;;) {
		hear(&moved, sizeof(moved));
		if (!moved.length)
			break;
		if (moved.seed)
			paint(shadow + moved.offset, moved.length, moved.seed);
		if (!moved.more)
			tell_number(as_it_should_be());
	}
	part();
}

static struct end peer;

/* One request of `length` bytes in pieces, and a look at every byte of both ends. */
static void one(enum ibv_wr_opcode opcode, uint32_t length, int pieces, uint32_t offset, int flags)
{
	static unsigned seed = 1;
	static char whole[SPAN];
	struct ibv_sge sges[SGES];
	struct ibv_send_wr wr = { .wr_id = ++seed,
				  .sg_list = sges,
				  .num_sge = pieces,
				  .opcode = opcode,
				  .send_flags = flags,
				  .wr.rdma = { peer.address + offset, peer.rkey } };
	int write = opcode == IBV_WR_RDMA_WRITE;
	const char *name = write ? "a WRITE" : "a READ";
	if (flags & IBV_SEND_INLINE)
		name = "an inline WRITE";
	uint32_t done = 0, at = 3;
	if (write) {
		paint(whole, length, seed);
	} else {
		static char theirs[SPAN];
		paint(theirs, SPAN, THERE);
		memcpy(whole, theirs + offset, length);
	}
	for (int i = 0; i < pieces; i++) {
		uint32_t size = i + 1 < pieces ? length / pieces : length - done;
		sges[i] = (struct ibv_sge){ (uintptr_t)memory + at, size, mr->lkey };
		if (write)
			memcpy(memory + at, whole + done, size);
		memcpy(shadow + at, whole + done, size);
		done += size;
		at += size + 77;
	}
	post(qp, &wr);
	completes("IBA 9.4", cq, seed, IBV_WC_SUCCESS, "%s of %u bytes in %d pieces at %u", name,
		  length, pieces, offset);
	holds("IBA 9.4", as_it_should_be(), "every byte here is right");
	struct moved moved = { write ? seed : 0, offset, length, 0 };
	tell(&moved, sizeof(moved));
	holds("IBA 9.4", hear_number(), "every byte there is right");
}

/*
 * WRITEs that are posted as one list, as many as the queue takes: short ones of whole words, and
 * amid them one that is not. Each writes over a part of the one before it.
 */
static void company(unsigned odd)
{
	struct ibv_sge sges[DEPTH];
	struct ibv_send_wr list[DEPTH];
	unsigned good = 0;
	for (unsigned i = 0; i < DEPTH; i++) {
		struct moved moved = { 5000 + i, MIB + i * 264, i == odd ? 333 : 8 + i % 4 * 168,
				       i + 1 < DEPTH };
		char *from = memory + 64 * KIB + i * KIB;
		paint(from, moved.length, moved.seed);
		paint(shadow + (from - memory), moved.length, moved.seed);
		sges[i] = (struct ibv_sge){ (uintptr_t)from, moved.length, mr->lkey };
		list[i] = (struct ibv_send_wr){ .wr_id = i,
						.next = moved.more ? list + i + 1 : NULL,
						.sg_list = sges + i,
						.num_sge = 1,
						.opcode = IBV_WR_RDMA_WRITE,
						.wr.rdma = { peer.address + moved.offset,
							     peer.rkey } };
	}
	post(qp, list);
	for (unsigned i = 0; i < DEPTH; i++) {
		struct ibv_wc wc;
		int done = wait_for(cq, &wc, PATIENCE) && wc.status == IBV_WC_SUCCESS;
		good += done && wc.wr_id == i;
	}
	equal("IBA 10.8", DEPTH, good, "WRITEs of a list that complete in their order");
	holds("IBA 9.4", as_it_should_be(), "every byte here is right");
	for (unsigned i = 0; i < DEPTH; i++) {
		struct moved moved = { list[i].wr_id + 5000, list[i].wr.rdma.remote_addr - peer.address,
				       sges[i].length, i + 1 < DEPTH };
		tell(&moved, sizeof(moved));
	}
	holds("IBA 9.4", hear_number(), "every byte there is right");
}

static void bytes(void)
{
	static const uint32_t sizes[] = { 1, 8, 4095, 64 * KIB + 1, 3 * MIB };
	struct moved none = { 0 };
	/* Short ones of odd places may go either way. */
	unsigned long plain = 0, lengthy = 0;
	pid_t child = start("bytes");
	new_memory(HERE);
	peer = meet(pd, EVERYTHING, mr);
	/* First READs, of memory that is still as it was. */
	for (int write = 0; write < 2; write++)
		for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			for (int pieces = 1; pieces <= SGES; pieces += SGES - 1) {
				enum ibv_wr_opcode opcode = IBV_WR_RDMA_READ;
				if (write)
					opcode = IBV_WR_RDMA_WRITE;
				if (sizes[i] < (uint32_t)pieces)
					continue;
				one(opcode, sizes[i], pieces, 5 + 4099 * i, 0);
				/* Up to the last byte. */
				one(opcode, sizes[i], pieces, SPAN - sizes[i], 0);
				plain += 2;
				lengthy += sizes[i] > 4 * KIB ? 2 : 0;
			}
	unsigned long direct = device_counter("direct_requests");
	holds("design D7", directly ? direct >= lengthy && direct <= plain : !direct,
	      "those that are to go directly did");
	one(IBV_WR_RDMA_WRITE, INLINE, 1, 12345, IBV_SEND_INLINE);
	one(IBV_WR_RDMA_WRITE, INLINE - 1, SGES, 54321, IBV_SEND_INLINE);
	one(IBV_WR_RDMA_WRITE, 1, 1, 1, IBV_SEND_INLINE);
	company(DEPTH);
	for (unsigned odd = 0; odd < DEPTH; odd += 5)
		company(odd);
	tell(&none, sizeof(none));
	part();
	ended_well(child);
}

/*
 * The target of `order`. A SEND meets no receive at first, so it waits, and the WRITE behind it has
 * to wait with it. Then a WRITE goes before a SEND.
 */
static void order_target(void)
{
	struct ibv_wc wc = { 0 };
	new_memory(THERE);
	meet(pd, EVERYTHING, mr);
	volatile char *last = memory + FIELD - 1;
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint32_t length = hear_number();
		unsigned early, late, right;
		char *message = memory + FIELD, *field = memory + FIELD - length;
		memset(memory, 0, FIELD + MESSAGE);
		both_are_here();
		/* The SEND and the WRITE were posted. */
		hear_number();
		usleep(round % 8 ? 500 : 20000);
		early = *last != 0;
		receive(qp, round, message, MESSAGE, mr->lkey);
		double end = seconds() + PATIENCE;
		while (!*last && seconds() < end)
			;
		/* The WRITE is there: so was the SEND before. */
		__sync_synchronize();
		late = ibv_poll_cq(cq, 1, &wc) != 1 || wc.status != IBV_WC_SUCCESS ||
		       wc.wr_id != round || message[0] != 1;
		tell_number(early);
		tell_number(late);
		/* Then the other way about. */
		receive(qp, round, message, MESSAGE, mr->lkey);
		both_are_here();
		right = wait_for(cq, &wc, PATIENCE) && wc.status == IBV_WC_SUCCESS;
		for (uint32_t i = 0; i < length; i++)
			right &= field[i] == 2;
		tell_number(right);
	}
	part();
}

static void send_and_write(unsigned round, uint32_t length, int write_first)
{
	struct ibv_sge field = { (uintptr_t)memory, length, mr->lkey },
		       message = { (uintptr_t)memory, MESSAGE, mr->lkey };
	struct ibv_send_wr send = { .wr_id = round,
				    .sg_list = &message,
				    .num_sge = 1,
				    .opcode = IBV_WR_SEND },
			   write = { .wr_id = round,
				     .sg_list = &field,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE,
				     .wr.rdma = { peer.address + FIELD - length, peer.rkey } };
	memset(memory, write_first ? 2 : 1, FIELD);
	post(qp, write_first ? &write : &send);
	post(qp, write_first ? &send : &write);
}

static unsigned two_complete(void)
{
	struct ibv_wc wc;
	unsigned good = 0;
	for (int i = 0; i < 2; i++)
		good += wait_for(cq, &wc, PATIENCE) && wc.status == IBV_WC_SUCCESS;
	return good == 2;
}

static void order(void)
{
	static const uint32_t sizes[] = { 1, 100, 16 * KIB, 64 * KIB + 1, 512 * KIB };
	unsigned early = 0, late = 0, right = 0, complete = 0;
	pid_t child = start("order");
	new_memory(HERE);
	peer = meet(pd, EVERYTHING, mr);
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint32_t length = sizes[round % 5];
		tell_number(length);
		both_are_here();
		send_and_write(round, length, 0);
		tell_number(0);
		early += hear_number();
		late += hear_number();
		complete += two_complete();
		both_are_here();
		send_and_write(round, length, 1);
		right += hear_number();
		complete += two_complete();
	}
	equal("IBA 9.5", 0, early, "WRITEs that overtook a SEND that waits");
	equal("IBA 9.5", 0, late, "SENDs that came after the WRITE behind them");
	equal("IBA 9.5", ROUNDS, right, "SENDs that found the bytes of the WRITE before them");
	equal("IBA 9.5", 2 * ROUNDS, complete, "requests that completed");
	holds("design D7", !directly == !device_counter("direct_requests"), "some went directly");
	part();
	ended_well(child);
}

/* A round of `mixed`, which both ends make from its seed. */
struct request {
	int write;
	uint32_t offset, length;
	unsigned seed;
};

static unsigned make_round(uint64_t seed, struct request *requests)
{
	unsigned count = 1 + next_random(&seed) % MOST_REQUESTS;
	for (unsigned i = 0; i < count; i++) {
		static const uint32_t least[] = { 1, 4000, 15 * KIB, 100 * KIB };
		uint32_t small = least[next_random(&seed) % 4];
		requests[i].length = small + next_random(&seed) % (2 * small);
		requests[i].offset = next_random(&seed) % (FIELD - requests[i].length);
		requests[i].write = next_random(&seed) % 3 != 0;
		requests[i].seed = next_random(&seed) % 1000 + 1;
	}
	return count;
}

static void mixed_target(void)
{
	struct request requests[MOST_REQUESTS];
	struct ibv_wc wc = { 0 };
	new_memory(THERE);
	char *messages = memory + FIELD;
	for (unsigned i = 0; i < RECEIVES; i++)
		memset(messages + i * MESSAGE, 0, MESSAGE);
	meet(pd, EVERYTHING, mr);
	for (unsigned i = 0; i < RECEIVES; i++)
		receive(qp, i, messages + i * MESSAGE, MESSAGE, mr->lkey);
	both_are_here();
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t seed;
		unsigned right = wait_for(cq, &wc, PATIENCE) && wc.status == IBV_WC_SUCCESS;
		unsigned slot = wc.wr_id % RECEIVES;
		memcpy(&seed, messages + slot * MESSAGE, MESSAGE);
		unsigned count = make_round(seed, requests);
		for (unsigned i = 0; i < count; i++)
			if (requests[i].write)
				paint(shadow + requests[i].offset, requests[i].length,
				      requests[i].seed);
		right &= !memcmp(memory, shadow, FIELD);
		receive(qp, slot, messages + slot * MESSAGE, MESSAGE, mr->lkey);
		tell_number(right);
	}
	part();
}

/* Many requests of every size at once, then a SEND. */
static unsigned mixed_round(uint64_t seed, char *theirs)
{
	struct request requests[MOST_REQUESTS];
	static char wanted[MOST_REQUESTS][SLOT];
	unsigned count = make_round(seed, requests), right = 1;
	char *message = memory + MOST_REQUESTS * SLOT;
	struct ibv_wc wc;
	int after_read = 0;
	for (unsigned i = 0; i < count; i++) {
		char *slot = memory + i * SLOT, *there = theirs + requests[i].offset;
		memset(slot, 0, SLOT);
		if (requests[i].write) {
			paint(slot, requests[i].length, requests[i].seed);
			memcpy(there, slot, requests[i].length);
		} else {
			memcpy(wanted[i], there, requests[i].length);
		}
	}
	for (unsigned i = 0; i < count; i++) {
		char *slot = memory + i * SLOT;
		struct ibv_sge sge = { (uintptr_t)slot, requests[i].length, mr->lkey };
		struct ibv_send_wr wr = {
			.wr_id = i,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = requests[i].write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
			/* Else a WRITE need not wait for the bytes of a READ before it. */
			.send_flags = requests[i].write && after_read ? IBV_SEND_FENCE : 0,
			.wr.rdma = { peer.address + requests[i].offset, peer.rkey }
		};
		after_read |= !requests[i].write;
		post(qp, &wr);
	}
	struct ibv_sge sge = { (uintptr_t)message, MESSAGE, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = count,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND };
	memcpy(message, &seed, MESSAGE);
	post(qp, &wr);
	for (unsigned i = 0; i <= count; i++)
		right &= wait_for(cq, &wc, PATIENCE) && wc.status == IBV_WC_SUCCESS &&
			 wc.wr_id == i;
	for (unsigned i = 0; i < count; i++)
		if (!requests[i].write)
			right &= !memcmp(memory + i * SLOT, wanted[i], requests[i].length);
	return right;
}

static void mixed(uint64_t seed)
{
	unsigned here = 0, there = 0;
	char *theirs = memory_of(SPAN);
	pid_t child = start("mixed");
	new_memory(HERE);
	paint(theirs, SPAN, THERE);
	peer = meet(pd, EVERYTHING, mr);
	both_are_here();
	for (unsigned round = 0; round < ROUNDS; round++) {
		here += mixed_round(next_random(&seed), theirs);
		there += hear_number();
	}
	equal("IBA 9.5", ROUNDS, here, "rounds whose requests completed in order, READs right");
	equal("IBA 9.5", ROUNDS, there, "rounds whose SEND found every WRITE before it");
	unsigned long direct = device_counter("direct_requests");
	holds("design D7", directly ? direct >= ROUNDS : !direct, "some went directly");
	part();
	ended_well(child);
}

/* What is wrong with a request, or with what it meets. */
struct flaw {
	const char *name;
	enum ibv_wr_opcode opcode;
	unsigned key_access, qp_access;
	int key, shift, other_domain;
	enum ibv_wc_status want;
};

#define WRITE_FLAW IBV_WR_RDMA_WRITE, EVERYTHING, EVERYTHING
#define READ_FLAW IBV_WR_RDMA_READ, EVERYTHING, EVERYTHING

static const struct flaw flaws[] = {
	{ "a WRITE", WRITE_FLAW, .want = IBV_WC_SUCCESS },
	{ "a READ", READ_FLAW, .want = IBV_WC_SUCCESS },
	{ "a WRITE with another variant of the key", WRITE_FLAW, .key = 1,
	  .want = IBV_WC_REM_ACCESS_ERR },
	{ "a WRITE with an unknown key", WRITE_FLAW, .key = 0x100, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a READ with an unknown key", READ_FLAW, .key = 0x100, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a WRITE one byte too far", WRITE_FLAW, .shift = 1, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a READ one byte too far", READ_FLAW, .shift = 1, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a WRITE one byte too early", WRITE_FLAW, .shift = -1, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a READ one byte too early", READ_FLAW, .shift = -1, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a WRITE by a key without REMOTE_WRITE", IBV_WR_RDMA_WRITE,
	  LOCAL | IBV_ACCESS_REMOTE_READ, EVERYTHING, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a READ by a key without REMOTE_READ", IBV_WR_RDMA_READ, LOCAL | IBV_ACCESS_REMOTE_WRITE,
	  EVERYTHING, .want = IBV_WC_REM_ACCESS_ERR },
	{ "a WRITE to a QP without REMOTE_WRITE", IBV_WR_RDMA_WRITE, EVERYTHING,
	  IBV_ACCESS_REMOTE_READ, .want = IBV_WC_REM_INV_REQ_ERR },
	{ "a READ of a QP without REMOTE_READ", IBV_WR_RDMA_READ, EVERYTHING,
	  IBV_ACCESS_REMOTE_WRITE, .want = IBV_WC_REM_INV_REQ_ERR },
	{ "a WRITE to another domain", WRITE_FLAW, .other_domain = 1,
	  .want = IBV_WC_REM_ACCESS_ERR },
	{ "a READ of another domain", READ_FLAW, .other_domain = 1, .want = IBV_WC_REM_ACCESS_ERR },
};

enum { FLAWS = sizeof(flaws) / sizeof(flaws[0]), SIZES = 2 };
static const uint32_t flawed_sizes[SIZES] = { 64, 64 * KIB };

/* What the target saw of it. */
struct seen {
	int event, of_this_qp, state, untouched;
};

static struct seen look(int failed)
{
	struct seen seen = { .event = -1 };
	struct pollfd events = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	/* The event is raised before the refusal is sent; the wait is for a busy machine. */
	if (poll(&events, 1, failed ? 2000 : 0) == 1 && !ibv_get_async_event(context, &event)) {
		seen.event = event.event_type;
		seen.of_this_qp = event.element.qp == qp;
		ibv_ack_async_event(&event);
	}
	seen.state = state_of(qp);
	seen.untouched = as_it_should_be();
	return seen;
}

static void refusals_target(void)
{
	memory = memory_of(SPAN);
	shadow = memory_of(SPAN);
	struct ibv_pd *second = ibv_alloc_pd(context);
	for (unsigned i = 0; i < FLAWS * SIZES; i++) {
		const struct flaw *flaw = &flaws[i / SIZES];
		uint32_t length = flawed_sizes[i % SIZES];
		memset(memory, 7, SPAN);
		memset(shadow, 7, SPAN);
		mr = ibv_reg_mr(pd, memory + MIB, length, flaw->key_access);
		if (!second || !mr)
			fail("a domain and a registration");
		meet(flaw->other_domain ? second : pd, flaw->qp_access, mr);
		struct seen seen = look(hear_number());
		tell(&seen, sizeof(seen));
		part();
		if (ibv_dereg_mr(mr))
			fail("deregistration");
	}
}

static void refusals(void)
{
	struct ibv_wc wc;
	struct seen seen;
	pid_t child = start("refusals");
	new_memory(HERE);
	for (unsigned i = 0; i < FLAWS * SIZES; i++) {
		const struct flaw *flaw = &flaws[i / SIZES];
		uint32_t length = flawed_sizes[i % SIZES];
		struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
		peer = meet(pd, EVERYTHING, NULL);
		struct ibv_send_wr wr = { .wr_id = 1,
					  .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = flaw->opcode,
					  .wr.rdma = { peer.address + flaw->shift,
						       peer.rkey ^ flaw->key } };
		memset(memory, flaw->opcode == IBV_WR_RDMA_READ ? 0x11 : 7, length);
		post(qp, &wr);
		if (!wait_for(cq, &wc, PATIENCE))
			fail("a completion");
		enum ibv_wc_status status = wc.status;
		tell_number(status != IBV_WC_SUCCESS);
		hear(&seen, sizeof(seen));
		const char *event = seen.event < 0 ? "no event" : ibv_event_type_str(seen.event);
		printf("outcome %s of %u bytes: %s; there: %s, state %d; here: state %d\n",
		       flaw->name, length, ibv_wc_status_str(status), event, seen.state,
		       state_of(qp));
		verdict(status == flaw->want, flaw->name, ibv_wc_status_str(status),
			ibv_wc_status_str(flaw->want), "IBA 9.9.3");
		holds("IBA 9.9.3", seen.untouched, "no byte there changed");
		if (flaw->want != IBV_WC_SUCCESS) {
			holds("IBA 11.6.3", seen.event >= 0 && seen.of_this_qp,
			      "the QP there has an event");
			post(qp, &wr);
			completes("IBA 10.8.3", cq, 1, IBV_WC_WR_FLUSH_ERR, "the next request");
		}
		part();
	}
	ended_well(child);
}

static void play(const char *role)
{
	if (!strcmp(role, "bytes"))
		bytes_target();
	else if (!strcmp(role, "order"))
		order_target();
	else if (!strcmp(role, "mixed"))
		mixed_target();
	else if (!strcmp(role, "refusals"))
		refusals_target();
	else
		fail(role);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	const char *story = argv[1];
	directly = !strcmp(argv[2], "direct");
	uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
	open_device();
	plays_here = getenv("ONE_PROCESS") ? play : NULL;
	if (!strcmp(story, "as")) {
		play(argv[2]);
		return 0;
	}
	fprintf(stderr, "%s, seed %lu\n", story, seed);
	if (!strcmp(story, "bytes"))
		bytes();
	else if (!strcmp(story, "order"))
		order();
	else if (!strcmp(story, "mixed"))
		mixed(seed);
	else if (!strcmp(story, "refusals"))
		refusals();
	else
		fail(story);
	return finish();
}
