/*
 * Words that a program watches while another one writes to them, or reads them: it sees one as it
 * was before or as it is after, whether it comes from memory to memory or by packets.
 *
 *   watched [file-]writes|reads direct|packets
 *
 * Of file-writes and file-reads it is memory that both ends may map.
 */
#include "neighbours.h"

#include <pthread.h>
#include <stdatomic.h>

enum { REQUESTS = 3000 };

/* What stands around the part that is written to. */
static const uint64_t UNTOUCHED = 0xa5a4a3a2a1a0a9a8;

/* A part of a word of eight bytes, and what is written there one after the other. */
struct part {
	unsigned offset, length;
	enum { COUNTS, REPEATS } kind;
};

static const struct part parts[] = {
	{ 0, 2, COUNTS },  { 2, 2, REPEATS }, { 6, 2, COUNTS },	 { 4, 2, REPEATS },
	{ 0, 4, COUNTS },  { 4, 4, COUNTS },  { 0, 4, REPEATS }, { 4, 4, REPEATS },
	{ 0, 8, REPEATS }, { 0, 8, COUNTS },
};
enum { PARTS = sizeof(parts) / sizeof(parts[0]) };

static _Atomic uint64_t *word;
static struct ibv_mr *mr;
static atomic_int ended;

static uint64_t mask(const struct part *part) { return ~0ull >> (64 - 8 * part->length); }

static uint64_t of(const struct part *part, uint64_t all)
{
	return all >> 8 * part->offset & mask(part);
}

/* What stands there after so many. */
static uint64_t value(const struct part *part, unsigned number)
{
	uint64_t all = part->kind == COUNTS ? number : 0x0101010101010101ull * (number & 0xff);
	return all & mask(part);
}

/* Watches it until all have come: how often it was none of them, or an earlier one again. */
static void *watch(void *watched)
{
	const struct part *part = watched;
	unsigned long wrong = 0;
	uint64_t before = 0;
	while (!ended) {
		uint64_t now = of(part, *word);
		wrong += part->kind == COUNTS ? now < before || now > REQUESTS
					      : now != value(part, now & 0xff);
		before = now;
	}
	return (void *)wrong;
}

/* Writes to it all the time, in the program itself. */
static void *write_always(void *changed)
{
	const struct part *part = changed;
	for (unsigned number = 0; !ended; number++)
		*word = value(part, number) << 8 * part->offset;
	return NULL;
}

static void *beside(void *(*act)(void *), const struct part *part)
{
	pthread_t thread;
	void *said;
	ended = 0;
	if (pthread_create(&thread, NULL, act, (void *)part))
		fail("a thread");
	both_are_here();
	hear_number();
	ended = 1;
	pthread_join(thread, &said);
	return said;
}

static void target(int reads)
{
	for (unsigned i = 0; i < PARTS; i++) {
		const struct part *part = parts + i;
		uint64_t around = UNTOUCHED & ~(mask(part) << 8 * part->offset);
		*word = around;
		if (reads) {
			beside(write_always, part);
			continue;
		}
		unsigned long wrong = (unsigned long)beside(watch, part);
		tell_number(wrong);
		tell_number(*word == (around | value(part, REQUESTS) << 8 * part->offset));
	}
}

static void request(const struct part *part, int reads, struct end peer)
{
	struct ibv_sge sge = { (uintptr_t)word, part->length, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
				  .wr.rdma = { peer.address + part->offset, peer.rkey } };
	struct ibv_wc wc;
	post(qp, &wr);
	if (!wait_for(cq, &wc, PATIENCE) || wc.status != IBV_WC_SUCCESS)
		fail("a request");
}

/* What it has counted before a READ and after it. */
static void count_a_read(void)
{
	for (int i = 0; i < 2; i++) {
		hear_number();
		tell_number(device_counter("rx_read_requests"));
	}
}

/* A READ to where nothing goes directly, which shows only once it has been done. */
static void reads_once(struct end peer)
{
	struct ibv_mr *own = mr;
	struct part all = { 0, 8, REPEATS };
	unsigned counted[2];
	mr = ibv_reg_mr(pd, (void *)word, 4096, EVERYTHING | IBV_ACCESS_ON_DEMAND);
	if (!mr)
		fail("memory on demand");
	for (int i = 0; i < 2; i++) {
		if (i)
			request(&all, 1, peer);
		tell_number(0);
		counted[i] = hear_number();
	}
	equal("IBA 9.4", 1, counted[1] - counted[0], "READs that the target has counted");
	ibv_dereg_mr(mr);
	mr = own;
}

static void initiator(int reads, int directly, struct end peer)
{
	for (unsigned i = 0; i < PARTS; i++) {
		const struct part *part = parts + i;
		unsigned long before = device_counter("direct_requests");
		unsigned wrong = 0;
		both_are_here();
		for (unsigned number = 1; number <= REQUESTS; number++) {
			*word = value(part, number);
			request(part, reads, peer);
			uint64_t here = *word & mask(part);
			wrong += reads && part->kind == REPEATS &&
				 here != value(part, here & 0xff);
		}
		unsigned long direct = device_counter("direct_requests") - before;
		tell_number(0);
		if (reads) {
			equal("IBA 9.4", 0, wrong, "words of %u bytes at %u that were read in part",
			      part->length, part->offset);
		} else {
			equal("IBA 9.4", 0, hear_number(),
			      "times that %u bytes at %u were seen in part", part->length, part->offset);
			holds("IBA 9.4", hear_number(), "the last is there, and no other byte changed");
		}
		int goes = reads || part->kind == COUNTS || part->length == 8;
		holds("design D7", !directly ? !direct : !goes || direct > REQUESTS / 2,
		      "what can be seen whole went directly, if any");
	}
}

static void *new_memory(int in_file)
{
	int file = in_file ? memfd_create("watched", MFD_CLOEXEC) : -1;
	if (!in_file)
		return memory_of(4096);
	void *at = ftruncate(file, 4096) ? MAP_FAILED
					 : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
						file, 0);
	if (at == MAP_FAILED)
		fail("a file in memory");
	return at;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int is_other = !strcmp(argv[1], "as");
	const char *story = is_other ? argv[2] : argv[1];
	int in_file = !strncmp(story, "file-", 5), reads = !strcmp(story + 5 * in_file, "reads");
	open_device();
	pid_t child = is_other ? 0 : start(story);
	word = new_memory(in_file);
	mr = registered((void *)word, 4096);
	struct end peer = meet(pd, EVERYTHING, mr);
	if (is_other)
		target(reads);
	else
		initiator(reads, !strcmp(argv[2], "direct"), peer);
	if (reads)
		is_other ? count_a_read() : reads_once(peer);
	part();
	if (is_other)
		return 0;
	ended_well(child);
	return finish();
}
