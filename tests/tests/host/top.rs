//! `peerdma top` sees what a running program moves: bytes by device, queue pair, route and link.

use system::{Namespace, Run, listening, peerdma, port, skip};

/// Two looks at what the devices of a namespace move.
fn look(namespace: &Namespace) -> Vec<serde_json::Value> {
    let line = format!("{} top --json --interval 0.5 --count 2", peerdma().display());
    let output = Run::plain(&line).within(namespace).finish().ok();
    output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_transfer_is_seen_by_device_queue_pair_route_and_link() {
    if !system::has("ib_write_bw") || !system::is_root() {
        skip!("needs perftest, and root for a network namespace");
    }
    let namespace = Namespace::new("top");
    for before in look(&namespace) {
        assert_eq!(before["devices"].as_array().unwrap().len(), 0);
    }
    let port = port();
    let line = format!("ib_write_bw -d peerdma0 -x 0 -F -D 30 -p {port}");
    let mut server = Run::hca(&line).within(&namespace).start();
    listening(port, Some(&namespace), &mut server);
    let client = Run::hca(&line).within(&namespace).arg("127.0.0.1").start();
    // Until both have connected there is less to see; each look takes a second.
    let seen = (0..20).flat_map(|_| look(&namespace)).find(|sample| {
        let devices = sample["devices"].as_array().unwrap();
        devices.len() == 2 && devices.iter().any(|d| number(&d["sent_bytes_per_second"]) > 1e6)
    });
    client.signal(rustix::process::Signal::KILL);
    server.signal(rustix::process::Signal::KILL);
    let seen = seen.expect("no look showed the transfer");
    let devices = seen["devices"].as_array().unwrap();
    let sender = devices.iter().find(|d| number(&d["sent_bytes_per_second"]) > 1e6).unwrap();
    assert!(sender["command"].as_str().unwrap().contains("ib_write_bw"), "{sender}");
    let qp = &sender["qps"][0];
    assert_eq!((qp["type"].as_str(), qp["state"].as_str()), (Some("RC"), Some("RTS")), "{qp}");
    assert!(number(&qp["sent_bytes_per_second"]) > 1e6, "{qp}");
    let route = &sender["routes"][0];
    assert_eq!(route["target"], "host memory", "{route}");
    assert!(number(&route["read_bytes_per_second"]) > 1e6, "{route}");
    let links = sender["links"].as_array().unwrap();
    let port = links.iter().find(|link| link["link"] == "link below 0000:17:00.0").unwrap();
    assert!(number(&port["bytes_per_second"]) > 1e6, "{port}");
    assert!(number(&port["limit_bytes_per_second"]) > 6e10, "{port}");
}

/// Who cannot be read is shown all the same, and why, wherever processes are listed.
#[test]
fn a_process_that_cannot_be_read_is_not_left_out() {
    if !system::is_root() {
        skip!("needs root for a network namespace");
    }
    let namespace = Namespace::new("unread");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_unread_member"));
    let mut member = Run::program(program).within(&namespace).start();
    member.until("it did not join", |member| member.said().contains("joined"));
    let tell = |words: &str| {
        let line = format!("{} {words}", peerdma().display());
        Run::plain(&line).within(&namespace).finish().ok()
    };
    let reason = "it is of another version of peerdma";
    let json =
        |words: &str| -> serde_json::Value { serde_json::from_str(&tell(words).stdout).unwrap() };
    assert_eq!(json("ps --json")["processes"][0]["unread"], reason);
    for command in ["ctl --json", "top --json --interval 0.1 --count 1"] {
        let answer = json(command);
        assert_eq!(answer["unread"][0]["reason"], reason, "{command}: {answer}");
        assert_eq!(answer["unread"][0]["device"], "peerdma7", "{command}: {answer}");
    }
    for command in ["ps", "ctl", "top --interval 0.1 --count 1"] {
        let output = tell(command);
        let all = format!("{}{}", output.stdout, output.stderr);
        assert!(all.contains(reason) && !all.contains('\u{1b}'), "{command}: {all:?}");
    }
    member.signal(rustix::process::Signal::KILL);
}
