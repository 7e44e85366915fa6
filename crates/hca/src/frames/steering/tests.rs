use super::*;
use crate::frames::flow_counters::{FlowCount, FlowCounters};
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
