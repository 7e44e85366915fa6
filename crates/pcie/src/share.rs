//! What several flows at once would get: max-min fair shares of the links they cross.

use crate::{LinkId, Machine};
use std::collections::BTreeMap;

/// Bytes going one way over a list of hops, as [`crate::Route::links`] gives them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The hops. One that is crossed twice counts twice.
    pub links: Vec<LinkId>,
}

/// Bytes per second of each flow when all run at once: nobody can have more without taking from one
/// who has no more. `None` for a flow that crosses no link whose rate is known.
///
/// Links are full duplex, so flows in opposite directions do not share; hand over those of one
/// direction.
pub fn share(machine: &Machine, flows: &[Flow]) -> Vec<Option<u64>> {
    let mut links: BTreeMap<LinkId, Shared> = BTreeMap::new();
    for (index, flow) in flows.iter().enumerate() {
        for &link in &flow.links {
            if let Some(rate) = machine.link(link) {
                let shared = links
                    .entry(link)
                    .or_insert_with(|| Shared { left: rate.bytes_per_second(), users: Vec::new() });
                shared.users.push(index);
            }
        }
    }
    let mut shares = vec![None; flows.len()];
    // The link with the least for each of its users settles them; what they take leaves the other
    // links.
    while let Some((&link, each)) = links
        .iter()
        .map(|(link, shared)| (link, shared.left / shared.users.len() as u64))
        .min_by_key(|&(_, each)| each)
    {
        let mut settled = links.remove(&link).map_or_else(Vec::new, |shared| shared.users);
        settled.sort_unstable();
        settled.dedup();
        for &index in &settled {
            shares[index] = Some(each);
        }
        for shared in links.values_mut() {
            let before = shared.users.len();
            shared.users.retain(|user| settled.binary_search(user).is_err());
            let gone = (before - shared.users.len()) as u64;
            shared.left = shared.left.saturating_sub(gone * each);
        }
        links.retain(|_, shared| !shared.users.is_empty());
    }
    shares
}

/// A link and the flows on it that are not settled.
struct Shared {
    left: u64,
    users: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Below, Function, HostBridge, Kind, Link};

    /// Root ports 01 to 03 with links of 10, 4 and 6 GB/s.
    fn machine() -> Machine {
        let port = |device: u8, gigabytes: u64| {
            let address = format!("00:{device:02x}.0").parse().unwrap();
            let rate = Link::Rate { bytes_per_second: gigabytes * 1_000_000_000 };
            Function { link: Some(rate), ..Function::new(address, Kind::RootPort, Below::Host(0)) }
        };
        let host = HostBridge {
            name: "host".into(),
            shown: crate::Shown::Bridges,
            numa_node: None,
            root_device: None,
        };
        Machine::new(None, vec![host], vec![port(1, 10), port(2, 4), port(3, 6)]).unwrap()
    }

    fn flow(ports: &[u8]) -> Flow {
        let below = |port: &u8| LinkId::Below(format!("00:{port:02x}.0").parse().unwrap());
        Flow { links: ports.iter().map(below).chain([LinkId::RootComplex(0)]).collect() }
    }

    fn gigabytes(flows: &[Flow]) -> Vec<Option<u64>> {
        share(&machine(), flows).into_iter().map(|s| s.map(|s| s / 1_000_000_000)).collect()
    }

    #[test]
    fn the_narrowest_settles_first_and_the_rest_goes_to_the_others() {
        assert_eq!(gigabytes(&[flow(&[1])]), [Some(10)]);
        assert_eq!(gigabytes(&[flow(&[1]), flow(&[1])]), [Some(5), Some(5)]);
        // the flow through port 2 takes 4 of port 1, what is left is the other's
        assert_eq!(gigabytes(&[flow(&[1, 2]), flow(&[1])]), [Some(4), Some(6)]);
        assert_eq!(
            gigabytes(&[flow(&[1, 2]), flow(&[1, 3]), flow(&[3])]),
            [Some(4), Some(3), Some(3)]
        );
    }

    #[test]
    fn what_is_not_known_is_not_shared() {
        assert_eq!(gigabytes(&[flow(&[]), flow(&[1])]), [None, Some(10)]);
        assert_eq!(gigabytes(&[]), []);
    }

    #[test]
    fn a_link_crossed_twice_is_shared_with_oneself() {
        assert_eq!(gigabytes(&[flow(&[2, 2])]), [Some(2)]);
    }
}
