/*
 * A program that ends while eight identifiers of its listen at ADDRESS, each at a port that the
 * registry gave it.
 *
 *   leaves_listening ADDRESS follow|full
 *
 * Prints `listens`; SIGUSR1 asks it to end by exit(3), without closing anything. If `full`, it has
 * no descriptor left by then, so that it cannot host the registry itself.
 */
#include "rows.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/resource.h>

enum { LISTENERS = 8 };

static void listen_at(struct rdma_event_channel *channel, struct sockaddr_in address)
{
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(id, (struct sockaddr *)&address) || rdma_listen(id, 4))
		fail("listen");
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	sigset_t asked;
	struct rlimit none = { 0, 0 };
	int number;
	sigemptyset(&asked);
	sigaddset(&asked, SIGUSR1);
	/* before anybody can know that it listens */
	sigprocmask(SIG_BLOCK, &asked, NULL);
	if (argc != 3 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1 || !channel)
		fail("an address and a channel");
	for (int i = 0; i < LISTENERS; i++)
		listen_at(channel, address);
	if (!strcmp(argv[2], "full") && setrlimit(RLIMIT_NOFILE, &none))
		fail("a limit on descriptors");
	printf("listens\n");
	fflush(stdout);
	sigwait(&asked, &number);
	exit(0);
}
