//! The software ConnectX in machines: stock Linux drivers bind to it, and programs of rdma-core and
//! perftest run on it.

use std::path::Path;
use system::lab::{Booted, Lab, in_a_machine};
use system::{Namespace, Packets, Run, c_program, has, note_skip, peerdma, serve_connectx, skip};
use vm::Machine;

const DEVICE: &str = "/sys/bus/pci/devices/0000:01:00.0";

fn machine(lab: &Lab, socket: &Path) -> Result<Machine, String> {
    let programs = ["on_demand", "fork_odp", "cq_moderation"].map(c_program);
    let programs = programs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let all = |disk: &mut vm::RamDisk| programs.iter().try_for_each(|own| disk.own_program(own));
    let machine = lab.rdma_machine_with(all);
    let mut machine = machine.map_err(|error| format!("{error:#}"))?;
    machine.root_port("root");
    machine.function(socket, "root");
    Ok(machine)
}

/// What Linux says of the adapter, without a warning of its drivers'.
fn looks_right(guest: &Booted) {
    let info = guest.output("ibv_devinfo -v");
    for expected in [
        "PORT_ACTIVE",
        "link_layer:\t\tInfiniBand",
        "vendor_part_id:\t\t\t4131",
        // mlx5_ib takes it from the revision of the PCI function, which is 0 of a ConnectX-8.
        "hw_ver:\t\t\t\t0x0\n",
    ] {
        assert!(info.contains(expected), "{expected}\n{info}");
    }
    let class = guest.output("lspci -n -s 01:00.0");
    assert!(class.contains(" 0207: 15b3:1023"), "{class}");
    let bus = guest.output("lspci -vvv -s 01:00.0");
    for expected in [
        "Kernel driver in use: mlx5_core",
        "MSI-X: Enable+",
        "BusMaster+",
        "LnkSta:\tSpeed 64GT/s, Width x16",
    ] {
        assert!(bus.contains(expected), "{expected}\n{bus}");
    }
    // The driver tells of its link in any case, and whether a slower one on the way holds it back.
    let link = guest.output("dmesg | grep 'available PCIe bandwidth'");
    assert!(!link.contains("limited by"), "{link}");
    let firmware = guest.output("devlink dev info");
    assert!(firmware.contains("fw.version 40.46.1006"), "{firmware}");
    let link = guest.output("rdma link show -d");
    assert!(link.contains("subnet_prefix fe80:0000:0000:0000 lid "), "{link}");
    let counters = guest.output("rdma statistic show link mlx5_0/1");
    assert!(counters.contains(" out_of_buffer ") && counters.contains(" rx_write_requests "));
    guest.assert_drivers_quiet();
}

/// Programs whose memory comes when it is used.
fn on_demand(guest: &Booted) {
    let info = guest.output("ibv_devinfo -v");
    assert!(info.contains("ODP_SUPPORT_IMPLICIT"), "{info}");
    for line in [
        "ibv_rc_pingpong -o -n 100",
        "ibv_rc_pingpong -o -P -n 100",
        "ibv_rc_pingpong -O -n 100",
        "ibv_srq_pingpong -o -n 100",
    ] {
        let said = guest.converse(line);
        assert!(said.contains("100 iters"), "{line}: {said}");
    }
    for line in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        let said = guest.converse(&format!("{line} --odp -n 100 -s 65536"));
        assert!(said.contains(" 65536 "), "{line}: {said}");
    }
    let counted = "rdma statistic show mr | grep -q 'page_faults [1-9].* page_invalidations [1-9]'";
    let program = "on_demand 1 /tmp/counted > /tmp/said 2>&1";
    let look = format!(
        "until {counted}; do kill -0 $! && [ $((looks += 1)) -lt 1500 ] || \
         {{ rdma statistic show mr; break; }}; usleep 20000; done"
    );
    passes(guest, &format!("{program} & {look}; touch /tmp/counted; wait $!; cat /tmp/said"));
}

/// A program whose rows are all right.
fn passes(guest: &Booted, line: &str) {
    let (_, said) = guest.script(line);
    let wrong: Vec<&str> = said.lines().filter(|row| row.starts_with("NOT ")).collect();
    assert!(wrong.is_empty() && said.contains(" rows, 0 wrong"), "{line}: {said}");
}

#[test]
fn stock_drivers_run_programs_on_the_adapter() {
    let lab = match Lab::for_adapters() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    let socket = lab.socket("connectx");
    let machine = match machine(&lab, &socket) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    let namespace = Namespace::new("connectx");
    let trace = lab.socket("trace.pcap");
    let options = ["--trace", trace.to_str().expect("a name")];
    let mut adapter = serve_connectx(&namespace, &socket, &options);
    let guest = lab.boot(&machine);
    looks_right(&guest);
    for program in ["rc", "uc", "ud", "srq"] {
        let said = guest.converse(&format!("ibv_{program}_pingpong -n 100"));
        assert!(said.contains("100 iters"), "{program}: {said}");
    }
    on_demand(&guest);
    passes(&guest, "fork_odp 5");
    passes(&guest, "cq_moderation");
    // The driver goes and comes back, and so does the function.
    guest.output("echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/unbind");
    assert!(!guest.output("ls /sys/class/infiniband").contains("mlx5"));
    guest.output(&format!("echo 1 > {DEVICE}/reset"));
    guest.output("echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/bind");
    looks_right(&guest);
    if has("tshark") {
        let packets = Packets::of(&trace);
        // 100 messages each way of RC, UC, shared receives (16 queue pairs) and datagrams.
        packets.assert_icrcs(800);
        packets.assert_well_formed();
        let opcodes = packets.count_by(&["infiniband.bth.opcode"]);
        // SEND FIRST, LAST and ACKNOWLEDGE of RC; SEND LAST of UC; SEND ONLY of UD.
        for opcode in ["0", "2", "17", "34", "100"] {
            let count = opcodes.get(opcode).copied().unwrap_or_default();
            assert!(count >= 100, "{opcode}: {opcodes:?}");
        }
    } else {
        note_skip("the packets are not judged: tshark is not installed");
    }
    // Killed in the middle, and another machine after it.
    guest.output(
        "(ibv_rc_pingpong -n 1000000 & ibv_rc_pingpong -n 1000000 localhost) > /dev/null 2>&1 &",
    );
    drop(guest);
    let guest = lab.boot(&machine);
    looks_right(&guest);
    let said = guest.converse("ibv_rc_pingpong -n 100");
    assert!(said.contains("100 iters"), "{said}");
    drop(guest);
    assert!(adapter.alive(), "{}", adapter.said());
    adapter.signal(rustix::process::Signal::TERM);
    adapter.finish().ok();
    assert!(!socket.exists(), "its socket goes with it");
}

/// How many queue pairs and regions the adapter has for the guest.
fn objects(namespace: &Namespace) -> [u64; 2] {
    let run = Run::program(peerdma()).args(&["ps", "--json"]).within(namespace).finish();
    let listed: serde_json::Value = serde_json::from_str(&run.ok().stdout).expect("JSON");
    let member = &listed["processes"][0];
    ["queue_pairs", "memory_regions"].map(|of| member[of].as_u64().expect("a number"))
}

/// The guest restarts itself while its machine, and the adapter with it, stays: the adapter is as
/// it was after power-on.
#[test]
fn a_guest_that_restarts_in_place_finds_the_adapter_as_new() {
    let lab = match Lab::for_adapters() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    let socket = lab.socket("restart");
    let mut machine = match machine(&lab, &socket) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    machine.restarts = true;
    let namespace = Namespace::new("restart");
    let mut adapter = serve_connectx(&namespace, &socket, &[]);
    let mut guest = lab.boot(&machine);
    let boot = |guest: &Booted| {
        looks_right(guest);
        let fresh = objects(&namespace);
        let said = guest.converse("ibv_rc_pingpong -n 100");
        assert!(said.contains("100 iters"), "{said}");
        (guest.output("cat /proc/sys/kernel/random/boot_id"), fresh)
    };
    let (first, fresh) = boot(&guest);
    assert!(fresh[0] > 0, "the driver has no queue pair");
    // Objects of a program are left as well when it goes.
    guest.output("ibv_rc_pingpong -n 100 > /dev/null 2>&1 & sleep 1");
    guest.restart();
    let (second, fresh_again) = boot(&guest);
    assert_ne!(first, second, "it has not restarted");
    assert_eq!(fresh_again, fresh, "what the first boot had is left");
    drop(guest);
    assert!(adapter.alive(), "{}", adapter.said());
    adapter.signal(rustix::process::Signal::TERM);
    adapter.finish().ok();
}

/// Linux 6.1 knows of page faults by request only.
#[test]
fn an_older_kernel_serves_page_faults_by_request() {
    let lab = match Lab::of_distribution() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    if !system::is_root() {
        skip!("a namespace for the adapter needs root");
    }
    let socket = lab.socket("older");
    let mut machine = match machine(&lab, &socket) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    // Where addresses have 56 bits its implicit keys are too long for any adapter.
    machine.kernel_options = "no5lvl".to_owned();
    let namespace = Namespace::new("older");
    let _adapter = serve_connectx(&namespace, &socket, &[]);
    let guest = lab.boot(&machine);
    passes(&guest, "on_demand 1");
    guest.assert_quiet();
}

/// Two guests with an adapter each, on one subnet, and a cable by which their programs meet.
fn two_guests(lab: &Lab) -> Result<[Machine; 2], String> {
    let machine = |own: &str, other: &str| {
        let mut machine = machine(lab, &lab.socket(&format!("connectx-{own}")))?;
        machine.cable(&lab.socket(own), &lab.socket(other));
        Ok::<Machine, String>(machine)
    };
    Ok([machine("near", "far")?, machine("far", "near")?])
}

#[test]
fn two_guests_move_data_between_their_adapters() {
    let lab = match Lab::for_adapters() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    let machines = match two_guests(&lab) {
        Ok(machines) => machines,
        Err(reason) => skip!("{reason}"),
    };
    let namespace = Namespace::new("guests");
    let _adapters = ["near", "far"]
        .map(|end| serve_connectx(&namespace, &lab.socket(&format!("connectx-{end}")), &[]));
    let [near, far] = std::thread::scope(|scope| {
        let boots = machines.each_ref().map(|machine| scope.spawn(|| lab.boot(machine)));
        boots.map(|boot| boot.join().expect("a guest"))
    });
    for (guest, address) in [(&near, "198.18.9.1"), (&far, "198.18.9.2")] {
        guest.output(&format!("ip link set eth0 up && ip addr add {address}/24 dev eth0"));
    }
    let waiting = "until netstat -ltn | grep -q :18515; do usleep 50000; done";
    for line in [
        "ibv_rc_pingpong -n 200",
        "ibv_uc_pingpong -n 200",
        "ibv_ud_pingpong -n 200",
        "ib_write_bw -F -n 100 -s 65536 -p 18515",
        "ib_read_bw -F -n 100 -s 65536 -p 18515",
        "ib_atomic_bw -F -n 100 -p 18515",
    ] {
        far.output(&format!("({line} > /tmp/first 2>&1; echo ended=$? >> /tmp/first) & {waiting}"));
        near.output(&format!("{line} 198.18.9.2"));
        let first = "until grep -q ended= /tmp/first; do usleep 50000; done; cat /tmp/first";
        let said = far.output(first);
        assert!(said.contains("ended=0"), "{line}: {said}");
    }
    // A guest that is killed in the middle: its peer's requests fail, and nothing else does.
    let line = "ib_write_bw -F -n 10000000 -s 65536 -p 18515";
    far.output(&format!("({line} > /dev/null 2>&1) & {waiting}"));
    near.output(&format!("({line} 198.18.9.2 > /tmp/killed 2>&1; echo ended=$? >> /tmp/killed) &"));
    near.output("until rdma resource show qp | grep -q 'type RC state RTS'; do usleep 50000; done");
    drop(far);
    let ended = "until grep -q ended= /tmp/killed; do usleep 50000; done; cat /tmp/killed";
    let said = near.output(ended);
    // Its memory goes before its queue pairs do: IBV_WC_REM_OP_ERR if a request meets it between,
    // else IBV_WC_RETRY_EXC_ERR.
    assert!(["status 11", "status 12"].iter().any(|status| said.contains(status)), "{said}");
    looks_right(&near);
}

#[test]
fn a_command_in_a_machine_gives_its_output_and_status() {
    if let Err(reason) = Lab::for_adapters() {
        skip!("{reason:#}");
    }
    let namespace = Namespace::new("vm");
    let cache = Lab::as_cache();
    let vm = |words: &[&str]| {
        let run = Run::program(peerdma()).arg("vm").args(words).env("XDG_CACHE_HOME", cache.path());
        in_a_machine(&run.within(&namespace))
    };
    let printed = vm(&["--print"]).ok();
    assert!(printed.stdout.contains("vfio-user-pci") && printed.stdout.contains("share=on"));
    let ran = vm(&["--", "sh", "-c", "ibv_devices; echo 'two  words'; exit 7"]);
    assert_eq!(ran.status.code(), Some(7), "{ran}");
    assert!(ran.stdout.contains("mlx5_0") && ran.stdout.ends_with("two  words\n"), "{ran}");
}

/// Queue pairs of 1024 sends, of which each takes half a MiB at least of what the adapter may
/// remember.
const LONG_QUEUES: &str = "ib_write_bw -F -n 1024 -s 64 -t 1024 -q 16";

/// What it says where one is refused.
const REFUSED: &str = "Couldn't create IB resources";

/// As much memory as its owner allows, and no more, on both ways to serve an adapter.
#[test]
fn a_guest_is_remembered_within_the_limit_of_its_adapter() {
    let lab = match Lab::for_adapters() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    let socket = lab.socket("limited");
    let machine = match machine(&lab, &socket) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    let namespace = Namespace::new("limited");
    let traffic = format!(
        "{LONG_QUEUES} > /tmp/near 2>&1 & \
         until netstat -ltn | grep -q :18515; do usleep 50000; done; \
         {LONG_QUEUES} localhost 2>&1; wait; cat /tmp/near"
    );
    let within = |limit: &str| {
        let _adapter = serve_connectx(&namespace, &socket, &["--max-memory", limit]);
        let (_, said) = lab.boot(&machine).script(&traffic);
        said
    };
    let said = within("16");
    assert!(said.contains(REFUSED), "16 MiB are enough: {said}");
    let said = within("256");
    assert!(said.contains("BW average") && !said.contains(REFUSED), "{said}");

    let cache = Lab::as_cache();
    let vm = Run::program(peerdma()).args(&["vm", "--max-memory", "16", "--"]);
    let vm = vm.args(&["sh", "-c", &traffic]).env("XDG_CACHE_HOME", cache.path());
    let ran = in_a_machine(&vm.within(&namespace));
    assert!(ran.stdout.contains(REFUSED), "{ran}");
}
