//! A network between two hosts that marks packets as having met congestion, or loses some: the ends
//! heed the marks as RoCEv2 adapters do, and repair the losses.
//!
//! nftables does both, as a switch would: to packets, one by one. How fast it goes is for
//! `cargo xtask bench` to say, and for the transport's tests in virtual time.

use system::{Capture, Counters, Namespace, Run, is_root, pair, port, skip, veth_pair};

/// The opcode of a congestion notification packet (IBA A17.9.3).
const CNP: &str = "129";

macro_rules! need_tools {
    ($($tool:literal),*) => {
        $(if !system::has($tool) {
            skip!("{} is not installed", $tool);
        })*
        if !is_root() {
            skip!("namespaces need root");
        }
    };
}

/// Has `host` do this to each RoCEv2 packet that arrives by IPv4, or by IPv6.
fn each_packet(host: &Namespace, what: &str) {
    for line in [
        "add table inet net",
        "add chain inet net arriving { type filter hook prerouting priority -300 ; }",
        &format!("add rule inet net arriving udp dport 4791 {what}")[..],
    ] {
        host.output(&format!("nft \"{line}\""));
    }
}

/// Two hosts whose packets leave one by one, not in trains.
fn hosts() -> (Namespace, Namespace) {
    let (left, right) = veth_pair("net", 9000);
    for host in [&left, &right] {
        host.output("ip link set wire gso_max_segs 1");
    }
    (left, right)
}

/// Runs a program of perftest's whose server is the left host. Gives the counters of both ends.
fn between(hosts: &(Namespace, Namespace), line: &str) -> [Counters; 2] {
    let port = port();
    let line = format!("{line} -d peerdma0 -F -p {port}");
    let counters = [Counters::new(), Counters::new()];
    let [server, client] = [(&hosts.0, &counters[0]), (&hosts.1, &counters[1])]
        .map(|(host, to)| Run::hca(&line).within(host).env("PEERDMA_COUNTERS", to.file()));
    pair(server, Some(&hosts.0), client.arg("198.18.9.1"), port);
    counters
}

#[test]
fn marks_are_told_to_who_sent_the_packets_and_slow_it_down() {
    need_tools!("ib_write_bw", "nft", "tshark", "dumpcap", "python3");
    let hosts = hosts();
    for (host, ip) in [(&hosts.0, "ip"), (&hosts.1, "ip6")] {
        // Packets that say that their ends heed marks get one now and then. Those that do not say
        // so may not get any.
        each_packet(host, &format!("{ip} ecn ect0 numgen random mod 100 < 5 {ip} ecn set ce"));
        host.output(&format!(
            "nft \"add rule inet net arriving udp dport 4791 meta l4proto udp {ip} ecn not-ect drop\""
        ));
    }
    for (line, marked, packets_of_it) in [
        // Requests meet congestion on their way to the server, by IPv4.
        ("ib_write_bw -s 65536 -n 200 -x 0", 0, 3200),
        // Few enough for the receiver's buffer, however late it comes: what is lost stays lost.
        ("ib_send_bw -s 65536 -n 100 -x 0 -c UC", 0, 1600),
        // What a READ brings does on its way to the client, by IPv6.
        ("ib_read_bw -s 65536 -n 200 -x 1", 1, 3200),
    ] {
        let capture = Capture::start(&hosts.0, "wire");
        let counters = between(&hosts, line);
        let packets = capture.stop();
        let (notifies, slows) = (&counters[marked], &counters[1 - marked]);
        let met = notifies.sum("np_ecn_marked_roce_packets");
        let (sent, handled) = (notifies.sum("np_cnp_sent"), slows.sum("rp_cnp_handled"));
        assert!(
            met > packets_of_it as u64 / 320,
            "{line}: {met} of {packets_of_it} packets were marked"
        );
        assert!((1..=met).contains(&sent), "{line}: {sent} notifications for {met} marks");
        // One may be on its way when the peer ends.
        assert!(handled > 0 && handled <= sent, "{line}: {handled} of {sent} were heeded");
        assert_eq!(slows.sum("rp_cnp_ignored"), 0, "{line}");
        packets.assert_icrcs(packets_of_it / 16 * 15);
        let seen = packets.count_by(&["infiniband.bth.opcode"]);
        assert!(seen.get(CNP).is_some_and(|&seen| seen as u64 >= handled), "{line}: {seen:?}");
    }
}

#[test]
fn nobody_marks_or_notifies_on_one_host() {
    need_tools!("ib_write_bw");
    let host = Namespace::new("alone");
    let port = port();
    // The program itself names the bits of a packet that met congestion.
    let line = format!("ib_write_bw -d peerdma0 -x 0 -F -p {port} -s 65536 -n 100 --tclass=3");
    let counters = Counters::new();
    let end = || {
        let run = Run::hca(&line).option("--link=roce").within(&host);
        run.env("PEERDMA_COUNTERS", counters.file())
    };
    pair(end(), Some(&host), end().arg("127.0.0.1"), port);
    for counter in ["np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"] {
        assert_eq!(counters.sum(counter), 0, "{counter}");
    }
}

#[test]
fn one_packet_lost_in_a_hundred_is_repaired() {
    need_tools!("ib_write_bw", "nft");
    let hosts = hosts();
    for host in [&hosts.0, &hosts.1] {
        each_packet(host, "numgen random mod 100 < 1 drop");
    }
    for line in [
        "ib_write_bw -s 1048576 -n 50 -x 0",
        "ib_read_bw -s 1048576 -n 50 -x 0",
        "ib_send_bw -s 65536 -n 500 -x 0",
        "ib_atomic_bw -n 500 -x 0",
    ] {
        let [server, client] = between(&hosts, line);
        let lost = client.sum("packet_seq_err") + client.sum("implied_nak_seq_err");
        assert!(lost > 0, "{line}: nothing was lost");
        for end in [server, client] {
            assert_eq!(end.sum("retry_exceeded_err"), 0, "{line}");
        }
    }
}
