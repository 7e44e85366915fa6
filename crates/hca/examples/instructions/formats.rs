//! Pieces that know no queue pair: headers and ICRC.

use super::count;
use std::hint::black_box;
use std::net::Ipv4Addr;
use wire::icrc::{Addresses, FlowCrc};
use wire::{BTH_LEN, Headers, MAX_HEADERS_LEN};

/// RC SEND Only (IBA 9.2, table 38).
const SEND_ONLY: u8 = 0x04;
const UDP_SOURCE: u16 = 49_152;

pub fn count_all() {
    let mut packet = [0; BTH_LEN + 8];
    packet[0] = SEND_ONLY;
    let mut emitted = [0; MAX_HEADERS_LEN];
    count("headers of a SEND, parsed and emitted", |run| {
        run(&mut || {
            let (headers, payload) = Headers::parse(black_box(&packet)).expect("zeros parse");
            black_box(payload);
            headers.emit(black_box(&mut emitted));
        });
    });
    let addresses = Addresses::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let flow = FlowCrc::new(addresses, UDP_SOURCE);
    for (payload, name) in [(64, "ICRC of 64 bytes"), (4096, "ICRC of 4 KiB")] {
        let packet = vec![0x5a; BTH_LEN + payload];
        count(name, |run| {
            run(&mut || {
                black_box(flow.icrc(7, black_box(&packet)));
            });
        });
    }
}
