//! One manager for several adapters of a host, as Linux has it.

use crate::net::*;
use cm::{Adapter, Path};

const OTHER: Adapter = Adapter { ca_guid: 0x0277, id_prefix: 0x3ff << 22 };

/// GUID of the adapter that sent a REQ (IBA 12.6.5).
fn guid(req: &Sent) -> u64 {
    u64::from_be_bytes(req.mad[24 + 16..24 + 24].try_into().unwrap())
}

/// Two nodes, the second of which has two adapters.
fn net() -> Net {
    let mut net = Net::new(2, 1);
    net.cms[1].attach(1, OTHER);
    net
}

#[test]
fn a_conversation_is_of_the_adapter_that_it_came_to() {
    let mut net = net();
    net.lose.insert(REQ, 1);
    net.connect(0, 1, 1, &[]);
    net.collect();
    let mad = net.last(REQ).mad;
    net.cms[1].receive(Path { adapter: 1, ..path(1, 0) }, &mad, net.now);
    net.collect();
    let passive = net.request(1);
    net.reply(1, passive, 5).unwrap();
    let (back, rep) = net.cms[1].poll_transmit().expect("a REP");
    assert_eq!(back.adapter, 1);
    let id = u32::from_be_bytes(rep[24..28].try_into().unwrap());
    assert_eq!(id & 0xffc0_0000, OTHER.id_prefix);
    let its_guid = u64::from_be_bytes(rep[24 + 28..24 + 36].try_into().unwrap());
    assert_eq!(its_guid, OTHER.ca_guid);
}

#[test]
fn a_request_names_the_adapter_that_it_begins_at() {
    let mut net = net();
    for (adapter, ca_guid, prefix) in
        [(0, 0x0200_0000_0000_0001, 1), (1, OTHER.ca_guid, OTHER.id_prefix >> 22)]
    {
        net.connect_by(Path { adapter, ..path(1, 0) }, 1, &[]).unwrap();
        net.collect();
        let req = net.last(REQ);
        assert_eq!((guid(&req), req.ids().0 >> 22), (ca_guid, prefix));
    }
    let nowhere = Path { adapter: 2, ..path(1, 0) };
    assert_eq!(net.connect_by(nowhere, 1, &[]), Err(cm::Invalid));
}
