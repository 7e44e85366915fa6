//! How full a peer's receive socket is, where the peer is on this host.
//!
//! RoCE counts on a fabric that pauses a sender before a receiver overflows (priority flow
//! control). On one host that can be had: the registry passes a copy of the peer's receive socket,
//! whose backlog the kernel tells. Nothing is read from it. A service that repairs losses takes
//! room for whole trains and leaves the other half of the buffer to those that do not. As with a
//! pause watchdog in a switch, a receiver that does not drain for [`WATCHDOG`] is not waited for
//! any longer: its datagrams are then lost, as on a wire.

use crate::socket::udp;
use descriptors::Kept;
use engine_thread::lock;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a full receiver is waited for: longer than a busy machine keeps a program that wants to
/// run from running, as what is sent past a watchdog is lost. Switches wait 0.2 to 5 seconds.
pub const WATCHDOG: Duration = Duration::from_secs(1);

/// Bytes that a service that repairs losses takes at a time, if there is room: two trains, as they
/// are sent, or a share of a large buffer.
const TRAINS_BYTES: u64 = 2 * 70_000;

/// Whether what is lost for want of buffer comes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Losses {
    /// The transport sends it again: a reliable connection.
    Repaired,
    /// It never does: a datagram, an unreliable connection.
    Final,
}

/// Watches one receive socket of a peer.
#[derive(Debug)]
pub struct Backlog {
    socket: Kept,
    state: Mutex<Watched>,
}

#[derive(Debug)]
struct Watched {
    /// Bytes that may be sent before the next look.
    credit: u64,
    /// Backlog at the last look that found no room, and since when it has not shrunk.
    stuck: Option<(u64, Instant)>,
}

impl Backlog {
    /// Watches `socket`, a copy of a receive socket of the peer.
    pub fn new(socket: OwnedFd) -> Backlog {
        Backlog { socket: Kept::new(socket), state: Mutex::new(Watched { credit: 0, stuck: None }) }
    }

    /// Whether all that came was taken. Asks the kernel each time; where it does not tell, it was
    /// not.
    pub fn is_empty(&self) -> bool {
        udp::receive_backlog(self.socket.as_fd()).is_ok_and(|(used, _)| used == 0)
    }

    /// Whether `bytes` more may be sent now. Asks the kernel once per share of the buffer, not per
    /// packet.
    pub fn room(&self, bytes: u64, losses: Losses, now: Instant) -> bool {
        let mut state = lock(&self.state);
        if let Some(left) = state.credit.checked_sub(bytes) {
            state.credit = left;
            return true;
        }
        let Ok((used, capacity)) = udp::receive_backlog(self.socket.as_fd()) else { return true };
        let free = |share: u64| share.saturating_sub(used);
        let credit = match losses {
            // Short datagrams are charged twice their length and other senders see the same room,
            // so only a share of it is taken at a time.
            Losses::Final => free(capacity - capacity / 4).div_ceil(4),
            Losses::Repaired => free(capacity / 2).min(TRAINS_BYTES.max(capacity / 16)),
        };
        if credit > 0 {
            state.credit = credit;
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
        while backlog.room(1000, Losses::Final, now) {
            sender.send_to(&[7; 1000], to).unwrap();
            sent += 1;
            assert!(sent < 100_000, "never pauses");
        }
        assert!(!backlog.room(1000, Losses::Final, now + WATCHDOG / 2));
        assert!(
            backlog.room(1000, Losses::Final, now + WATCHDOG),
            "a dead receiver is not waited for"
        );
        receiver.set_nonblocking(true).unwrap();
        let mut received = 0;
        while receiver.recv(&mut [0; 2000]).is_ok() {
            received += 1;
        }
        assert_eq!(received, sent, "something was lost before the pause");
        assert!(backlog.room(1000, Losses::Final, now));
    }

    #[test]
    fn who_repairs_losses_takes_trains_and_leaves_room_to_others() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        let socket = || receiver.try_clone().unwrap().into();
        let (repairs, loses) = (Backlog::new(socket()), Backlog::new(socket()));
        let now = Instant::now();
        let mut trains = 0;
        while repairs.room(60_000, Losses::Repaired, now) {
            sender.send_to(&[7; 60_000], to).unwrap();
            trains += 1;
            assert!(trains < 10_000, "never pauses");
        }
        assert!(trains >= 1);
        assert!(loses.room(1000, Losses::Final, now), "half of the buffer is left");
        receiver.set_nonblocking(true).unwrap();
        let received = std::iter::from_fn(|| receiver.recv(&mut [0; 65_536]).ok()).count();
        assert_eq!(received, trains);
    }
}
