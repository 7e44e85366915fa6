//! The ports of a software HCA: what they show, before a program runs and while one does. They
//! speak RoCE v2 over four lanes of EDR, and have no subnet manager.

use crate::description::{Counter, Gid, LaneSpeed, LinkLayer, PhysState, Port, PortState, Rate};

/// GID type as the kernel spells it.
const ROCE_V2: &str = "RoCE v2";
/// PORT_CM_SUP and PORT_IP_BASED_GIDS, which RoCE ports show.
const PORT_CAPABILITIES: u32 = 0x0401_0000;

impl Gid {
    /// An entry of a software HCA's GID table: an address of the interface `ifname`.
    pub fn roce_v2(index: u32, gid: [u8; 16], ifname: &str) -> Gid {
        Gid { index, gid, ifname: ifname.to_owned(), gid_type: ROCE_V2.to_owned() }
    }
}

impl Port {
    /// A software HCA's port, active while an interface of its own is up.
    pub fn roce(
        active: bool,
        gid_table_len: u32,
        gids: Vec<Gid>,
        pkey: u16,
        hw_counters: Vec<Counter>,
    ) -> Port {
        Port {
            state: if active { PortState::Active } else { PortState::Down },
            phys_state: if active { PhysState::LinkUp } else { PhysState::Disabled },
            link_layer: LinkLayer::Ethernet,
            rate: Rate { lanes: 4, lane_speed: LaneSpeed::Edr },
            lid: 0,
            lid_mask_count: 0,
            sm_lid: 0,
            sm_sl: 0,
            cap_mask: PORT_CAPABILITIES,
            gid_table_len,
            gids,
            pkeys: vec![pkey],
            counters: Vec::new(),
            hw_counters,
        }
    }

    /// The same of a device that nobody has open: `gids` with whether the interface of each is up,
    /// and counters of these names, which have counted nothing.
    pub fn closed_roce<'a>(
        gid_table_len: u32,
        gids: impl Iterator<Item = (Gid, bool)>,
        pkey: u16,
        counters: impl Iterator<Item = &'a str>,
    ) -> Port {
        let (gids, up): (Vec<Gid>, Vec<bool>) = gids.unzip();
        let counters = counters.map(|name| Counter { name: name.to_owned(), value: 0 }).collect();
        Port::roce(up.contains(&true), gid_table_len, gids, pkey, counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port_content;

    #[test]
    fn a_port_shows_its_state_and_its_addresses() {
        let gid = Gid::roce_v2(1, [0xfe; 16], "eth0");
        let hits = Counter { name: "hits".into(), value: 7 };
        let port = |active| Port::roce(active, 4, vec![gid.clone()], 0xffff, vec![hits.clone()]);
        let (up, down) = (port(true), port(false));
        let shows = |port, file| port_content(port, file).unwrap_or_default();
        assert_eq!(shows(&up, "state"), "4: ACTIVE\n");
        assert_eq!(shows(&up, "phys_state"), "5: LinkUp\n");
        assert_eq!(shows(&down, "state"), "1: DOWN\n");
        assert_eq!(shows(&down, "phys_state"), "3: Disabled\n");
        assert_eq!(shows(&up, "rate"), "100 Gb/sec (4X EDR)\n");
        assert_eq!(shows(&up, "cap_mask"), "0x04010000\n");
        assert_eq!(shows(&up, "gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(shows(&up, "gid_attrs/ndevs/1"), "eth0\n");
        assert_eq!(shows(&up, "pkeys/0"), "0xffff\n");
        assert_eq!(shows(&up, "hw_counters/hits"), "7\n");
        assert_eq!(port_content(&up, "gid_attrs/types/0"), None);
    }
}
