//! A sample: every device's counters at one moment.

use crate::console::failure::Outcome;
use crate::watch::observer::{self, Seen, Unread};
use crate::watch::ps;
use hca::Counter;
use hca::directory::{QpEntry, Reader};
use pcie::PublishedRoute;
use registry::Member;
use std::time::{Instant, SystemTime};

/// What all devices had counted at a moment.
pub struct Sample {
    /// The time by a clock that never goes back, for differences.
    pub at: Instant,
    /// The time of day, for people.
    pub time: SystemTime,
    /// The devices that are open.
    pub devices: Vec<Device>,
    /// The processes of which that cannot be read.
    pub unread: Vec<Unread>,
}

/// What one device had counted.
pub struct Device {
    /// Who has it open.
    pub member: Member,
    /// The command line of that process.
    pub command: String,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Packets sent and received.
    pub packets: u64,
    /// Packets sent again.
    pub retransmits: u64,
    pub qps: Vec<QpEntry>,
    pub routes: Vec<PublishedRoute>,
}

impl Sample {
    /// Reads the directory of every member of the registry.
    pub fn take() -> Outcome<Sample> {
        let (at, time) = (Instant::now(), SystemTime::now());
        let (mut devices, mut unread) = (Vec::new(), Vec::new());
        for seen in observer::members()? {
            match seen {
                Ok(Seen { member, reader, .. }) => devices.push(Device::read(member, &reader)),
                Err(one) => unread.push(one),
            }
        }
        Ok(Sample { at, time, devices, unread })
    }
}

impl Device {
    fn read(member: Member, reader: &Reader) -> Device {
        let counter = |what| reader.counter(what);
        Device {
            command: ps::command(&member),
            member,
            sent_bytes: counter(Counter::SentBytes),
            received_bytes: counter(Counter::RcvdBytes),
            packets: counter(Counter::SentPackets).saturating_add(counter(Counter::RcvdPackets)),
            retransmits: counter(Counter::Retransmits),
            qps: reader.qps(),
            routes: reader.routes(),
        }
    }

    /// Whether both are one opening of a device.
    pub fn is(&self, other: &Device) -> bool {
        let key =
            |device: &Device| (device.member.slot, device.member.pid, device.member.joined_at);
        key(self) == key(other)
    }
}
