//! What a device counts, under the names of Linux' `hw_counters` where one exists.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// Every counter.
            pub const ALL: &[Counter] = &[$(Counter::$variant,)*];

            /// Its name in sysfs, in listings and in files.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Counter::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Packets sent.
    SentPackets = "sent_pkts",
    /// Packets received with a good ICRC.
    RcvdPackets = "rcvd_pkts",
    /// Payload bytes sent.
    SentBytes = "sent_bytes",
    /// Payload bytes received.
    RcvdBytes = "rcvd_bytes",
    /// Requests whose PSN lay beyond the expected one.
    OutOfSequence = "out_of_sequence",
    /// Requests received again.
    DuplicateRequest = "duplicate_request",
    /// NAKs for a sequence error received.
    PacketSeqErr = "packet_seq_err",
    /// RNR NAKs beyond the retry count.
    RnrNakRetryErr = "rnr_nak_retry_err",
    /// Times the local ACK timer ran out.
    LocalAckTimeoutErr = "local_ack_timeout_err",
    /// Requests that failed for want of retries.
    RetryExceededErr = "retry_exceeded_err",
    /// Packets sent again.
    Retransmits = "retransmits",
    /// Messages longer than the receive request.
    RespLocalLengthError = "resp_local_length_error",
    /// Receive requests completed with an error.
    RespCqeError = "resp_cqe_error",
    /// Send requests completed with an error.
    ReqCqeError = "req_cqe_error",
    /// NAKs for an invalid request received.
    ReqRemoteInvalidRequest = "req_remote_invalid_request",
    /// NAKs for a remote access error received.
    ReqRemoteAccessErrors = "req_remote_access_errors",
    /// Requests refused for their key, range or rights.
    RespRemoteAccessErrors = "resp_remote_access_errors",
    /// Requests flushed.
    CqeFlushErr = "req_cqe_flush_error",
    /// READs and atomics that a later answer showed to be lost.
    ImpliedNakSeqErr = "implied_nak_seq_err",
    /// WRITE requests received.
    RxWriteRequests = "rx_write_requests",
    /// READ requests received.
    RxReadRequests = "rx_read_requests",
    /// Atomic requests received.
    RxAtomicRequests = "rx_atomic_requests",
    /// Packets whose ICRC was wrong.
    RxIcrcEncapsulated = "rx_icrc_encapsulated",
    /// Datagrams that are no RoCEv2 packet.
    RxMalformed = "rx_malformed",
    /// Datagrams lost for want of a source port.
    TxNoFlow = "tx_no_flow",
    /// Packets for no QP, or for one of another state, P_Key, Q_Key, service or peer.
    RxDropped = "rx_dropped",
    /// Messages that found no receive request.
    OutOfBuffer = "out_of_buffer",
    /// Datagrams longer than the port's MTU, or that the system would not send.
    TxRefused = "tx_refused",
    /// Pages of on-demand regions that accesses had brought in; the names are those of
    /// `rdma statistic show mr`.
    PageFaults = "page_faults",
    /// Page faults of on-demand regions served.
    PageFaultsHandled = "page_faults_handled",
    /// Pages of on-demand regions unmapped because the program's mappings changed.
    PageInvalidations = "page_invalidations",
    /// Changes that unmapped any.
    PageInvalidationsHandled = "page_invalidations_handled",
    /// Pages of on-demand regions mapped by advice.
    PagePrefetch = "page_prefetch",
    /// Pages of on-demand regions mapped where they are, in a GPU's memory; no other driver has
    /// this, or the next.
    PagePeerMapped = "page_peer_mapped",
    /// Pages in a GPU's memory that the device does not reach there, brought to host memory.
    PagePeerFallback = "page_peer_fallback",
    /// Translations that accesses found in the device's address translation cache.
    AtsHits = "ats_hits",
    /// Translations that were not there and had to be asked for.
    AtsMisses = "ats_misses",
    /// Translations in the cache that the owner of the memory took back.
    AtsInvalidations = "ats_invalidations",
    /// Page faults that were reported to a guest's driver.
    PageFaultEvents = "page_fault_events",
    /// Page faults reported to a guest's driver that it answered, or that nobody waits for any
    /// more.
    PageFaultEventsEnded = "page_fault_events_ended",
    /// WRITEs and READs of this device's that went to a neighbour's memory without packets; no
    /// other driver has this.
    DirectRequests = "direct_requests",
    /// Packets sent that passed through a ring in shared memory instead of the wire; no other
    /// driver has this.
    RingPackets = "ring_pkts",
    /// Microseconds that the longest turn of progress so far worked, by its thread's CPU clock, a
    /// tenth of a millisecond too many at most: how long a packet may have waited for others' while
    /// they had a CPU.
    LongestTurn = "longest_turn_us",
    /// Packets received that the network marked as having met congestion.
    EcnMarkedPackets = "np_ecn_marked_roce_packets",
    /// Congestion notifications sent.
    CnpSent = "np_cnp_sent",
    /// Congestion notifications received that slowed a queue pair down.
    CnpHandled = "rp_cnp_handled",
    /// Congestion notifications received for queue pairs that control none.
    CnpIgnored = "rp_cnp_ignored",
}

/// Takes counts. One implementor counts for a device, tests count for themselves.
pub trait Count {
    /// Adds `by` to a counter.
    fn count(&self, what: Counter, by: u64);
}

/// What some queue pairs count apart, besides their device: those that were asked to
/// (`hca::Qp::count_into`).
#[derive(Debug)]
pub struct CounterSet([AtomicU64; Counter::ALL.len()]);

impl Default for CounterSet {
    fn default() -> CounterSet {
        CounterSet(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl CounterSet {
    /// The present value of one counter.
    pub fn get(&self, what: Counter) -> u64 {
        self.0[what as usize].load(Relaxed)
    }

    /// Begins at 0 again.
    pub fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Relaxed));
    }
}

impl Count for CounterSet {
    fn count(&self, what: Counter, by: u64) {
        self.0[what as usize].fetch_add(by, Relaxed);
    }
}

/// Counts in two places.
pub struct Both<'a>(pub &'a dyn Count, pub &'a dyn Count);

impl Count for Both<'_> {
    fn count(&self, what: Counter, by: u64) {
        self.0.count(what, by);
        self.1.count(what, by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_places_follow_the_order() {
        let names: BTreeSet<&str> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        assert!(Counter::ALL.iter().enumerate().all(|(i, counter)| *counter as usize == i));
    }

    #[test]
    fn a_set_counts_besides_the_device() {
        let (device, set) = (CounterSet::default(), CounterSet::default());
        Both(&device, &set).count(Counter::SentPackets, 3);
        device.count(Counter::SentPackets, 1);
        assert_eq!((device.get(Counter::SentPackets), set.get(Counter::SentPackets)), (4, 3));
        set.clear();
        assert_eq!((device.get(Counter::SentPackets), set.get(Counter::SentPackets)), (4, 0));
    }
}
