/*
 * An MPI program that compares every byte it moves: messages of many sizes around a ring, messages
 * under way at once, collectives, and one-sided operations with fences and with locks. Rank 0
 * prints `KIND: right`, or each rank that finds something else says what, and the exit status is 1.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
/* Of the present kind. */
static int wrong;

/* A byte that tells its place and what it belongs to. */
static unsigned char pattern(unsigned owner, size_t at)
{
	return (unsigned char)((at * 2654435761u >> 13) + owner * 97 + at);
}

static void fill(unsigned char *to, size_t bytes, unsigned owner)
{
	for (size_t at = 0; at < bytes; at++)
		to[at] = pattern(owner, at);
}

static void differ(const char *what, size_t at)
{
	if (!wrong++)
		printf("NOT rank %d: %s differs at %zu\n", rank, what, at);
}

static void compare(const unsigned char *found, size_t bytes, unsigned owner, const char *what)
{
	for (size_t at = 0; at < bytes; at++)
		if (found[at] != pattern(owner, at)) {
			differ(what, at);
			return;
		}
}

static void *memory(size_t bytes)
{
	void *made = calloc(1, bytes);
	if (!made)
		MPI_Abort(MPI_COMM_WORLD, 2);
	return made;
}

static int right(void)
{
	return (rank + 1) % size;
}

static int left(void)
{
	return (rank + size - 1) % size;
}

static const size_t SIZES[] = { 0, 1, 8, 100, 1000, 4097, 8192, 65536, 300000, (2 << 20) + 1 };

/* Each rank passes one message of each size to the next; behind the last byte nothing changes. */
static void messages(void)
{
	for (size_t i = 0; i < sizeof(SIZES) / sizeof(*SIZES); i++) {
		size_t bytes = SIZES[i];
		unsigned char *out = memory(bytes + 1), *in = memory(bytes + 16);
		fill(out, bytes, rank);
		memset(in + bytes, 0xee, 16);
		MPI_Status status;
		int count;
		MPI_Sendrecv(out, bytes, MPI_BYTE, right(), i, in, bytes + 16, MPI_BYTE, left(), i,
			     MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &count);
		if ((size_t)count != bytes)
			differ("a message's length", bytes);
		compare(in, bytes, left(), "a message");
		for (size_t at = bytes; at < bytes + 16; at++)
			if (in[at] != 0xee)
				differ("what is behind a message", at);
		free(out);
		free(in);
	}
}

enum { MANY = 300, EACH = 700 };

/* To every other rank at once; half of the messages come before anyone waits for them. */
static void floods(void)
{
	unsigned char *out = memory(MANY * EACH), *in = memory((size_t)size * MANY * EACH);
	MPI_Request *requests = memory(2 * (size_t)size * MANY * sizeof(*requests));
	MPI_Status *statuses = memory(2 * (size_t)size * MANY * sizeof(*statuses));
	int pending = 0;
	fill(out, MANY * EACH, rank);
	for (int half = 0; half < 2; half++) {
		for (int peer = 0; peer < size; peer++)
			for (int i = half; i < MANY; i += 2) {
				unsigned char *at = out + i * EACH;
				MPI_Isend(at, EACH, MPI_BYTE, peer, i, MPI_COMM_WORLD,
					  &requests[pending++]);
			}
		for (int peer = 0; peer < size; peer++)
			for (int i = MANY - 2 + half; i >= 0; i -= 2) {
				unsigned char *at = in + ((size_t)peer * MANY + i) * EACH;
				MPI_Irecv(at, EACH, MPI_BYTE, peer, i, MPI_COMM_WORLD,
					  &requests[pending++]);
			}
	}
	MPI_Waitall(pending, requests, statuses);
	for (int peer = 0; peer < size; peer++)
		compare(in + (size_t)peer * MANY * EACH, MANY * EACH, peer, "one of many messages");
	free(out);
	free(in);
	free(requests);
	free(statuses);
}

enum { NUMBERS = 50000 };

static void collectives(void)
{
	uint64_t *mine = memory(NUMBERS * 8), *sum = memory(NUMBERS * 8);
	for (int i = 0; i < NUMBERS; i++)
		mine[i] = (uint64_t)i * (rank + 1);
	for (int count = 1; count <= NUMBERS; count = count < 1000 ? count * 10 : count * 50) {
		memset(sum, 0, NUMBERS * 8);
		MPI_Allreduce(mine, sum, count, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < count; i++)
			if (sum[i] != (uint64_t)i * size * (size + 1) / 2)
				differ("a sum", i);
	}
	size_t part = 30000;
	unsigned char *out = memory(size * part), *in = memory(size * part);
	for (int peer = 0; peer < size; peer++)
		fill(out + peer * part, part, rank * 16 + peer);
	MPI_Alltoall(out, part, MPI_BYTE, in, part, MPI_BYTE, MPI_COMM_WORLD);
	for (int peer = 0; peer < size; peer++)
		compare(in + peer * part, part, peer * 16 + rank, "what one rank had for another");
	memset(in, 0, size * part);
	if (rank == 0)
		fill(in, size * part, 5);
	MPI_Bcast(in, size * part, MPI_BYTE, 0, MPI_COMM_WORLD);
	compare(in, size * part, 5, "what was said to all");
	free(mine);
	free(sum);
	free(out);
	free(in);
}

enum { WINDOW = 200000 };

/* Puts into the next rank's window, gets from the one before, in epochs that fences end. */
static void fences(unsigned char *window, MPI_Win win)
{
	unsigned char *local = memory(WINDOW);
	for (size_t bytes = 1; bytes <= WINDOW; bytes = bytes * 9 + 1) {
		memset(window, 0, WINDOW);
		fill(local, bytes, rank);
		MPI_Win_fence(0, win);
		MPI_Put(local, bytes, MPI_BYTE, right(), WINDOW - bytes, bytes, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		compare(window + WINDOW - bytes, bytes, left(), "what was put");
		for (size_t at = 0; at < WINDOW - bytes; at++)
			if (window[at])
				differ("what is beside what was put", at);
		memset(local, 0, bytes);
		MPI_Win_fence(0, win);
		MPI_Get(local, bytes, MPI_BYTE, left(), WINDOW - bytes, bytes, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		compare(local, bytes, (left() + size - 1) % size, "what was got");
	}
	free(local);
}

enum { ADDED = 2000, TURNS = 50 };

/* Every rank adds to every window at once; then to one number, and by swaps to another. */
static void sums(unsigned char *window, MPI_Win win)
{
	int64_t *numbers = (int64_t *)window, *local = memory(ADDED * 8);
	memset(window, 0, WINDOW);
	for (int i = 0; i < ADDED; i++)
		local[i] = (int64_t)(i + 1) * (rank + 1);
	MPI_Win_fence(0, win);
	for (int peer = 0; peer < size; peer++)
		MPI_Accumulate(local, ADDED, MPI_INT64_T, peer, 0, ADDED, MPI_INT64_T, MPI_SUM,
			       win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < ADDED; i++)
		if (numbers[i] != (int64_t)(i + 1) * size * (size + 1) / 2)
			differ("an accumulated sum", i);
	MPI_Win_fence(0, win);
	memset(window, 0, WINDOW);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	int64_t one = 1, before, last = -1;
	for (int turn = 0; turn < TURNS; turn++) {
		MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, win);
		MPI_Win_flush(0, win);
		if (before <= last || before >= (int64_t)TURNS * size)
			differ("a fetched number", turn);
		last = before;
	}
	for (int turn = 0; turn < TURNS; turn++) {
		int64_t expected = 0, next;
		for (;; expected = before) {
			next = expected + 1;
			MPI_Compare_and_swap(&next, &expected, &before, MPI_INT64_T, 0, 8, win);
			MPI_Win_flush(0, win);
			if (before == expected)
				break;
		}
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
	MPI_Get(local, 16, MPI_BYTE, 0, 0, 16, MPI_BYTE, win);
	MPI_Win_unlock(0, win);
	for (int i = 0; i < 2; i++)
		if (local[i] != (int64_t)TURNS * size)
			differ("a number that all count up", i);
	free(local);
}

enum { SWAPPED = 40 };

/*
 * Each rank puts numbers into the next one's window, swaps them for others and looks at both.
 * Open MPI makes a READ and a WRITE of the swap, without waiting between.
 */
static void swaps(unsigned char *window, MPI_Win win)
{
	unsigned char put[SWAPPED], next[SWAPPED], before[SWAPPED], after[SWAPPED];
	MPI_Win_fence(0, win);
	memset(window, 0, WINDOW);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int turn = 0; turn < TURNS; turn++) {
		int bytes = 1 + turn % SWAPPED;
		fill(put, bytes, 2 * turn);
		fill(next, bytes, 2 * turn + 1);
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, right(), 0, win);
		MPI_Put(put, bytes, MPI_BYTE, right(), 0, bytes, MPI_BYTE, win);
		MPI_Win_flush(right(), win);
		MPI_Get_accumulate(next, bytes, MPI_BYTE, before, bytes, MPI_BYTE, right(), 0,
				   bytes, MPI_BYTE, MPI_REPLACE, win);
		MPI_Win_flush(right(), win);
		MPI_Get(after, bytes, MPI_BYTE, right(), 0, bytes, MPI_BYTE, win);
		MPI_Win_unlock(right(), win);
		compare(before, bytes, 2 * turn, "what was there before a swap");
		compare(after, bytes, 2 * turn + 1, "what a swap put there");
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

/* One rank at a time reads a number of rank 0 and puts the next. */
static void locks(unsigned char *window, MPI_Win win)
{
	int64_t *numbers = (int64_t *)window, number = 0;
	MPI_Win_fence(0, win);
	memset(window, 0, WINDOW);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int turn = 0; turn < TURNS; turn++) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		MPI_Get(&number, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, win);
		MPI_Win_flush(0, win);
		number++;
		MPI_Put(&number, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, win);
		MPI_Win_unlock(0, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
	if (rank == 0 && numbers[0] != (int64_t)TURNS * size)
		differ("a number behind a lock", 0);
	MPI_Win_unlock(rank, win);
}

static void of_window(void (*kind)(unsigned char *, MPI_Win))
{
	/* In the program's own memory, and in the library's. */
	for (int own = 0; own < 2; own++) {
		MPI_Win win;
		unsigned char *window = own ? memory(WINDOW) : NULL;
		if (own)
			MPI_Win_create(window, WINDOW, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
		else
			MPI_Win_allocate(WINDOW, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
		kind(window, win);
		MPI_Win_free(&win);
		if (own)
			free(window);
	}
}

static int said(const char *kind)
{
	int all;
	MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s: %s\n", kind, all ? "wrong" : "right");
	fflush(stdout);
	wrong = 0;
	return all != 0;
}

int main(int argc, char **argv)
{
	int failed = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	messages();
	failed |= said("messages");
	floods();
	failed |= said("floods");
	collectives();
	failed |= said("collectives");
	of_window(fences);
	failed |= said("fences");
	of_window(sums);
	failed |= said("sums");
	if (argc < 2 || strcmp(argv[1], "without-swaps")) {
		of_window(swaps);
		failed |= said("swaps");
	}
	of_window(locks);
	failed |= said("locks");
	MPI_Finalize();
	return failed;
}
