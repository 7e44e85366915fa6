/*
 * A descriptor that one process hands to another at an abstract socket, with some bytes along.
 */
#ifndef HAND_OVER_H
#define HAND_OVER_H

#include "rows.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

union ancillary {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

/* Sends a descriptor with some bytes; whether the peer took them. */
static inline int send_descriptor(int peer, int fd, void *along, size_t length)
{
	struct iovec vector = { along, length };
	union ancillary ancillary = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct msghdr message = { .msg_iov = &vector,
				  .msg_iovlen = 1,
				  .msg_control = &ancillary,
				  .msg_controllen = sizeof(ancillary) };
	memcpy(CMSG_DATA(&ancillary.header), &fd, sizeof(fd));
	return sendmsg(peer, &message, MSG_NOSIGNAL) == (ssize_t)length;
}

/* The descriptor that comes from a peer, and the bytes with it. */
static inline int receive_descriptor(int peer, void *along, size_t length)
{
	int fd;
	struct iovec vector = { along, length };
	union ancillary ancillary;
	struct msghdr message = { .msg_iov = &vector,
				  .msg_iovlen = 1,
				  .msg_control = &ancillary,
				  .msg_controllen = sizeof(ancillary) };
	if (recvmsg(peer, &message, MSG_WAITALL) != (ssize_t)length ||
	    message.msg_controllen < sizeof(ancillary))
		fail("receive a descriptor");
	memcpy(&fd, CMSG_DATA(&ancillary.header), sizeof(fd));
	return fd;
}

static inline int unix_socket(const char *name,
			      int (*join)(int, const struct sockaddr *, socklen_t))
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	strncpy(address.sun_path + 1, name, sizeof(address.sun_path) - 2);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t length = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
	if (fd < 0 || join(fd, (struct sockaddr *)&address, length))
		fail("meet at the socket");
	return fd;
}

/* A socket at which others ask for a descriptor. */
static inline int hand_over_at(const char *name)
{
	int listener = unix_socket(name, bind);
	if (listen(listener, 8))
		fail("listen");
	return listener;
}

/* Hands `fd` to the next one who asks; 0 when that one went without it. */
static inline int hand_over(int listener, int fd, void *along, size_t length)
{
	int peer = accept(listener, NULL, NULL);
	int done = peer >= 0 && send_descriptor(peer, fd, along, length);
	close(peer);
	return done;
}

/* The descriptor that is handed over at `name`, and what comes along. */
static inline int fetch(const char *name, void *along, size_t length)
{
	int peer = unix_socket(name, connect);
	int fd = receive_descriptor(peer, along, length);
	close(peer);
	return fd;
}

#endif
