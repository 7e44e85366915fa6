//! Rates: what changed between two samples, by the second.

use super::sample::{Device, Sample};
use hca::directory::QpEntry;
use pcie::{LinkId, PublishedRoute};
use std::collections::BTreeMap;

/// What a device moves, in bytes, packets, and packets sent again by the second.
pub struct DeviceRates<'a> {
    /// The device.
    pub device: &'a Device,
    /// Payload sent.
    pub sent: f64,
    /// Payload received.
    pub received: f64,
    /// Packets both ways.
    pub packets: f64,
    /// Packets sent again.
    pub retransmits: f64,
    /// The device's queue pairs, the busiest first.
    pub qps: Vec<QpRates<'a>>,
    /// Its routes that bytes took by now, the busiest first.
    pub routes: Vec<RouteRates<'a>>,
    /// The links of those routes, the busiest first.
    pub links: Vec<LinkRate>,
}

/// What a queue pair moves, in bytes by the second.
pub struct QpRates<'a> {
    /// The queue pair.
    pub qp: &'a QpEntry,
    /// Payload sent.
    pub sent: f64,
    /// Payload received.
    pub received: f64,
}

/// What takes a route, in bytes by the second.
pub struct RouteRates<'a> {
    /// The route.
    pub route: &'a PublishedRoute,
    /// Read from the target.
    pub read: f64,
    /// Written to it.
    pub written: f64,
}

/// What crosses a link, in bytes by the second.
pub struct LinkRate {
    /// The link.
    pub link: LinkId,
    /// Both directions together.
    pub bytes: f64,
    /// What it carries in one direction at most, if known.
    pub limit: Option<u64>,
}

/// The rates of every device of `now`; of one that was not there before, since it was opened at
/// nought.
pub fn between<'a>(before: &Sample, now: &'a Sample) -> Vec<DeviceRates<'a>> {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
    let device = |device: &'a Device| {
        let earlier = before.devices.iter().find(|earlier| earlier.is(device));
        rates(earlier, device, seconds)
    };
    now.devices.iter().map(device).collect()
}

fn rates<'a>(earlier: Option<&Device>, device: &'a Device, seconds: f64) -> DeviceRates<'a> {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let since = |of: fn(&Device) -> u64| rate(of(device), earlier.map_or(0, of));
    let qp = |qp: &'a QpEntry| {
        let earlier = earlier.into_iter().flat_map(|d| &d.qps).find(|e| e.number == qp.number);
        let (sent, received) = earlier.map_or((0, 0), |e| (e.tx_bytes, e.rx_bytes));
        QpRates { qp, sent: rate(qp.tx_bytes, sent), received: rate(qp.rx_bytes, received) }
    };
    let route = |route: &'a PublishedRoute| {
        let which = |of: &PublishedRoute| (of.function, of.target, of.translated);
        let same = |e: &&PublishedRoute| which(e) == which(route);
        let earlier = earlier.into_iter().flat_map(|d| &d.routes).find(same);
        let (read, written) = earlier.map_or((0, 0), |e| (e.read_bytes, e.written_bytes));
        RouteRates {
            route,
            read: rate(route.read_bytes, read),
            written: rate(route.written_bytes, written),
        }
    };
    let mut qps: Vec<_> = device.qps.iter().map(qp).collect();
    qps.sort_by(|a, b| (b.sent + b.received).total_cmp(&(a.sent + a.received)));
    let taken = |route: &&PublishedRoute| route.read_bytes > 0 || route.written_bytes > 0;
    let mut routes: Vec<_> = device.routes.iter().filter(taken).map(route).collect();
    routes.sort_by(|a, b| (b.read + b.written).total_cmp(&(a.read + a.written)));
    DeviceRates {
        device,
        sent: since(|d| d.sent_bytes),
        received: since(|d| d.received_bytes),
        packets: since(|d| d.packets),
        retransmits: since(|d| d.retransmits),
        links: links(&routes),
        qps,
        routes,
    }
}

fn links(routes: &[RouteRates<'_>]) -> Vec<LinkRate> {
    let mut links: BTreeMap<LinkId, LinkRate> = BTreeMap::new();
    for taken in routes {
        for &(link, limit) in &taken.route.hops {
            let rate = links.entry(link).or_insert(LinkRate { link, bytes: 0.0, limit });
            rate.bytes += taken.read + taken.written;
        }
    }
    let mut links: Vec<_> = links.into_values().collect();
    links.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::{MapType, Target};
    use registry::Member;
    use std::time::{Duration, Instant, SystemTime};

    fn device(sent_bytes: u64, read_bytes: u64) -> Device {
        Device {
            member: Member {
                slot: 3,
                pid: 7,
                uid: 0,
                comm: "x".into(),
                device: "peerdma0".into(),
                guid: 1,
                joined_at: SystemTime::UNIX_EPOCH,
                leader: false,
            },
            command: "x".into(),
            sent_bytes,
            received_bytes: 0,
            packets: 10,
            retransmits: 0,
            qps: vec![QpEntry {
                number: 5,
                qp_type: 2,
                state: 3,
                pd: 1,
                dest_qpn: 6,
                tx_bytes: sent_bytes,
                rx_bytes: 0,
                goes_directly: false,
            }],
            routes: vec![PublishedRoute {
                function: "0000:18:00.0".parse().unwrap(),
                target: Target::HOST,
                map_type: MapType::None,
                translated: false,
                // up through a port and down again: the same link twice
                hops: vec![(LinkId::RootComplex(0), None), (LinkId::RootComplex(0), None)],
                read_bytes,
                written_bytes: 0,
            }],
        }
    }

    fn sample(at: Instant, device: Device) -> Sample {
        let devices = vec![device];
        Sample { at, time: SystemTime::UNIX_EPOCH, devices, unread: Vec::new() }
    }

    #[test]
    fn rates_are_differences_by_the_second() {
        let start = Instant::now();
        let before = sample(start, device(100, 40));
        let now = sample(start + Duration::from_secs(2), device(500, 140));
        let [rates] = between(&before, &now).try_into().ok().unwrap();
        assert_eq!((rates.sent, rates.qps[0].sent, rates.packets), (200.0, 200.0, 0.0));
        assert_eq!(rates.routes[0].read, 50.0);
        assert_eq!(rates.links[0].bytes, 100.0, "twice over the same link");
    }

    #[test]
    fn routes_of_one_pair_are_told_apart() {
        let both = |read_bytes| {
            let mut device = device(0, 100);
            let direct =
                PublishedRoute { translated: true, read_bytes, ..device.routes[0].clone() };
            device.routes.push(direct);
            device
        };
        let begin = Instant::now();
        let before = sample(begin, both(1000));
        let now = sample(begin + Duration::from_secs(1), both(1030));
        let rates = between(&before, &now);
        let reads: Vec<f64> = rates[0].routes.iter().map(|taken| taken.read).collect();
        assert_eq!(reads, [30.0, 0.0]);
    }

    #[test]
    fn a_device_that_is_new_or_opened_again_begins_at_nought() {
        let start = Instant::now();
        let mut other = device(1_000_000, 0);
        other.member.pid = 8;
        let now = sample(start + Duration::from_secs(1), device(500, 0));
        let rates = between(&sample(start, other), &now);
        assert_eq!(rates[0].sent, 500.0);
        assert!(rates[0].routes.is_empty(), "nothing took it");
    }
}
