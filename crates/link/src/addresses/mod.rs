//! What the kernel knows of this host's interfaces and addresses, and of its neighbours.

pub(crate) mod gids;
pub(crate) mod neighbour;
pub(crate) mod netlink;
pub(crate) mod watch;
