//! What an endpoint counts. Counters only grow; they are read while traffic runs.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an endpoint.
        #[derive(Default, Debug)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Stats {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.load(Relaxed)),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Datagrams that the kernel took.
    tx_datagrams,
    /// System-call messages that carried them: GSO trains and lone datagrams.
    tx_trains,
    /// Bytes of datagrams that the kernel took: of their UDP payload, or of whole frames where the
    /// endpoint is on an Ethernet of its own.
    tx_bytes,
    /// Ethernet frames of raw packets that the kernel took.
    tx_frames,
    /// Datagrams handed out.
    rx_datagrams,
    /// System-call messages that carried datagrams, good or bad: GRO trains and lone ones.
    rx_trains,
    /// Bytes of datagrams received, good or bad, as `tx_bytes` counts them.
    rx_bytes,
    /// Datagrams whose ICRC was wrong.
    rx_icrc_errors,
    /// Datagrams that are no RoCEv2 packet although their ICRC was right, or too short to have one.
    rx_malformed,
    /// Times the kernel refused a GSO train that it then took as single datagrams.
    gso_refusals,
    /// Datagrams lost because they exceed the path's MTU (EMSGSIZE).
    send_too_big,
    /// Datagrams lost for want of a route, an interface or the source address.
    send_unreachable,
    /// Datagrams lost for want of kernel buffers.
    send_no_buffers,
    /// Datagrams that a firewall or security policy refused.
    send_denied,
    /// Datagrams lost for any other reason the kernel gave.
    send_other,
}

impl Stats {
    /// Counts `datagrams` that the kernel would not send.
    pub(crate) fn lost(&self, error: &io::Error, datagrams: u64) {
        let counter = match error.raw_os_error() {
            Some(libc::EMSGSIZE) => &self.send_too_big,
            Some(
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN
                | libc::EADDRNOTAVAIL | libc::ENODEV | libc::ENXIO
                // What IPv4 answers to a source address that the host does not have.
                | libc::EINVAL,
            ) => &self.send_unreachable,
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN) => &self.send_no_buffers,
            Some(libc::EPERM | libc::EACCES) => &self.send_denied,
            _ => &self.send_other,
        };
        counter.fetch_add(datagrams, Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_kind() {
        let stats = Stats::default();
        for (errno, count) in [
            (libc::EMSGSIZE, 1),
            (libc::ENETUNREACH, 2),
            (libc::ENOBUFS, 4),
            (libc::EPERM, 8),
            (libc::EIO, 16),
        ] {
            stats.lost(&io::Error::from_raw_os_error(errno), count);
        }
        let counted: Vec<_> = stats.iter().filter(|(_, value)| *value > 0).collect();
        assert_eq!(
            counted,
            [
                ("send_too_big", 1),
                ("send_unreachable", 2),
                ("send_no_buffers", 4),
                ("send_denied", 8),
                ("send_other", 16)
            ]
        );
    }
}
