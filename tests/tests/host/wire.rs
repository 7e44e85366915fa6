//! The wire as others see it: captures of real packets, dissected by Wireshark's tshark, their ICRC
//! recomputed by an independent program.

use std::collections::BTreeSet;
use system::{Capture, Namespace, Run, is_root, pair, port, skip, veth_pair};

/// Every opcode that RC, UC and UD have on the wire (IBA table 38), but those with invalidate,
/// which nobody here sends.
const OPCODES: [u8; 35] = [
    // RC: SEND, WRITE, READ, acknowledgements, atomics.
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f,
    0x10, 0x11, 0x12, 0x13, 0x14, //
    // UC: SEND, WRITE.
    0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, //
    // UD: SEND.
    0x64, 0x65,
];

/// Traffic of every kind between two hosts.
fn traffic(left: &Namespace, right: &Namespace, gid: u32, crosscheck: &str) {
    let meet = |line: String, port: u16| {
        let server = Run::hca(&line).within(left);
        let client = Run::hca(&line).within(right).arg("198.18.9.1");
        pair(server, Some(left), client, port);
    };
    for service in ["RC", "UC", "UD"] {
        let port = port();
        meet(format!("{crosscheck} -p {port} -g {gid} -t {service}"), port);
    }
    for (program, switches) in [
        ("ib_write_bw", "-s 20000 -n 20 -t 4"),
        ("ib_read_bw", "-s 20000 -n 20"),
        ("ib_send_bw", "-s 5000 -n 50 -c RC"),
        ("ib_send_bw", "-s 1024 -n 50 -c UD"),
        ("ib_write_bw", "-s 5000 -n 20 -c UC"),
        ("ib_write_bw", "-s 64 -n 20 -c UC"),
        ("ib_atomic_bw", "-n 20"),
    ] {
        let port = port();
        meet(format!("{program} -d peerdma0 -x {gid} -F -p {port} {switches}"), port);
    }
}

#[test]
fn real_packets_are_well_formed_and_their_icrc_is_right() {
    for tool in ["tshark", "dumpcap", "ib_write_bw", "python3"] {
        if !system::has(tool) {
            skip!("{tool} is not installed");
        }
    }
    if !is_root() {
        skip!("captures and namespaces need root");
    }
    let crosscheck = match system::c_program("crosscheck") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    let (left, right) = veth_pair("wire", 1500);
    for namespace in [&left, &right] {
        // Without this a capture shows whole trains instead of the packets that a real link
        // carries.
        namespace.output("ip link set wire gso_max_segs 1");
    }
    for (gid, version, address) in [(0, "4", "198.18.9.1"), (1, "6", "fd09::1")] {
        let info = Run::hca("ibv_devinfo -v").within(&left).finish().ok();
        let shown = info.stdout.lines().find(|line| line.contains(&format!("GID[{gid:3}]")));
        assert!(shown.is_some_and(|line| line.contains(address)), "GID {gid}: {info}");
        let capture = Capture::start(&left, "wire");
        traffic(&left, &right, gid, &crosscheck);
        let packets = capture.stop();
        packets.assert_icrcs(5000);
        packets.assert_well_formed();
        let versions = packets.count_by(&["ip.version"]);
        assert!(versions.keys().eq([version]), "{versions:?}");
        let seen = packets.count_by(&["infiniband.bth.opcode"]);
        let opcodes: BTreeSet<u8> = seen.keys().map(|opcode| opcode.parse().unwrap()).collect();
        assert!(opcodes.iter().eq(&OPCODES), "{seen:?}");
    }
}
