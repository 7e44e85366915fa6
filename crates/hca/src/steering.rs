//! Flow steering: which queue pairs take a frame (ibv_create_flow(3)). Values in, queue pair numbers out; no I/O.
//!
//! A frame goes to the matching rule of the best priority: among normal rules the lowest number, then the default rules.
//! Of equal ones the oldest takes a frame to one station; a frame to a group is copied to them all. A rule that does not trap
//! lets the frame go on. Every rule that a frame meets on its way counts it. Sniffers get copies of everything. RoCE has been taken out by then: the device's own traffic is for
//! sniffers only.

use crate::flow_counters::BoundCounters;
use smallvec::SmallVec;
use transport::{Error, Result};
use wire::frame::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Frame, Ip, Mac, PROTOCOL_TCP, PROTOCOL_UDP, Ports, is_multicast,
};

/// Layers that a rule may name, as many as the kernel takes.
pub const MAX_SPECS: usize = 10;
/// Rules of a device.
pub const MAX_FLOWS: usize = 1 << 16;

/// Kind of a rule (`enum ibv_flow_attr_type`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlowKind {
    /// By its layers.
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
    /// Source, destination, protocol, type of service, time to live, flags (2 = do not fragment, 4 = more fragments).
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

/// What a rule asks of one layer: that the header is there, and that under the mask its fields have this value.
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
    /// [`Error::Invalid`] for more than [`MAX_KEY`] bytes, or a value and a mask of different lengths.
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
    /// Among normal rules; the lowest number goes first.
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
    /// [`Error::Invalid`] for too many layers, layers of a default rule, a default rule that does not trap, a sniffer that
    /// drops, or an Ethernet type that contradicts the IP layer.
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
    /// Those to its own address.
    Own,
    /// Those to any group as well.
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
mod tests {
    use super::*;
    use crate::flow_counters::{FlowCount, FlowCounters};
    use std::sync::Arc;

    const GROUP: Mac = [1, 0, 0x5e, 1, 2, 3];
    const STATION: Mac = [2, 0, 0, 0, 0, 1];
    const OWN: Mac = [2, 0, 0, 0, 0, 9];

    fn attr(kind: FlowKind, priority: u16, specs: &[LayerSpec]) -> FlowAttr {
        FlowAttr { kind, priority, fate: Fate::Trap, specs: specs.to_vec() }
    }

    fn eth(dst: Mac) -> LayerSpec {
        LayerSpec::new(Layer::Eth, &dst, &[0xff; 6]).unwrap()
    }

    fn typed(ether_type: u16) -> LayerSpec {
        let mut value = [0; 14];
        let mut mask = [0; 14];
        value[12..].copy_from_slice(&ether_type.to_be_bytes());
        mask[12..].fill(0xff);
        LayerSpec::new(Layer::Eth, &value, &mask).unwrap()
    }

    fn udp_port(port: u16) -> LayerSpec {
        LayerSpec::new(Layer::Udp, &port.to_be_bytes(), &[0xff; 2]).unwrap()
    }

    /// A UDP datagram from 192.0.2.1:1000 to 192.0.2.2:`port`.
    fn udp(dst: Mac, port: u16) -> Frame {
        let mut bytes = [&dst[..], &STATION, &[8, 0, 0x45, 0x10, 0, 28, 0, 0, 0x40, 0]].concat();
        bytes.extend([64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 3, 0xe8]);
        bytes.extend(port.to_be_bytes());
        bytes.extend([0, 8, 0, 0]);
        Frame::parse(&bytes).unwrap()
    }

    fn table(rules: &[(u32, FlowAttr)]) -> Table {
        let mut table = Table::default();
        for (qpn, attr) in rules {
            table.add(*qpn, attr.clone(), None).unwrap();
        }
        table
    }

    #[test]
    fn every_field_is_compared_under_its_mask() {
        let frame = udp(GROUP, 53);
        let ipv4 = [192, 0, 2, 1, 192, 0, 2, 2, 17, 0x10, 64, 2];
        let ports = [0, 53, 3, 0xe8];
        let mut ethernet = [&GROUP[..], &STATION, &[8, 0, 0, 0]].concat();
        for (layer, key) in [
            (Layer::Eth, std::mem::take(&mut ethernet)),
            (Layer::Ipv4, ipv4.to_vec()),
            (Layer::Udp, ports.to_vec()),
        ] {
            let mask = vec![0xff; key.len()];
            assert!(LayerSpec::new(layer, &key, &mask).unwrap().matches(&frame), "{layer:?}");
            for at in 0..key.len() {
                let (mut other, mut open) = (key.clone(), mask.clone());
                other[at] ^= 0x40;
                assert!(!LayerSpec::new(layer, &other, &mask).unwrap().matches(&frame), "{at}");
                open[at] = 0xbf;
                assert!(LayerSpec::new(layer, &other, &open).unwrap().matches(&frame), "{at}");
            }
        }
        for absent in [Layer::Ipv6, Layer::Tcp] {
            assert!(!LayerSpec::new(absent, &[], &[]).unwrap().matches(&frame), "{absent:?}");
        }
        assert!(LayerSpec::new(Layer::Eth, &[0; 41], &[0; 41]).is_err());
        assert!(LayerSpec::new(Layer::Eth, &[0; 4], &[0; 3]).is_err());
    }

    #[test]
    fn the_best_priority_takes_a_frame_to_one_station() {
        let table = table(&[
            (1, attr(FlowKind::AllDefault, 0, &[])),
            (2, attr(FlowKind::Normal, 7, &[eth(STATION)])),
            (3, attr(FlowKind::Normal, 3, &[eth(STATION), udp_port(53)])),
            (4, attr(FlowKind::Normal, 7, &[eth(STATION)])),
        ]);
        assert_eq!(table.takers(&udp(STATION, 53), 60).as_slice(), [3]);
        assert_eq!(table.takers(&udp(STATION, 54), 60).as_slice(), [2], "the oldest of equals");
        assert_eq!(table.takers(&udp(OWN, 53), 60).as_slice(), [1]);
    }

    #[test]
    fn a_frame_to_a_group_is_copied_to_equals() {
        let table = table(&[
            (1, attr(FlowKind::Normal, 1, &[eth(GROUP)])),
            (2, attr(FlowKind::Normal, 1, &[typed(0x800)])),
            (2, attr(FlowKind::Normal, 1, &[eth(GROUP)])),
            (3, attr(FlowKind::Normal, 2, &[])),
            (4, attr(FlowKind::McDefault, 0, &[])),
            (5, attr(FlowKind::McDefault, 9, &[])),
            (6, attr(FlowKind::AllDefault, 0, &[])),
        ]);
        assert_eq!(table.takers(&udp(GROUP, 1), 60).as_slice(), [1, 2], "each once");
        let mut defaults = table;
        (1..=3).for_each(|qpn| defaults.forget(qpn));
        assert_eq!(defaults.takers(&udp(GROUP, 1), 60).as_slice(), [4, 5]);
        assert_eq!(defaults.takers(&udp(STATION, 1), 60).as_slice(), [6]);
    }

    #[test]
    fn what_is_not_trapped_goes_on() {
        let mut first = attr(FlowKind::Normal, 1, &[]);
        first.fate = Fate::GoOn;
        let table = table(&[
            (1, first),
            (2, attr(FlowKind::Normal, 2, &[])),
            (3, attr(FlowKind::Normal, 3, &[])),
        ]);
        assert_eq!(table.takers(&udp(STATION, 1), 60).as_slice(), [1, 2]);
    }

    #[test]
    fn what_is_dropped_nobody_gets_but_sniffers() {
        let mut dropping = attr(FlowKind::Normal, 1, &[udp_port(53)]);
        dropping.fate = Fate::Drop;
        let table = table(&[
            (1, dropping),
            (2, attr(FlowKind::Normal, 1, &[])),
            (3, attr(FlowKind::Sniffer, 0, &[])),
        ]);
        assert_eq!(table.takers(&udp(STATION, 53), 60).as_slice(), [3]);
        assert_eq!(table.takers(&udp(GROUP, 53), 60).as_slice(), [3]);
        assert_eq!(table.takers(&udp(STATION, 54), 60).as_slice(), [2, 3]);
    }

    #[test]
    fn sniffers_get_copies_and_roce_is_for_them_only() {
        let table = table(&[
            (1, attr(FlowKind::Sniffer, 0, &[])),
            (2, attr(FlowKind::AllDefault, 0, &[])),
            (3, attr(FlowKind::Sniffer, 0, &[])),
        ]);
        assert_eq!(table.takers(&udp(STATION, 1), 60).as_slice(), [2, 1, 3]);
        assert_eq!(table.takers(&udp(STATION, wire::ROCE_PORT), 60).as_slice(), [1, 3]);
    }

    #[test]
    fn a_rule_counts_what_it_meets_and_only_that() {
        let mut table = Table::default();
        let mut first = attr(FlowKind::Normal, 1, &[udp_port(53)]);
        first.fate = Fate::GoOn;
        let counted: Vec<_> = [
            first,
            attr(FlowKind::Normal, 2, &[eth(STATION)]),
            attr(FlowKind::AllDefault, 0, &[]),
            attr(FlowKind::Sniffer, 0, &[]),
        ]
        .into_iter()
        .map(|attr| {
            let counters = FlowCounters::new();
            counters.attach(0, FlowCount::Packets).unwrap();
            counters.attach(1, FlowCount::Bytes).unwrap();
            table.add(1, attr, Some(counters.bind().unwrap())).unwrap();
            counters
        })
        .collect();
        for (port, bytes) in [(53, 100), (54, 20)] {
            assert_eq!(table.takers(&udp(STATION, port), bytes).as_slice(), [1, 1]);
        }
        assert_eq!(table.sniffers(3).collect::<Vec<_>>(), [1]);
        let values = |counters: &Arc<FlowCounters>| {
            let mut values = [0; 2];
            counters.read(&mut values).unwrap();
            values
        };
        let values: Vec<_> = counted.iter().map(values).collect();
        assert_eq!(values, [[1, 100], [2, 120], [0, 0], [3, 123]]);
    }

    #[test]
    fn no_rule_takes_nothing_and_removed_ones_neither() {
        let mut table = Table::default();
        let id = table.add(1, attr(FlowKind::Normal, 0, &[]), None).unwrap();
        assert!(table.has(1) && !table.has(2));
        table.remove(id + 1);
        assert_eq!(table.takers(&udp(STATION, 1), 60).as_slice(), [1]);
        table.remove(id);
        assert!(table.takers(&udp(STATION, 1), 60).is_empty() && table.is_empty());
    }

    #[test]
    fn the_interface_opens_as_far_as_the_rules_ask() {
        let reach = |kind, specs: &[LayerSpec]| table(&[(1, attr(kind, 0, specs))]).reach(OWN);
        assert_eq!(reach(FlowKind::Normal, &[eth(OWN)]), Reach::Own);
        assert_eq!(reach(FlowKind::Normal, &[typed(0x800), eth(GROUP)]), Reach::Groups);
        assert_eq!(reach(FlowKind::McDefault, &[]), Reach::Groups);
        assert_eq!(reach(FlowKind::Normal, &[eth(STATION)]), Reach::All);
        assert_eq!(reach(FlowKind::Normal, &[udp_port(1)]), Reach::All);
        assert_eq!(reach(FlowKind::Sniffer, &[]), Reach::All);
        assert_eq!(Table::default().reach(OWN), Reach::Own);
    }

    #[test]
    fn rules_that_cannot_be_are_refused() {
        let ipv6 = LayerSpec::new(Layer::Ipv6, &[], &[]).unwrap();
        let mut open_default = attr(FlowKind::AllDefault, 0, &[]);
        open_default.fate = Fate::GoOn;
        let mut blind_sniffer = attr(FlowKind::Sniffer, 0, &[]);
        blind_sniffer.fate = Fate::Drop;
        for wrong in [
            attr(FlowKind::Normal, 0, &[typed(0x800), ipv6]),
            attr(FlowKind::Normal, 0, &[ipv6; MAX_SPECS + 1]),
            attr(FlowKind::Sniffer, 0, &[ipv6]),
            open_default,
            blind_sniffer,
        ] {
            assert!(matches!(Table::default().add(1, wrong.clone(), None), Err(Error::Invalid(_))));
        }
        attr(FlowKind::Normal, 0, &[typed(0x86dd), ipv6]).check().unwrap();
    }
}
