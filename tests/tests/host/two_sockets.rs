//! A machine with two sockets, an HCA and a GPU on each: who is near is found by its topology, the
//! near HCA goes its short way, and the far one the way that the processor leaves it.

use system::{Counters, Namespace, Run, Running, listening, note_skip, peerdma, port, skip};

/// Whose processor routes between all its ports, and whose only within a socket.
const LISTED: &str = "server";
const UNLISTED: &str = "old-server";
/// The HCA of each socket, and the GPU of the first.
const NEAR: (&str, &str) = ("peerdma0", "0000:16:00.0");
const FAR: (&str, &str) = ("peerdma1", "0000:9a:00.0");
const GPU: &str = "0000:27:00.0";
/// What is between the sockets.
const BETWEEN: &str = "link interconnect node 0 - node 1";

fn on(platform: &str, line: &str) -> Run {
    Run::hca(line).option("--platform").option(platform)
}

/// Memory of the first GPU, as a file that lives as long as the program.
fn gpu_memory(host: &Namespace, platform: &str) -> (Running, String) {
    system::gpu_memory(host, &format!("--platform {platform}"))
}

/// Figures of a route of the first GPU's memory, and of the interconnect, in bytes: read, written,
/// crossed.
fn counted(text: &str, function: &str) -> Option<(String, u64, u64, u64)> {
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok()).unwrap_or(0);
    let route = text.lines().find_map(|l| l.strip_prefix(&format!("route {function} {GPU} ")))?;
    let mut words = route.split(' ');
    let map_type = words.next()?.to_owned();
    let (read, written) = (number(words.next()), number(words.next()));
    let crossed = text.lines().find_map(|line| line.strip_prefix(BETWEEN));
    Some((map_type, read, written, number(crossed.map(str::trim))))
}

/// Writes of a device from the first GPU's memory, over links paced to a part of their rate. Gives
/// MiB a second, by perftest's own clock, and the client's counters.
fn writes(host: &Namespace, device: &str, file: &str, pace: f64) -> (f64, String) {
    let port = port();
    let line = |device: &str| format!("ib_write_bw -d {device} -x 0 -F -p {port} -n 800 -s 65536");
    let paced = |run: Run| run.option(format!("--pace={pace}")).within(host);
    // The other end's memory is the host's, next to its HCA.
    let mut server = paced(on(LISTED, &line(NEAR.0))).start();
    listening(port, Some(host), &mut server);
    let counters = Counters::new();
    let client = paced(on(LISTED, &line(device))).arg(format!("--mmap={file}")).arg("127.0.0.1");
    let client = client.env("PEERDMA_COUNTERS", counters.file()).finish().ok();
    server.finish().ok();
    let mut figures = client.stdout.lines().filter_map(|line| {
        let words: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        (words.len() == 5).then(|| words[3])
    });
    (figures.next_back().unwrap_or_else(|| panic!("{client}")), counters.text())
}

#[test]
fn perftest_gets_the_rate_of_the_way_that_its_hca_has_to_the_gpu() {
    if !system::has("ib_write_bw") || !system::is_root() {
        skip!("needs perftest, and root for a network namespace");
    }
    const PACE: f64 = 0.002;
    const MIB: f64 = (1 << 20) as f64;
    let bytes = 800 * 65536;
    let host = Namespace::new("sockets");
    let (_gpu, file) = gpu_memory(&host, LISTED);
    // 32 GT/s times 16 lanes; between the sockets 20 GB a second.
    for (hca, bytes_per_second) in [(NEAR, 63.015e9), (FAR, 20e9)] {
        let limit = bytes_per_second * PACE / MIB;
        // A busy machine may come late for more than links make up for.
        let (rate, text) = (0..30)
            .map(|_| writes(&host, hca.0, &file, PACE))
            .inspect(|(rate, _)| assert!(*rate < 1.02 * limit, "{}: {rate} of {limit}", hca.0))
            .find(|(rate, _)| *rate > 0.95 * limit)
            .unwrap_or_else(|| panic!("{} never had 95 % of {limit} MiB/s", hca.0));
        let (map_type, read, written, crossed) =
            counted(&text, hca.1).unwrap_or_else(|| panic!("no route to the GPU: {text}"));
        assert_eq!((map_type.as_str(), written), ("THRU_HOST_BRIDGE", 0), "{text}");
        assert!(read >= bytes, "{rate} MiB/s: {text}");
        assert_eq!(crossed, if hca == FAR { read } else { 0 }, "{text}");
    }
}

#[test]
fn the_far_hca_is_refused_where_the_processor_does_not_route() {
    if !system::has("ib_write_bw") || !system::is_root() {
        skip!("needs perftest, and root for a network namespace");
    }
    let host = Namespace::new("sockets");
    let (_gpu, file) = gpu_memory(&host, UNLISTED);
    let run = |device: &str, port: u16| {
        let line = format!("ib_write_bw -d {device} -x 0 -F -p {port} -n 100");
        on(UNLISTED, &line).within(&host)
    };
    let (client, text) = {
        let (port, counters) = (port(), Counters::new());
        let client = run(NEAR.0, port).arg(format!("--mmap={file}")).arg("127.0.0.1");
        let client = client.env("PEERDMA_COUNTERS", counters.file());
        let (_, client) = system::pair(run(FAR.0, port), Some(&host), client, port);
        (client, counters.text())
    };
    assert!(client.stdout.contains("#bytes"), "{client}");
    let (map_type, read, ..) = counted(&text, NEAR.1).expect("the near HCA reaches the GPU");
    assert!(map_type == "THRU_HOST_BRIDGE" && read > 0, "{text}");

    let port = port();
    let mut server = run(NEAR.0, port).start();
    listening(port, Some(&host), &mut server);
    let client = run(FAR.0, port).arg(format!("--mmap={file}")).arg("127.0.0.1");
    let client = client.env("PEERDMA_LOG", "1").finish();
    assert!(!client.succeeded() && !client.timed_out, "{client}");
    let reason = format!("{} cannot reach {GPU} (NOT_SUPPORTED)", FAR.1);
    assert!(client.stderr.contains(&reason), "{client}");
}

/// What a side of the demo says of itself.
fn side(report: &serde_json::Value, number: usize) -> &serde_json::Value {
    &report["sides"][number]
}

fn demo(host: &Namespace, options: &str) -> Result<serde_json::Value, String> {
    let line = format!("{} demo --json --size 4M {options}", peerdma().display());
    let finished = Run::plain(&line).within(host).finish();
    if !finished.succeeded() {
        return Err(finished.stderr);
    }
    Ok(serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}")))
}

#[test]
fn the_demo_takes_the_near_hca_or_falls_back() {
    if !system::is_root() {
        skip!("needs root for a network namespace");
    }
    let host = Namespace::new("sockets");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let near = demo(&host, "--platform server").unwrap();
    for (number, name, label) in [(0, NEAR.0, "PHB"), (1, FAR.0, "PIX")] {
        let hca = &side(&near, number)["hca"];
        assert_eq!((text(&hca["name"]), text(&hca["label"])), (name.to_owned(), label.to_owned()));
        assert_eq!(text(&hca["choice"]), "nearest");
    }
    let far = demo(&host, "--platform server --hca farthest").unwrap();
    for (number, name) in [(0, FAR.0), (1, NEAR.0)] {
        let side = side(&far, number);
        assert_eq!(
            (text(&side["hca"]["name"]), text(&side["hca"]["label"])),
            (name.into(), "SYS".into())
        );
        assert_eq!(text(&side["route"]["map_type"]), "THRU_HOST_BRIDGE");
        let links = side["links"].as_array().unwrap();
        let between = links.iter().find(|link| text(&link["name"]).starts_with("interconnect"));
        assert!(between.unwrap()["bytes"].as_u64() > Some(4 << 20), "{side}");
    }
    // Without a way a registration is refused, unless the pages may come home.
    let refused = demo(&host, "--platform old-server --hca farthest").unwrap_err();
    assert!(refused.contains("NOT_SUPPORTED"), "{refused}");
    let private = "--platform old-server --memory device-private";
    match demo(&host, private) {
        // Faults of system calls are not everybody's to serve.
        Err(said) => note_skip(&format!("device-private pages: {said}")),
        Ok(near) => {
            let home = demo(&host, &format!("{private} --hca farthest")).unwrap();
            for number in 0..2 {
                let pages = |report, what: &str| side(report, number)[what].as_u64().unwrap();
                assert!(pages(&near, "pages_in_gpu") > 0, "{near}");
                assert_eq!(pages(&near, "pages_brought_home"), 0, "{near}");
                assert!(pages(&home, "pages_brought_home") > 0, "{home}");
                assert_eq!(pages(&home, "pages_in_gpu"), 0, "{home}");
            }
        }
    }
}

#[test]
fn topology_tells_who_is_near() {
    let line = format!("{} topo --from {LISTED} --json", peerdma().display());
    let topo = Run::plain(&line).finish().ok();
    let topo: serde_json::Value = serde_json::from_str(&topo.stdout).unwrap();
    let nearest = serde_json::json!([
        { "gpu": GPU, "nic": NEAR.1, "equals": [NEAR.1] },
        { "gpu": "0000:9b:00.0", "nic": FAR.1, "equals": [FAR.1] },
    ]);
    assert_eq!(topo["nearest"], nearest);
    // A program that reads sysfs chooses for each GPU the device of its NUMA node.
    let script = "for gpu in /sys/class/drm/renderD*; do node=$(cat $gpu/device/numa_node); \
                  address=$(basename $(readlink -f $gpu/device)); \
                  for hca in /sys/class/infiniband/*; do \
                  test $(cat $hca/device/numa_node) = $node && echo $address $(basename $hca); \
                  done; done";
    let chosen = on(LISTED, "sh -c").arg(script).finish();
    for (gpu, hca) in [(GPU, NEAR.0), ("0000:9b:00.0", FAR.0)] {
        let lines: Vec<_> = chosen.stdout.lines().filter(|line| line.starts_with(gpu)).collect();
        assert_eq!(lines, [format!("{gpu} {hca}")], "{chosen}");
    }
}
