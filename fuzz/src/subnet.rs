//! Targets of the crate `subnet`.

use hca::{Membership, SubnetPort};
use std::time::Instant;
use subnet::{Administrator, Groups, Mad, Refused, View};

const PORTS: [(u16, u64); 2] = [(7, 0x70), (9, 0x90)];
const CLASSES: [u8; 4] = [0x03, 0x03, 0x01, 0x81];

/// The own port's memberships.
struct Own(Vec<Membership>);

impl Groups for Own {
    fn join(&mut self, membership: Membership) -> Result<(), Refused> {
        assert!(membership.mgid[0] == 0xff && membership.mlid >= 0xc000);
        assert!(membership.join_state != 0 && membership.mtu <= 5);
        self.leave(membership.mgid);
        self.0.push(membership);
        Ok(())
    }

    fn leave(&mut self, mgid: [u8; 16]) {
        self.0.retain(|membership| membership.mgid != mgid);
    }
}

fn view(own: &Own) -> View {
    let port = |(lid, guid)| SubnetPort { lid, guid, memberships: Vec::new() };
    let mut ports = PORTS.map(port).to_vec();
    ports[0].memberships.clone_from(&own.0);
    View { own: PORTS[0].0, ports }
}

/// Management datagrams one after the other, each with a byte before it that says of which class it
/// is. Every answer is one, and no transfer is longer than its table.
pub fn mads(data: &[u8]) {
    let mut administrator = Administrator::default();
    let mut own = Own(Vec::new());
    for chunk in data.chunks(257).take(64) {
        let mut mad: Mad = [0; 256];
        mad.iter_mut().zip(&chunk[1..]).for_each(|(place, byte)| *place = *byte);
        mad[1] = CLASSES[usize::from(chunk[0]) % CLASSES.len()];
        let view = view(&own);
        if mad[1] == CLASSES[0] {
            let answers = administrator.hear(&view, &mut own, view.own, &mad, Instant::now());
            assert!(answers.len() < 1 << 13);
            assert!(answers.iter().all(|answer| answer[3] & 0x80 != 0));
        } else {
            let answer = view.answer_smp(view.own, chunk[0] & 0x80 != 0, &mad);
            assert!(answer.is_none_or(|answer| answer[3] == 0x81));
        }
    }
}

/// A request of each kind, with every component named and with none.
pub fn mad_seeds() -> Vec<Vec<u8>> {
    let request = |kind: u8, method: u8, attribute: u8, mask: u8| {
        let mut request = vec![0; 257];
        request[0] = kind;
        request[1..5].copy_from_slice(&[1, 0, if kind < 2 { 2 } else { 1 }, method]);
        request[18] = attribute;
        (request[7], request[8]) = (1, 2);
        request[49..57].fill(mask);
        request[57..59].copy_from_slice(&[0xff, 0x12]);
        request[73..75].copy_from_slice(&[0xfe, 0x80]);
        request[88] = 0x70;
        request[105] = 1;
        request
    };
    let tables = [0x11, 0x12, 0x14, 0x18, 0x20, 0x35, 0x38];
    let mut seeds: Vec<Vec<u8>> = tables
        .iter()
        .flat_map(|table| [0, 0xff].map(|mask| request(0, 0x12, *table, mask)))
        .collect();
    seeds.push([request(0, 2, 0x38, 0xff), request(0, 0x15, 0x38, 0xff)].concat());
    for attribute in [0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x19, 0x20] {
        seeds.push(request(0x82, 1, attribute, 0));
        seeds.push(request(0x83, 1, attribute, 0));
    }
    seeds
}
