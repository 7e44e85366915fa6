//! The port follows the host's interfaces, and programs hear of it without asking.

use std::time::{Duration, Instant};
use system::{Namespace, Run, Running, c_program, skip};

const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;
const GID_CHANGE: u32 = 18;

const DOWN: u32 = 1;
const ACTIVE: u32 = 4;

/// What the program said of one event, or of the beginning.
#[derive(Debug)]
struct Line {
    event: Option<u32>,
    state: u32,
    gids: usize,
}

impl Line {
    fn parse(line: &str) -> Line {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |name: &str| {
            let at = words.iter().position(|word| *word == name).expect(line);
            words[at + 1].parse::<u32>().expect(line)
        };
        let event = words[0].parse().ok();
        assert!(event.is_none() || after("port") == 1, "{line}");
        Line { event, state: after("state"), gids: after("gids") as usize }
    }
}

/// Everything the program says after its first `known` lines until `enough`.
fn said_until(
    program: &mut Running,
    known: &mut usize,
    what: &str,
    enough: impl Fn(&[Line]) -> bool,
) -> Vec<Line> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let said = program.stdout();
        let whole = said.rfind('\n').map_or("", |end| &said[..end]);
        let lines: Vec<Line> = whole.lines().skip(*known).map(Line::parse).collect();
        if enough(&lines) {
            *known += lines.len();
            return lines;
        }
        let alive = program.alive();
        assert!(alive && Instant::now() < deadline, "{what}: {}", program.said());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn told(lines: &[Line], event: u32) -> bool {
    lines.iter().any(|line| line.event == Some(event))
}

#[test]
fn events_tell_of_addresses_and_interfaces() {
    let program = match c_program("port_events") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    if !system::is_root() {
        skip!("network namespaces need root");
    }
    let host = Namespace::new("port");
    host.output("ip link add wire type veth peer name far");
    host.output("ip link set far addrgenmode none && ip link set wire addrgenmode none");
    host.output("ip link set far up && ip link set wire up");
    host.output("ip addr add 198.18.7.1/24 dev wire");
    let mut program = Run::hca(&program.display().to_string()).within(&host).start();
    let known = &mut 0;
    let first = said_until(&mut program, known, "the beginning", |lines| !lines.is_empty());
    let gids = first[0].gids;
    assert_eq!((first[0].event, first[0].state), (None, ACTIVE));

    host.output("ip addr add 198.18.7.2/24 dev wire");
    let lines = said_until(&mut program, known, "a new address", |lines| told(lines, GID_CHANGE));
    assert_eq!(lines.last().unwrap().gids, gids + 1, "{lines:?}");
    assert!(!told(&lines, PORT_ERR) && !told(&lines, PORT_ACTIVE), "{lines:?}");

    host.output("ip addr del 198.18.7.2/24 dev wire");
    let lines = said_until(&mut program, known, "an address less", |lines| told(lines, GID_CHANGE));
    assert_eq!(lines.last().unwrap().gids, gids, "{lines:?}");

    host.output("ip link set wire down");
    let both = |event| move |lines: &[Line]| told(lines, event) && told(lines, GID_CHANGE);
    let lines = said_until(&mut program, known, "the interface down", both(PORT_ERR));
    assert_eq!(lines.last().unwrap().state, DOWN, "{lines:?}");
    assert!(!told(&lines, PORT_ACTIVE), "{lines:?}");

    host.output("ip link set wire up");
    let lines = said_until(&mut program, known, "the interface up", both(PORT_ACTIVE));
    let last = lines.last().unwrap();
    assert_eq!((last.state, last.gids), (ACTIVE, gids), "{lines:?}");
    assert!(!told(&lines, PORT_ERR), "{lines:?}");

    // The cable pulled at the other end takes the carrier, and no address.
    let only = |event| move |lines: &[Line]| told(lines, event);
    host.output("ip link set far down");
    let lines = said_until(&mut program, known, "the carrier lost", only(PORT_ERR));
    assert_eq!((lines.len(), lines[0].state, lines[0].gids), (1, DOWN, gids), "{lines:?}");
    host.output("ip link set far up");
    let lines = said_until(&mut program, known, "the carrier back", only(PORT_ACTIVE));
    assert_eq!((lines.len(), lines[0].state, lines[0].gids), (1, ACTIVE, gids), "{lines:?}");
}
