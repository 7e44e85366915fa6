//! How full a peer's receive socket is, where the peer is on this host.
//!
//! RoCE counts on a fabric that pauses a sender before a receiver overflows (priority flow control). On one host that can be
//! had: the registry passes a copy of the peer's receive socket, whose backlog the kernel tells. Nothing is read
//! from it. As with a pause watchdog in a switch, a receiver that does not drain for [`WATCHDOG`] is not
//! waited for any longer: its datagrams are then lost, as on a wire.

use crate::udp;
use descriptors::Kept;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a full receiver is waited for.
pub const WATCHDOG: Duration = Duration::from_millis(50);

/// Watches one receive socket of a peer.
#[derive(Debug)]
pub struct Backlog {
    socket: Kept,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that may be sent before the next look.
    credit: u64,
    /// Backlog at the last look that found no room, and since when it has not shrunk.
    stuck: Option<(u64, Instant)>,
}

impl Backlog {
    /// Watches `socket`, a copy of a receive socket of the peer.
    pub fn new(socket: OwnedFd) -> Backlog {
        Backlog { socket: Kept::new(socket), state: Mutex::new(State { credit: 0, stuck: None }) }
    }

    /// Whether `bytes` more may be sent now. Asks the kernel once per share of the buffer, not per packet.
    pub fn room(&self, bytes: u64, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = state.credit.checked_sub(bytes) {
            state.credit = left;
            return true;
        }
        let Ok((used, capacity)) = udp::receive_backlog(self.socket.as_fd()) else { return true };
        // Short datagrams are charged twice their length and other senders see the same room, so only a share of it is
        // taken at a time.
        let free = (capacity - capacity / 4).saturating_sub(used);
        if free > 0 {
            state.credit = free / 4;
            state.stuck = None;
            return true;
        }
        match state.stuck {
            Some((least, since)) if used >= least => now.duration_since(since) >= WATCHDOG,
            _ => {
                state.stuck = Some((used, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn pauses_before_the_receiver_overflows_and_gives_up_on_a_dead_one() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        let backlog = Backlog::new(receiver.try_clone().unwrap().into());
        let now = Instant::now();
        let mut sent = 0;
        while backlog.room(1000, now) {
            sender.send_to(&[7; 1000], to).unwrap();
            sent += 1;
            assert!(sent < 100_000, "never pauses");
        }
        assert!(!backlog.room(1000, now + WATCHDOG / 2));
        assert!(backlog.room(1000, now + WATCHDOG), "a dead receiver is not waited for");
        receiver.set_nonblocking(true).unwrap();
        let mut received = 0;
        while receiver.recv(&mut [0; 2000]).is_ok() {
            received += 1;
        }
        assert_eq!(received, sent, "something was lost before the pause");
        assert!(backlog.room(1000, now));
    }
}
