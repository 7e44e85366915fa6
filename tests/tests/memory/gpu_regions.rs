//! The other ways to register GPU memory: by its address (Peer-Direct), from programs that know
//! nothing of it, and anew by a descriptor (`peerdma/mr_fd.h`).

use system::{Counters, FIRST_GPU, Namespace, Run, gpu_memory, judged, pair, port, skip};

#[test]
fn a_gpus_address_is_registered_if_its_client_is_asked() {
    let program = match system::c_program("peer_memory") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    for (setting, rows) in [("after", 28), ("before", 28), ("off", 11)] {
        let run = Run::hca("sh -c").arg(format!("exec $PROGRAM {FIRST_GPU} {setting}"));
        let run = run.env("PROGRAM", &program).env("PEERDMA_PEER_DIRECT", setting);
        let counters = Counters::new();
        judged(run.env("PEERDMA_COUNTERS", counters.file()), rows);
        let to_gpu = |line: &str| line.contains(" BUS_ADDR ") && !line.ends_with(" 0 0");
        assert_eq!(counters.text().lines().any(to_gpu), setting != "off", "{}", counters.text());
    }
}

#[test]
fn regions_over_descriptors_are_registered_anew_if_the_device_offers_it() {
    let program = match system::c_program("mr_fd") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    for (offers, rows) in [("both", 50), ("reg", 15)] {
        let run = Run::hca("sh -c").arg(format!("exec $PROGRAM {FIRST_GPU} {offers}"));
        let run = run.env("PROGRAM", &program);
        judged(if offers == "reg" { run.env("PEERDMA_REREG_MR_FD", "off") } else { run }, rows);
    }
}

#[test]
fn perftest_runs_over_gpu_memory_that_it_maps() {
    if !system::has("ib_write_bw") || !system::is_root() {
        skip!("perftest is not installed, or namespaces cannot be made");
    }
    let host = Namespace::new("peer");
    let ((_near, near), (_far, far)) = (gpu_memory(&host, ""), gpu_memory(&host, ""));
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_atomic_bw"] {
        let port = port();
        let counters = Counters::new();
        let run = |file: &str| {
            let line = format!("{program} -d peerdma0 -x 0 -F -p {port} -n 500 --mmap={file}");
            Run::hca(&line).within(&host)
        };
        let client = run(&near).arg("127.0.0.1").env("PEERDMA_COUNTERS", counters.file());
        let (_, client) = pair(run(&far), Some(&host), client, port);
        assert!(client.stdout.contains("#bytes"), "{client}");
        let bytes = counters.text();
        let routes = bytes.lines().filter(|line| line.starts_with("route"));
        let (gpu, other): (Vec<_>, Vec<_>) = routes.partition(|line| line.contains("BUS_ADDR"));
        assert!(!gpu.is_empty() && other.is_empty(), "{program}: {bytes}");
    }
}
