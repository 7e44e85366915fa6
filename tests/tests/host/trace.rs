//! `peerdma run --trace`: the packets of a program as a capture file that others can read.

use system::{Packets, Run, pair, port, skip};

#[test]
fn a_trace_is_a_capture_of_every_packet_with_its_icrc() {
    for tool in ["tshark", "python3", "ibv_rc_pingpong"] {
        if !system::has(tool) {
            skip!("{tool} is not installed");
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name);
    let port = port();
    let line = format!("ibv_rc_pingpong -g 0 -n 50 -s 10000 -p {port}");
    let traced = |name| Run::hca(&line).option("--trace").option(file(name));
    pair(traced("server.pcap"), None, traced("client.pcap").arg("127.0.0.1"), port);
    for name in ["server.pcap", "client.pcap"] {
        let packets = Packets::of(&file(name));
        // 50 messages each way, 3 packets each with the longest path MTU.
        packets.assert_icrcs(300);
        packets.assert_well_formed();
        let opcodes = packets.count_by(&["infiniband.bth.opcode"]);
        // SEND FIRST and LAST, and the acknowledgements.
        for opcode in ["0", "2", "17"] {
            assert!(opcodes.get(opcode).is_some_and(|count| *count >= 2), "{name}: {opcodes:?}");
        }
    }
}
