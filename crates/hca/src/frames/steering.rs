//! Flow steering: which queue pairs take a frame (ibv_create_flow(3)). Values in, queue pair
//! numbers out; no I/O.
//!
//! A frame goes to the matching rule of the best priority: among normal rules the lowest number,
//! then the default rules. Of equal ones the oldest takes a frame to one station; a frame to a
//! group is copied to them all. A rule that does not trap lets the frame go on. Every rule that a
//! frame meets on its way counts it. Sniffers get copies of everything. RoCE has been taken out by
//! then: the device's own traffic is for sniffers only.

use crate::frames::flow_counters::BoundCounters;
use smallvec::SmallVec;
use transport::{Error, Result};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Mac, is_multicast};
use wire::frame::{Frame, Ports};
use wire::ip::{Ip, PROTOCOL_TCP, PROTOCOL_UDP};

/// Layers that a rule may name, as many as the kernel takes.
pub const MAX_SPECS: usize = 10;
/// Rules of a device.
pub const MAX_FLOWS: usize = 1 << 16;

/// Kind of a rule (`enum ibv_flow_attr_type`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlowKind {
    /// Frames whose layers have what the rule asks for.
    Normal,
    /// Frames to groups that no other rule takes.
    McDefault,
    /// Frames that no other rule takes.
    AllDefault,
    /// Copies of all frames, sent ones too.
    Sniffer,
}

/// A header and how its fields are laid out in a [`LayerSpec`], in network order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Destination, source, type (behind the tag), tag control information.
    Eth,
    /// Source, destination, protocol, type of service, time to live, flags (2 = do not fragment, 4
    /// = more fragments).
    Ipv4,
    /// Source, destination, flow label in 32 bits, next header, traffic class, hop limit.
    Ipv6,
    /// Destination port, source port.
    Tcp,
    /// Destination port, source port.
    Udp,
}

/// Fields of the longest layer.
pub const MAX_KEY: usize = 40;

type Key = [u8; MAX_KEY];

/// What a rule asks of one layer: that the header is there, and that under the mask its fields have
/// this value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerSpec {
    layer: Layer,
    value: Key,
    mask: Key,
}

impl LayerSpec {
    /// Fields that are left out at the end are not looked at.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`MAX_KEY`] bytes, or a value and a mask of different
    /// lengths.
    pub fn new(layer: Layer, value: &[u8], mask: &[u8]) -> Result<LayerSpec> {
        if value.len() != mask.len() || value.len() > MAX_KEY {
            return Err(Error::Invalid("value and mask of a flow layer differ in length"));
        }
        let mut spec = LayerSpec { layer, value: [0; MAX_KEY], mask: [0; MAX_KEY] };
        spec.value[..value.len()].copy_from_slice(value);
        spec.mask[..mask.len()].copy_from_slice(mask);
        Ok(spec)
    }

    fn matches(&self, frame: &Frame) -> bool {
        let Some(key) = key(self.layer, frame) else { return false };
        key.iter()
            .zip(&self.value)
            .zip(&self.mask)
            .all(|((field, value), mask)| (field ^ value) & mask == 0)
    }

    /// The destination that it asks for in every bit.
    fn station(&self) -> Option<Mac> {
        let whole = self.layer == Layer::Eth && self.mask.first_chunk() == Some(&[0xff; 6]);
        if whole { self.value.first_chunk().copied() } else { None }
    }

    /// The type that it asks for in every bit.
    fn ether_type(&self) -> Option<u16> {
        let whole = self.layer == Layer::Eth && self.mask[12..14] == [0xff; 2];
        whole.then(|| u16::from_be_bytes([self.value[12], self.value[13]]))
    }
}

/// The fields of a layer of a frame, if it has that layer.
fn key(layer: Layer, frame: &Frame) -> Option<Key> {
    let mut writer = Writer { key: [0; MAX_KEY], at: 0 };
    match (layer, frame.ip) {
        (Layer::Eth, _) => writer
            .put(&frame.dst)
            .put(&frame.src)
            .put(&frame.ether_type.to_be_bytes())
            .put(&frame.vlan.unwrap_or(0).to_be_bytes()),
        (Layer::Ipv4, Some(Ip::V4(ip))) => {
            let flags = u8::from(ip.dont_fragment) << 1 | u8::from(ip.more_fragments) << 2;
            writer.put(&ip.src.octets()).put(&ip.dst.octets()).put(&[
                ip.protocol,
                ip.tos,
                ip.ttl,
                flags,
            ])
        }
        (Layer::Ipv6, Some(Ip::V6(ip))) => writer
            .put(&ip.src.octets())
            .put(&ip.dst.octets())
            .put(&ip.flow_label.to_be_bytes())
            .put(&[ip.next_header, ip.traffic_class, ip.hop_limit]),
        (Layer::Tcp, Some(ip)) if ip.protocol() == PROTOCOL_TCP => writer.ports(frame.ports?),
        (Layer::Udp, Some(ip)) if ip.protocol() == PROTOCOL_UDP => writer.ports(frame.ports?),
        _ => return None,
    };
    Some(writer.key)
}

struct Writer {
    key: Key,
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) -> &mut Writer {
        let end = self.at + bytes.len();
        self.key[self.at..end].copy_from_slice(bytes);
        self.at = end;
        self
    }

    fn ports(&mut self, ports: Ports) -> &mut Writer {
        self.put(&ports.dst.to_be_bytes()).put(&ports.src.to_be_bytes())
    }
}

/// What becomes of a frame that a rule asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// The queue pair gets it and later rules do not.
    #[default]
    Trap,
    /// Later rules get it as well.
    GoOn,
    /// No queue pair gets it, but sniffers.
    Drop,
}

/// A rule (`struct ibv_flow_attr`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowAttr {
    /// Kind.
    pub kind: FlowKind,
    /// Place among the normal rules: the lowest number goes first.
    pub priority: u16,
    /// What becomes of the frame.
    pub fate: Fate,
    /// What a normal rule asks of the frame; nothing asks for nothing.
    pub specs: Vec<LayerSpec>,
}

impl FlowAttr {
    /// Whether the rule can be.
    ///
    /// # Errors
    /// [`Error::Invalid`] for too many layers, layers of a default rule, a default rule that does
    /// not trap, a sniffer that drops, or an Ethernet type that contradicts the IP layer.
    pub fn check(&self) -> Result<()> {
        if self.specs.len() > MAX_SPECS {
            return Err(Error::Invalid("a flow rule has 10 layers at most"));
        }
        let normal = self.kind == FlowKind::Normal;
        if !normal && !self.specs.is_empty() {
            return Err(Error::Invalid("only a normal flow rule names layers"));
        }
        if !normal && self.fate == Fate::Drop {
            return Err(Error::Invalid("only a normal flow rule drops"));
        }
        let default = matches!(self.kind, FlowKind::AllDefault | FlowKind::McDefault);
        if default && self.fate == Fate::GoOn {
            return Err(Error::Invalid("nothing comes after a default flow rule"));
        }
        let asked = self.specs.iter().find_map(LayerSpec::ether_type);
        let contradicts = |spec: &LayerSpec| match (spec.layer, asked) {
            (Layer::Ipv4, Some(ether_type)) => ether_type != ETHERTYPE_IPV4,
            (Layer::Ipv6, Some(ether_type)) => ether_type != ETHERTYPE_IPV6,
            _ => false,
        };
        if self.specs.iter().any(contradicts) {
            return Err(Error::Invalid("the Ethernet type of the flow rule is not that of its IP"));
        }
        Ok(())
    }

    fn matches(&self, frame: &Frame) -> bool {
        match self.kind {
            FlowKind::Normal => self.specs.iter().all(|spec| spec.matches(frame)),
            FlowKind::McDefault => frame.is_multicast(),
            FlowKind::AllDefault | FlowKind::Sniffer => true,
        }
    }

    /// What the interface must let in for the rule besides frames to `own`.
    fn reach(&self, own: Mac) -> Reach {
        let station = self.specs.iter().find_map(LayerSpec::station);
        match (self.kind, station) {
            (FlowKind::McDefault, _) => Reach::Groups,
            (FlowKind::Normal, Some(station)) if station == own => Reach::Own,
            (FlowKind::Normal, Some(station)) if is_multicast(station) => Reach::Groups,
            _ => Reach::All,
        }
    }

    fn rank(&self) -> (FlowKind, u16) {
        // Defaults have no order among themselves.
        (self.kind, if self.kind == FlowKind::Normal { self.priority } else { 0 })
    }
}

/// Frames that the rules need from an interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// Frames to its own address.
    Own,
    /// Frames to any group as well.
    Groups,
    /// All that pass by.
    All,
}

/// Queue pairs that take a frame.
pub type Takers = SmallVec<[u32; 2]>;

struct Rule {
    id: u64,
    attr: FlowAttr,
    qpn: u32,
    counters: Option<BoundCounters>,
}

impl Rule {
    fn count(&self, bytes: u64) {
        if let Some(counters) = &self.counters {
            counters.count(bytes);
        }
    }
}

/// The rules of a device, best first.
#[derive(Default)]
pub struct Table {
    rules: Vec<Rule>,
    last_id: u64,
}

impl Table {
    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds a rule for queue pair `qpn`, which counts what it meets, and answers with its identity.
    ///
    /// # Errors
    /// [`Error::Invalid`] as [`FlowAttr::check`] says, [`Error::NoMemory`] at [`MAX_FLOWS`].
    pub fn add(
        &mut self,
        qpn: u32,
        attr: FlowAttr,
        counters: Option<BoundCounters>,
    ) -> Result<u64> {
        attr.check()?;
        if self.rules.len() >= MAX_FLOWS {
            return Err(Error::NoMemory("the device has its most flow rules"));
        }
        self.last_id += 1;
        let at = self.rules.partition_point(|rule| rule.attr.rank() <= attr.rank());
        self.rules.insert(at, Rule { id: self.last_id, attr, qpn, counters });
        Ok(self.last_id)
    }

    /// Takes the rule with this identity out.
    pub fn remove(&mut self, id: u64) {
        self.rules.retain(|rule| rule.id != id);
    }

    /// Takes out all rules of a queue pair.
    pub fn forget(&mut self, qpn: u32) {
        self.rules.retain(|rule| rule.qpn != qpn);
    }

    /// Whether the queue pair has a rule.
    pub fn has(&self, qpn: u32) -> bool {
        self.rules.iter().any(|rule| rule.qpn == qpn)
    }

    /// What the rules need from an interface whose address is `own`.
    pub fn reach(&self, own: Mac) -> Reach {
        self.rules.iter().map(|rule| rule.attr.reach(own)).max().unwrap_or(Reach::Own)
    }

    /// Who takes a frame of so many bytes that came in.
    pub fn takers(&self, frame: &Frame, bytes: u64) -> Takers {
        let mut takers = Takers::new();
        let mut trapped_at = None;
        let rules = self.rules.iter().filter(|rule| rule.attr.kind != FlowKind::Sniffer);
        for rule in rules.take(if frame.is_roce() { 0 } else { usize::MAX }) {
            if trapped_at.is_some_and(|rank| rank != rule.attr.rank()) {
                break;
            }
            if !rule.attr.matches(frame) {
                continue;
            }
            rule.count(bytes);
            if rule.attr.fate == Fate::Drop {
                break;
            }
            if !takers.contains(&rule.qpn) {
                takers.push(rule.qpn);
            }
            if rule.attr.fate == Fate::Trap {
                trapped_at = Some(rule.attr.rank());
                if !frame.is_multicast() {
                    break;
                }
            }
        }
        takers.extend(self.sniffers(bytes));
        takers
    }

    /// Who takes every frame, also those that leave and do not come back.
    pub fn sniffers(&self, bytes: u64) -> impl Iterator<Item = u32> {
        let sniffers = self.rules.iter().filter(|rule| rule.attr.kind == FlowKind::Sniffer);
        sniffers.inspect(move |rule| rule.count(bytes)).map(|rule| rule.qpn)
    }
}

#[cfg(test)]
mod tests;
