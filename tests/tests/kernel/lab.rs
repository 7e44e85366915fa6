//! The kernel's own RoCE driver, rxe, as the judge of the wire: every operation in both directions,
//! every byte compared, no ICRC error counted by either side.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use system::lab::{GUEST_V4, GUEST_V6, Guest, HOST_V4, HOST_V6};
use system::{Counters, Run, has, listening, note_skip, port, skip};

const LIMIT: Duration = Duration::from_secs(120);

/// The guest, booted once for all that is tried, and our program in it.
struct Lab {
    guest: Guest,
    crosscheck: PathBuf,
}

/// The addresses at which programs meet by TCP, and the GIDs between which they then move data.
struct Ends {
    host: &'static str,
    guest: &'static str,
    host_gid: u32,
    guest_gid: u32,
}

/// Who starts the conversation.
#[derive(Clone, Copy, Debug)]
enum Driver {
    Host,
    Guest,
}

impl Lab {
    fn ends(&self, host: &'static str, guest: &'static str) -> Ends {
        Ends { host, guest, host_gid: self.host_gid(host), guest_gid: self.guest_gid(guest) }
    }

    /// Index of the guest's GID that is `address`.
    fn guest_gid(&self, address: &str) -> u32 {
        let wanted = if address.contains(':') {
            "fd07:0000:0000:0000:0000:0000:0000:0002"
        } else {
            "0000:0000:0000:0000:0000:ffff:c612:0702"
        };
        let said = self.guest.output(
            "cd /sys/class/infiniband/rxe0/ports/1/gids && \
             grep -v ^0000:0000:0000:0000:0000:0000 *",
        );
        let line = said.lines().find(|line| line.trim().ends_with(wanted));
        let line = line.unwrap_or_else(|| panic!("{address} is no GID of the guest:\n{said}"));
        line.split(':').next().unwrap().parse().unwrap()
    }

    /// Index of the GID here that is `address`.
    fn host_gid(&self, address: &str) -> u32 {
        let info = Run::hca("ibv_devinfo -v").within(self.guest.namespace()).finish().ok();
        let line = info.stdout.lines().find(|line| line.contains("GID[") && line.contains(address));
        let line = line.unwrap_or_else(|| panic!("{address} is no GID here: {info}"));
        let digits = line.split(['[', ']']).nth(1).unwrap();
        digits.trim().parse().unwrap()
    }

    /// Runs the same program on both ends. The waiting one gets `line`, the driving one its peer's
    /// address besides; `line` says PORT and GID where these belong.
    fn converse(&self, host: &str, guest: &str, ends: &Ends, driver: Driver) {
        let port = port();
        let fill = |line: &str, gid: u32| {
            line.replace("PORT", &port.to_string()).replace("GID", &gid.to_string())
        };
        let (host, guest) = (fill(host, ends.host_gid), fill(guest, ends.guest_gid));
        eprintln!("{driver:?} drives: {guest} {}", ends.host);
        let counters = Counters::new();
        let here = Run::hca(&host)
            .within(self.guest.namespace())
            .env("PEERDMA_COUNTERS", counters.file())
            .limit(LIMIT);
        match driver {
            Driver::Host => {
                let server = self.guest.start(&guest);
                server.listening(port);
                let client = here.arg(ends.guest).finish();
                let (succeeded, said) = server.finish();
                assert!(client.succeeded() && succeeded, "{client}\nguest: {said}");
            }
            Driver::Guest => {
                let mut server = here.start();
                listening(port, Some(self.guest.namespace()), &mut server);
                let script = format!("{guest} {}", ends.host);
                let (status, said) = self.guest.script(&script, LIMIT).unwrap();
                assert_eq!(status, 0, "guest: {said}\nhost: {}", server.said());
                server.finish().ok();
            }
        }
        let packets = counters.sum("sent_pkts") + counters.sum("rcvd_pkts");
        assert_ne!(packets, 0, "{host}: nothing went over the wire");
        for name in ["rx_icrc_encapsulated", "rx_malformed"] {
            assert_eq!(counters.sum(name), 0, "{host}: {name}\n{}", counters.text());
        }
    }

    /// How many packets rxe's ICRC check accepted and how many it refused.
    fn icrcs_in_guest(&self) -> (u64, u64) {
        let said = self.guest.output("cat /sys/kernel/tracing/events/kprobes/icrc/hist");
        let (mut right, mut wrong) = (0, 0);
        for line in said.lines().filter_map(|line| line.trim().strip_prefix("{ verdict:")) {
            let (verdict, rest) = line.split_once('}').expect("a verdict");
            let count: u64 = rest.rsplit(' ').next().unwrap().parse().expect("a count");
            *if verdict.trim() == "0" { &mut right } else { &mut wrong } += count;
        }
        (right, wrong)
    }

    /// Sends the guest a packet to QP 1 whose ICRC is wrong.
    fn send_bad_icrc(&self) {
        let script = format!(
            "import socket\n\
             bth = bytes([0x64, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1])\n\
             deth = bytes([0x80, 1, 0, 0, 0, 0, 0, 1])\n\
             packet = bth + deth + bytes(256) + b'oops'\n\
             socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(packet, ('{GUEST_V4}', 4791))"
        );
        Run::plain("python3 -c").arg(script).within(self.guest.namespace()).finish().ok();
    }
}

/// The guest, or the reason why the lab cannot run here.
fn lab() -> Result<Lab, String> {
    let crosscheck = system::c_program("crosscheck")?;
    let guest = Guest::boot(&[&crosscheck]).map_err(|error| format!("{error:#}"))?;
    Ok(Lab { guest, crosscheck })
}

#[test]
fn rxe_and_the_software_hca_understand_each_other() {
    let lab = match lab() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason}"),
    };
    let (v4, v6) = (lab.ends(HOST_V4, GUEST_V4), lab.ends(HOST_V6, GUEST_V6));
    for ends in [&v4, &v6] {
        for switches in ["-t RC", "-t RC -m 1", "-t UC", "-t UD"] {
            let arguments = format!("-p PORT -g GID {switches}");
            let here = format!("{} {arguments}", lab.crosscheck.display());
            for driver in [Driver::Host, Driver::Guest] {
                lab.converse(&here, &format!("crosscheck {arguments}"), ends, driver);
            }
        }
    }
    // perftest's own conversation goes over IPv4 in any case.
    let v6 = Ends { host: HOST_V4, guest: GUEST_V4, ..v6 };
    if has("ib_write_bw") {
        for (program, ends) in [
            ("ib_write_bw -n 20", &v4),
            ("ib_read_bw -o 16 -n 20", &v6),
            ("ib_send_bw -n 20", &v4),
            ("ib_atomic_bw -o 16 -n 100", &v6),
        ] {
            // A processor that QEMU keeps for long is no lost packet: a timeout of a second.
            let here = format!("{program} -d peerdma0 -x GID -F -u 18 -p PORT");
            let there = format!("{program} -d rxe0 -x GID -F -u 18 -p PORT");
            for driver in [Driver::Host, Driver::Guest] {
                lab.converse(&here, &there, ends, driver);
            }
        }
    } else {
        note_skip("perftest does not speak with rxe: it is not installed (package perftest)");
    }
    let said = lab.guest.output("cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *");
    for (name, zero) in [
        ("rcvd_pkts", false),
        ("sent_pkts", false),
        ("retry_exceeded_err", true),
        ("send_err", true),
    ] {
        let value = said.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        assert_eq!(value.map(str::trim) == Some("0"), zero, "{name} of rxe:\n{said}");
    }
    let (right, wrong) = lab.icrcs_in_guest();
    assert!(right > 10_000 && wrong == 0, "ICRCs in rxe's eyes: {right} right, {wrong} wrong");
    // That means something only if a wrong one is seen.
    lab.send_bad_icrc();
    let deadline = Instant::now() + Duration::from_secs(20);
    while lab.icrcs_in_guest().1 != 1 {
        assert!(Instant::now() < deadline, "rxe took no offence: {:?}", lab.icrcs_in_guest());
    }
}
