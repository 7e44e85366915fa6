/*
 * How fast messages between MPI ranks are, measured as the OSU Micro-Benchmarks do: latency of a
 * ping-pong, bandwidth and message rate of windows of 64 that one small message answers, and the
 * time of MPI_Allreduce, of which the first rounds are left out. The first rank prints `NAME
 * FIGURE` a line: microseconds, GB/s of 10^9 bytes, and millions of messages a second over all
 * pairs.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW 64
#define LARGE (1 << 20)

static int rank, size;
static char *out, *in;

/* Half of a round trip between the first two ranks. */
static double latency(int bytes, int rounds, int skipped)
{
	double begun = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < rounds + skipped && rank < 2; i++) {
		if (i == skipped)
			begun = MPI_Wtime();
		if (rank == 0)
			MPI_Send(out, bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(in, bytes, MPI_CHAR, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(out, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
	}
	return (MPI_Wtime() - begun) * 1e6 / (2.0 * rounds);
}

/* Messages a second, of all pairs: the first half of the ranks sends, each to one of the other. */
static double rate(int bytes, int rounds, int skipped)
{
	int pairs = size / 2, sends = rank < pairs;
	int peer = sends ? rank + pairs : rank - pairs;
	MPI_Request requests[WINDOW];
	double begun = 0, took = 0, sum;
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < rounds + skipped; i++) {
		if (i == skipped) {
			MPI_Barrier(MPI_COMM_WORLD);
			begun = MPI_Wtime();
		}
		for (int j = 0; j < WINDOW; j++)
			if (sends)
				MPI_Isend(out, bytes, MPI_CHAR, peer, 100, MPI_COMM_WORLD,
					  &requests[j]);
			else
				MPI_Irecv(in, bytes, MPI_CHAR, peer, 100, MPI_COMM_WORLD,
					  &requests[j]);
		MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
		if (sends)
			MPI_Recv(in, 4, MPI_CHAR, peer, 101, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		else
			MPI_Send(out, 4, MPI_CHAR, peer, 101, MPI_COMM_WORLD);
	}
	if (sends)
		took = MPI_Wtime() - begun;
	MPI_Allreduce(&took, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return (double)pairs * WINDOW * rounds / (sum / pairs);
}

/* Of one call, over all ranks. */
static double allreduce(int bytes, int rounds, int skipped)
{
	double took = 0, sum;
	for (int i = 0; i < rounds + skipped; i++) {
		double begun = MPI_Wtime();
		MPI_Allreduce(out, in, bytes / sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		if (i >= skipped)
			took += MPI_Wtime() - begun;
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Allreduce(&took, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return sum * 1e6 / rounds / size;
}

static void say(const char *name, double figure)
{
	if (rank == 0)
		printf("%s %f\n", name, figure);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	out = calloc(1, LARGE);
	in = calloc(1, LARGE);
	if (!out || !in || size < 2 || size % 2)
		MPI_Abort(MPI_COMM_WORLD, 2);
	say("latency", latency(8, 10000, 200));
	say("bandwidth", rate(LARGE, 20, 2) * LARGE / 1e9);
	say("rate", rate(8, 2000, 20) / 1e6);
	say("allreduce small", allreduce(8, 1000, 200));
	say("allreduce large", allreduce(64 << 10, 200, 20));
	MPI_Finalize();
	return 0;
}
