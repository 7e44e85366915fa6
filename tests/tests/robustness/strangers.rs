//! Programs of another user in the same network namespace: what they send, hold and call does
//! nothing to ours, and costs an idle program next to nothing.

use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use system::lab::{Lab, in_a_machine};
use system::{Namespace, Run, Running, User, c_program, pair, peerdma, port, shared_dir, skip};

/// A namespace for two users, or the end of the test.
macro_rules! host {
    ($label:literal) => {{
        if !system::is_root() {
            skip!("another user needs root");
        }
        if !system::has("python3") || !system::has("ibv_rc_pingpong") {
            skip!("python3 or ibverbs-utils is not installed");
        }
        Namespace::new($label)
    }};
}

/// A tool of ours as another user runs it.
fn stranger(host: &Namespace, tool: &str, arguments: &str) -> Run {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools").join(tool);
    let copy = shared_dir().join(format!("{}-{}-{tool}", host.name(), std::process::id()));
    std::fs::copy(source, &copy).expect("a copy of the tool");
    // The first python3 on root's path may lie where nobody else can go.
    let python = Some("/usr/bin/python3").filter(|p| Path::new(p).is_file()).unwrap_or("python3");
    let limit = "prlimit --nofile=8192:8192";
    let run = Run::plain(&format!("{limit} {python} {} {arguments}", copy.display()));
    run.within(host).user(User::Nobody).limit(Duration::from_secs(120))
}

/// Waits until a program says that it is ready.
#[track_caller]
fn until_ready(program: &mut Running) {
    program.until("not ready", |program| program.stdout().lines().any(|line| line == "ready"));
}

/// Process and slot of the programs with a device in a namespace.
fn listed(host: &Namespace) -> Vec<(u64, u64)> {
    let line = format!("{} ps --json", peerdma().display());
    let listing = Run::plain(&line).within(host).finish().ok();
    let listing: Value = serde_json::from_str(&listing.stdout).expect("JSON");
    let number = |process: &Value, name: &str| process[name].as_u64().expect("a number");
    let all = listing["processes"].as_array().expect("processes").iter();
    all.map(|process| (number(process, "pid"), number(process, "slot"))).collect()
}

/// A program that waits for somebody who does not come, its process and its slot.
fn idle(host: &Namespace) -> (Running, u64, u64) {
    let port = port();
    let mut waiting = Run::hca(&format!("ibv_rc_pingpong -g 0 -e -p {port}")).within(host).start();
    system::listening(port, Some(host), &mut waiting);
    let [(pid, slot)] = listed(host)[..] else { panic!("one program has a device") };
    (waiting, pid, slot)
}

/// Processor time that a process has used, all its threads together.
fn used(pid: u64) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let (_, behind) = stat.rsplit_once(')').expect("the command's name");
    let ticks = |at: usize| -> u64 {
        behind.split_whitespace().nth(at).and_then(|field| field.parse().ok()).expect("a number")
    };
    let per_second = rustix::param::clock_ticks_per_second();
    // utime and stime are fields 14 and 15; the state, behind the name, is the third.
    Duration::from_millis((ticks(11) + ticks(12)) * 1000 / per_second)
}

/// How many a flood sends: five seconds at its rate.
const FLOOD: u32 = 50_000;
/// Two per cent of a core at ten thousand a second.
const EACH: Duration = Duration::from_micros(2);

#[track_caller]
fn costs_little(host: &Namespace, arguments: impl Fn(u64) -> String) {
    let (mut waiting, pid, slot) = idle(host);
    let mut flood = stranger(host, "stranger.py", &arguments(slot)).start();
    until_ready(&mut flood);
    let before = used(pid);
    let flood = flood.finish().ok();
    let cost = used(pid) - before;
    assert!(flood.stdout.contains(&format!("sent {FLOOD}")), "{flood}");
    eprintln!("{cost:?} for {FLOOD}");
    assert!(cost <= EACH * FLOOD, "{cost:?} for {FLOOD}");
    assert!(waiting.alive(), "{}", waiting.said());
}

#[test]
fn a_flood_of_junk_costs_an_idle_program_little() {
    let host = host!("junk");
    costs_little(&host, |slot| format!("junk {slot} {FLOOD}"));
}

#[test]
fn calls_at_the_registrys_sockets_cost_an_idle_program_little() {
    let host = host!("call");
    costs_little(&host, |_| format!("call {FLOOD}"));
}

#[test]
fn forged_packets_of_another_user_reach_no_queue_pair() {
    let host = host!("forge");
    let victim = match c_program("victim") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    let folder = tempfile::tempdir_in(shared_dir()).expect("a temporary folder");
    let file = |name: &str| folder.path().join(name);
    let open = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    };
    open(folder.path());
    let victim = Run::hca(&victim).arg(file("stop")).env("PEERDMA_COUNTERS", file("counters"));
    let mut victim = victim.within(&host).limit(Duration::from_secs(120)).start();
    until_ready(&mut victim);
    std::fs::write(file("targets"), victim.stdout()).expect("a file");
    let forger = stranger(&host, "hostile.py", "--other-user --count 2000 --seed 4791 --targets");
    let forged = forger.arg(file("targets")).finish().ok();
    std::fs::write(file("stop"), "").expect("a file");
    let victim = victim.finish();
    assert!(victim.succeeded(), "{victim}\n{forged}");
    let counters = std::fs::read_to_string(file("counters")).expect("the counters");
    for name in ["rx_icrc_encapsulated", "rx_malformed", "resp_remote_access_errors"] {
        let count = counters.lines().find_map(|line| line.strip_prefix(name));
        assert_eq!(count.map(str::trim), Some("0"), "{name}: {counters}\n{forged}");
    }
}

#[test]
fn names_held_by_another_user_deny_nothing() {
    let host = host!("squat");
    let talk = || {
        let port = port();
        let run = Run::hca(&format!("ibv_rc_pingpong -g 0 -n 50 -p {port}")).within(&host);
        pair(run.clone(), Some(&host), run.arg("127.0.0.1"), port)
    };
    // Beside a registry that was there before, after that one ended, and with one that begins now.
    let (first, _, slot) = idle(&host);
    let mut squatter = stranger(&host, "stranger.py", "squat 0").start();
    until_ready(&mut squatter);
    talk();
    assert_eq!(listed(&host).iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [slot]);
    drop(first);
    talk();
    talk();
    assert!(squatter.alive(), "{}", squatter.said());
}

/// The registries of a namespace, by name.
fn registries(host: &Namespace) -> Vec<String> {
    let listing = Run::plain("cat /proc/net/unix").within(host).finish().ok();
    let words = listing.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = words.filter(|words| words.get(4) == Some(&"0005"));
    let names = own.filter_map(|words| Some((*words.get(7)?).to_owned()));
    let mut names: Vec<String> = names.filter(|name| name.starts_with("@peerdma/")).collect();
    names.sort();
    names.dedup();
    names
}

/// Whoever fills the registry's backlog as fast as it can keeps nobody out, and makes nobody
/// believe that its host has ended.
#[test]
fn a_crowd_at_the_registry_deposes_nobody() {
    let host = host!("crowd");
    let (_first, _, slot) = idle(&host);
    let before = registries(&host);
    let mut crowds = [(); 4].map(|()| stranger(&host, "stranger.py", "crowd").start());
    crowds.iter_mut().for_each(until_ready);
    for _ in 0..3 {
        let port = port();
        let run = Run::hca(&format!("ibv_rc_pingpong -g 0 -n 50 -p {port}")).within(&host);
        pair(run.clone(), Some(&host), run.arg("127.0.0.1"), port);
        assert_eq!(listed(&host).iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [slot]);
    }
    assert!(crowds.iter_mut().all(Running::alive));
    assert_eq!(registries(&host), before);
}

#[test]
fn a_network_of_its_own_helps_where_the_port_is_a_strangers() {
    let host = host!("strangers-port");
    let mut holder = stranger(&host, "stranger.py", "port").start();
    until_ready(&mut holder);
    let line = "ibv_devinfo -v";
    let refused = Run::hca(line).within(&host).finish();
    assert!(!refused.status.success() && refused.stderr.contains("4791"), "{refused}");
    let alone = |run: Run| run.option("--net").option("private").within(&host).finish().ok();
    let said = alone(Run::hca(line));
    assert!(said.stdout.contains("PORT_ACTIVE") && said.stdout.contains("127.0.0.1"), "{said}");
    // two programs of one such network meet
    let both = "ibv_rc_pingpong -g 0 -n 100 & until ibv_rc_pingpong -g 0 -n 100 127.0.0.1; \
                do kill -0 $! || exit 1; done; wait $!";
    let said = alone(Run::hca("sh -c").arg(both));
    assert_eq!(said.stdout.matches("100 iters").count(), 2, "{said}");
}

#[test]
fn a_user_without_privilege_may_have_a_network_of_its_own() {
    let host = host!("strangers-user");
    let able = Run::plain("unshare --user --map-current-user --net true").within(&host);
    if !able.user(User::Nobody).finish().status.success() {
        skip!("this kernel gives no user namespace to users without privilege");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/stranger.py");
    let python = Run::plain(&format!("python3 {} port", source.display())).within(&host);
    let mut holder = python.start();
    until_ready(&mut holder);
    let run = Run::hca("sh -c").arg("id -u; exec ibv_devinfo -v");
    let run = run.option("--net").option("private").user(User::Nobody);
    let said = run.within(&host).finish().ok();
    assert!(said.stdout.starts_with("65534\n") && said.stdout.contains("PORT_ACTIVE"), "{said}");
}

#[test]
fn a_machine_is_served_where_the_port_is_a_strangers() {
    let host = host!("strangers-vm");
    if let Err(reason) = Lab::for_adapters() {
        skip!("{reason:#}");
    }
    let mut holder = stranger(&host, "stranger.py", "port").start();
    until_ready(&mut holder);
    let cache = Lab::as_cache();
    let vm = |words: &[&str]| {
        let run = Run::program(peerdma()).arg("vm").args(words).env("XDG_CACHE_HOME", cache.path());
        in_a_machine(&run.within(&host))
    };
    let said = vm(&["--", "ibv_devinfo"]).ok();
    assert!(said.stdout.contains("PORT_ACTIVE"), "{said}");
    assert!(said.stderr.contains("in a network of its own"), "{said}");
    // what an Ethernet port sends may leave, so there it is refused
    let refused = vm(&["--port", "roce", "--", "true"]);
    assert!(!refused.status.success() && refused.stderr.contains("4791"), "{refused}");
}
