//! The kernel's own RoCE driver, rxe, as the judge of the wire: every operation in both directions, every byte compared,
//! no ICRC error counted by either side.

use std::path::PathBuf;
use std::time::Duration;
use system::lab::{GUEST_V4, GUEST_V6, Guest, HOST_V4, HOST_V6};
use system::{Run, listening, port, skip};

const LIMIT: Duration = Duration::from_secs(120);

/// The guest, booted once for all that is tried, and our program in it.
struct Lab {
    guest: Guest,
    crosscheck: PathBuf,
}

/// Index of a GID in the guest or on the host, by address.
fn guest_gid(guest: &Guest, address: &str) -> u32 {
    let wanted = if address.contains(':') {
        "fd07:0000:0000:0000:0000:0000:0000:0002"
    } else {
        "0000:0000:0000:0000:0000:ffff:c612:0702"
    };
    let script = "cd /sys/class/infiniband/rxe0/ports/1/gids && grep . *";
    let (_, said) = guest.script(script, LIMIT).unwrap();
    let line = said.lines().find(|line| line.trim().ends_with(wanted));
    let line = line.unwrap_or_else(|| panic!("{address} is no GID of the guest:\n{said}"));
    line.split(':').next().unwrap().parse().unwrap()
}

fn host_gid(lab: &Lab, address: &str) -> u32 {
    let info = Run::hca("ibv_devinfo -v").within(lab.guest.namespace()).finish().ok();
    let line = info.stdout.lines().find(|line| line.contains("GID[") && line.contains(address));
    let line = line.unwrap_or_else(|| panic!("{address} is no GID here: {info}"));
    let digits = line.split(['[', ']']).nth(1).unwrap();
    digits.trim().parse().unwrap()
}

impl Lab {
    fn here(&self, arguments: &str) -> Run {
        Run::hca(&format!("{} {arguments}", self.crosscheck.display()))
            .within(self.guest.namespace())
            .limit(LIMIT)
    }

    /// The host drives, the guest waits.
    fn drive_from_host(&self, gids: (u32, u32), switches: &str, guest: &str) {
        let port = port();
        let script =
            format!("crosscheck -p {port} -g {} {switches} > /tmp/{port} 2>&1 & sleep 1", gids.1);
        self.guest.script(&script, LIMIT).unwrap();
        let client = self.here(&format!("-p {port} -g {} {switches} {guest}", gids.0)).finish();
        let (_, server) = self.guest.script(&format!("cat /tmp/{port}"), LIMIT).unwrap();
        assert!(client.succeeded(), "{client}\nguest: {server}");
    }

    /// The guest drives, the host waits.
    fn drive_from_guest(&self, gids: (u32, u32), switches: &str, host: &str) {
        let port = port();
        let mut server = self.here(&format!("-p {port} -g {} {switches}", gids.0)).start();
        listening(port, Some(self.guest.namespace()), &mut server);
        let script = format!("crosscheck -p {port} -g {} {switches} {host}", gids.1);
        let (status, said) = self.guest.script(&script, LIMIT).unwrap();
        assert_eq!(status, 0, "guest: {said}\nhost: {}", server.stdout());
        server.finish().ok();
    }
}

#[test]
fn rxe_and_the_software_hca_understand_each_other() {
    let crosscheck = match system::c_program("crosscheck") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let guest = match Guest::boot(&[&crosscheck]) {
        Ok(guest) => guest,
        Err(reason) => skip!("{reason:#}"),
    };
    let lab = Lab { guest, crosscheck };
    for (host, guest) in [(HOST_V4, GUEST_V4), (HOST_V6, GUEST_V6)] {
        let gids = (host_gid(&lab, host), guest_gid(&lab.guest, guest));
        for switches in ["-t RC", "-t RC -m 1", "-t UC", "-t UD"] {
            eprintln!("{host} <-> {guest} {switches}");
            lab.drive_from_host(gids, switches, guest);
            lab.drive_from_guest(gids, switches, host);
        }
    }
    no_icrc_errors(&lab.guest);
}

/// rxe has no ICRC counter: it logs each bad packet at debug level and drops it, so its retransmissions tell.
fn no_icrc_errors(guest: &Guest) {
    let script = "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *";
    let (_, said) = guest.script(script, LIMIT).unwrap();
    for line in said.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        if ["rcvd_pkts", "sent_pkts", "rdma_sends", "rdma_recvs"].contains(&name) {
            assert_ne!(value.trim(), "0", "{said}");
        }
        if ["retry_exceeded_err", "send_err"].contains(&name) {
            assert_eq!(value.trim(), "0", "{said}");
        }
    }
}
